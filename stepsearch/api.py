"""`solve`: a question in, an answer with its steps and its cost out."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from stepsearch.search.contracts import Policy, Strategy, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.poll import Settle
from stepsearch.search.requirements import require_part
from stepsearch.search.select import Selection, require_known
from stepsearch.search.task import Task
from stepsearch.search.types import Budget, Problem, Solution

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from stepsearch.search.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_built: dict[tuple[str, str], Any] = {}


def _named(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse unknown arguments with the nearest names, instead of Python's bare `TypeError`."""
    known = [name for name in inspect.signature(function).parameters if name != "question"]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in set(kwargs) - {*known, "question"}:
            from stepsearch.conf.build import unknown_argument

            raise unknown_argument(name, known)
        return function(*args, **kwargs)

    return called


@_named
def solve(
    question: str | Problem,
    *,
    search: str | Strategy = "beam",
    select: Selection | None = None,
    budget: int | Budget | None = None,
    policy: str | Policy = "embedded",
    verifier: str | Verifier | None = "prm",
    task: str | Task = "math",
    seed: int = 0,
    abstain_below: float | None = None,
    settle: Settle | None = None,
    overrides: Sequence[str] = (),
) -> Solution:
    """Solve a question.

    Every part is a name from the configuration or an object of your own. Without any it is beam
    search with the embedded model and the process reward model trained for it, on the CPU.

    Args:
        question: the question.
        search: a strategy.
        select: `best`, `weighted` or `majority`; None takes what fits the verifier.
        budget: hard limits; a number means policy tokens; None means 2,048 of them.
        policy: who proposes steps.
        verifier: who scores them; None for nobody, with `search="best_of_n"` or `greedy`.
        task: wording and answers.
        seed: the same seed gives the same result.
        abstain_below: give no answer when the score of its chain (`best`), its share of the votes
            (`majority`) or either of them (`weighted`) is below this.
        settle: stop as soon as more chains would not change the answer (`certain`) or would hardly
            (`likely`); None never.
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
        settle=settle,
        overrides=overrides,
    ).solve(question)


async def asolve(question: str | Problem, **settings: Any) -> Solution:
    """`solve` for callers with an event loop of their own; takes the same settings."""
    engine = await asyncio.to_thread(engine_for, **settings)
    return await engine.asolve(question)


@_named
def engine_for(
    *,
    search: str | Strategy = "beam",
    select: Selection | None = None,
    budget: int | Budget | None = None,
    policy: str | Policy = "embedded",
    verifier: str | Verifier | None = "prm",
    task: str | Task = "math",
    seed: int = 0,
    abstain_below: float | None = None,
    settle: Settle | None = None,
    overrides: Sequence[str] = (),
) -> Engine:
    """The engine that `solve` uses; keep it to solve many questions with `solve_many`."""
    from stepsearch.conf.build import COMPONENTS, build_engine, load_config, require_complete

    objects: dict[str, Any] = {}
    if isinstance(overrides, str):
        raise ConfigurationError(
            f"overrides={overrides!r} must be a list of texts, [{overrides!r}]"
        )
    if verifier is None:
        verifier = "none"
    if not isinstance(budget, int | Budget | None):
        raise ConfigurationError(
            f"budget={budget!r} must be a number of policy tokens or a Budget(...)"
        )
    named: dict[str, Any] = {
        "seed": seed,
        "select": select,
        "abstain_below": abstain_below,
        "settle": settle,
    }
    for name, part in (
        ("search", search),
        ("policy", policy),
        ("verifier", verifier),
        ("task", task),
        ("budget.policy_tokens" if isinstance(budget, int) else "budget", budget),
    ):
        if isinstance(part, type):
            raise ConfigurationError(
                f"{name} is the class {part.__name__}; give an object of it, {part.__name__}(...)"
            )
        if isinstance(part, str | int) or part is None:
            named[name] = part
        else:
            if name in ("policy", "search", "verifier"):
                require_part(name, part)
            objects[name] = part
    config = load_config([*_unless_given(named, overrides), *overrides])
    _refuse_lost(objects, overrides)
    require_complete(config, [name for name in COMPONENTS if name not in objects])
    if config.select is not None:
        require_known(config.select)
    return build_engine(config, load=_load, **objects)


def _unless_given(named: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Settings as overrides; the defaults are left to the configuration and the caller's own.

    Raises:
        ConfigurationError: an override says something else than an argument.
    """
    defaults = {n: p.default for n, p in inspect.signature(engine_for).parameters.items()}
    given = {o.lstrip("+~").split("=", 1)[0].removesuffix("._target_"): o for o in overrides}
    wanted = {n: v for n, v in named.items() if v not in (None, defaults.get(n))}
    for name, value in wanted.items():
        if given.get(name, f"{name}={value}") != f"{name}={value}":
            raise ConfigurationError(
                f"{name}={value!r} and the override {given[name]!r} contradict each other; give one"
            )
    return [f"{name}={value}" for name, value in wanted.items() if name not in given]


def _refuse_lost(objects: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise when an override belongs to a part that was given as an object."""
    for override in overrides:
        group = override.lstrip("+~").split("=", 1)[0].split(".", 1)[0]
        if group in objects:
            raise ConfigurationError(
                f"{override!r} would change {group}, which was given as an object; "
                "set it on the object, or give a name instead"
            )


def _load(config: DictConfig, name: str) -> Any:
    """A policy or verifier; the last one of each is kept, so that its model is loaded once."""
    from omegaconf import OmegaConf

    from stepsearch.conf.build import build

    with _lock:
        key = (name, OmegaConf.to_yaml(config.get(name), resolve=True))
        if key not in _built:
            for other in [k for k in _built if k[0] == name]:
                del _built[other]
            if "model" in (config.get(name) or ()):
                _log.info("loading the %s, model=%s", name, config[name].model)
            _built[key] = build(config, name)
        return _built[key]
