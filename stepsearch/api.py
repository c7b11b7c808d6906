"""`solve`: a question in, an answer with its steps and its cost out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepsearch.search.contracts import Policy, Strategy, Verifier
from stepsearch.search.select import Selection
from stepsearch.search.task import Task
from stepsearch.search.types import Budget, Problem, Solution

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from stepsearch.search.engine import Engine

_built: dict[tuple[str, str], Any] = {}


def solve(
    question: str | Problem,
    *,
    search: str | Strategy = "beam",
    select: Selection | None = None,
    budget: int | Budget | None = None,
    policy: str | Policy | None = None,
    verifier: str | Verifier | None = None,
    task: str | Task = "math",
    seed: int = 0,
    abstain_below: float | None = None,
    overrides: Sequence[str] = (),
) -> Solution:
    """Solve a question.

    Every part is a name from the configuration or an object of your own. Without any it is beam
    search with the embedded model and the arithmetic rule verifier, on the CPU.

    Args:
        question: the question.
        search: a strategy.
        select: `best`, `weighted` or `majority`; None takes what fits the verifier.
        budget: hard limits; a number means policy tokens; None means 2,048 of them.
        policy: who proposes steps.
        verifier: who scores them.
        task: wording and answers.
        seed: the same seed gives the same result.
        abstain_below: give no answer when its score is below this.
        overrides: Hydra overrides, such as `search.n=16` or `sampling.temperature=1.0`; they
            have the last word.

    Raises:
        ConfigurationError: a name, key or value that does not exist or does not fit.
        ModelNotFoundError: a model could not be loaded.

    Ctrl-C ends the search with its best answer so far (`stop="cancelled"`).
    """
    return engine_for(
        search=search,
        select=select,
        budget=budget,
        policy=policy,
        verifier=verifier,
        task=task,
        seed=seed,
        abstain_below=abstain_below,
        overrides=overrides,
    ).solve(question)


async def asolve(question: str | Problem, **settings: Any) -> Solution:
    """`solve` for callers with an event loop of their own; takes the same settings."""
    engine = await asyncio.to_thread(engine_for, **settings)
    return await engine.asolve(question)


def engine_for(
    *,
    search: str | Strategy = "beam",
    select: Selection | None = None,
    budget: int | Budget | None = None,
    policy: str | Policy | None = None,
    verifier: str | Verifier | None = None,
    task: str | Task = "math",
    seed: int = 0,
    abstain_below: float | None = None,
    overrides: Sequence[str] = (),
) -> Engine:
    """The engine that `solve` uses; keep it to solve many questions with `solve_many`."""
    from stepsearch.conf.build import build_engine, load_config

    parts: Mapping[str, Any] = {
        "search": search,
        "policy": policy,
        "verifier": verifier,
        "task": task,
    }
    named = {name: part for name, part in parts.items() if isinstance(part, str)} | {"seed": seed}
    objects = {n: p for n, p in parts.items() if p is not None and not isinstance(p, str)}
    given = {override.split("=", 1)[0] for override in overrides}
    names = [f"{name}={value}" for name, value in named.items() if name not in given]
    config = load_config([*names, *overrides])
    if select is not None:
        config.select = select
    if abstain_below is not None:
        config.abstain_below = abstain_below
    if isinstance(budget, int):
        config.budget.policy_tokens = budget
    elif budget is not None:
        objects["budget"] = budget
    for name in ("policy", "verifier"):
        if name not in objects:
            objects[name] = _load(config, name)
    return build_engine(config, **objects)


def _load(config: DictConfig, name: str) -> Any:
    """A policy or verifier; the last one of each is kept, so that its model is loaded once."""
    from omegaconf import OmegaConf

    from stepsearch.conf.build import build

    key = (name, OmegaConf.to_yaml(config[name], resolve=True))
    if key not in _built:
        for other in [k for k in _built if k[0] == name]:
            del _built[other]
        _built[key] = build(config, name)
    return _built[key]
