"""Labels of every method for the same number of policy tokens: samples and rollouts together.

Samples are taken question by question, in the same order by every method, for as long as the budget
pays for a question's samples and for what labelling them spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from stepsearch.benchmarks.perf.label_setup import CONCURRENCY, SAMPLING
from stepsearch.benchmarks.perf.label_stages import Stages, WithoutModel
from stepsearch.search.background import background
from stepsearch.search.batching import each
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.task import get_task
from stepsearch.verifiers.training.lines import Journal, Row, read_lines, write_lines
from stepsearch.verifiers.training.monte_carlo import RolloutLabels, Value
from stepsearch.verifiers.training.rollouts import Rollouts, write_all

_CHUNK = 2 * CONCURRENCY  # questions that are labelled before what they cost is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRollouts:
    """How a method with rollouts labels; see `RolloutLabels`."""

    value: Value = "soft"
    bisects: bool = False


METHODS: Mapping[str, WithoutModel | ByRollouts] = {
    "outcome": "outcome",
    "checker": "checker",
    "both": "both",
    "monte_carlo soft": ByRollouts(),
    "monte_carlo hard": ByRollouts(value="hard"),
    "bisection": ByRollouts(bisects=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """What a method got for the budget.

    Attributes:
        labelled: the file of labelled solutions.
        questions: whose samples are labelled.
        tokens: policy tokens spent, at most the budget.
        rollouts: continuations among them.
    """

    labelled: Path
    questions: int
    tokens: int
    rollouts: int


def buy(stages: Stages, name: str) -> Bought:
    """Label as many samples by a method as the budget pays for.

    Raises:
        ConfigurationError: the samples cost less than the budget.
    """
    method, samples = METHODS[name], stages.samples()
    plain = [_tokens_of(row) for row in samples]
    if not isinstance(method, ByRollouts):
        count = _affordable(plain, stages.setup.budget)
        few = stages.folder / "bought.jsonl"
        write_lines(few, samples[:count])
        out = stages.label_without_model(few, method)
        return Bought(labelled=out, questions=count, tokens=sum(plain[:count]), rollouts=0)
    done = _by_rollouts(stages, name, method, samples)
    costs = [own + row["usage"]["policy_tokens"] for own, row in zip(plain, done, strict=False)]
    count = _affordable(costs, stages.setup.budget)
    out = stages.folder / f"bought-{name.replace(' ', '-')}.jsonl"
    write_lines(out, done[:count])
    return Bought(
        labelled=out,
        questions=count,
        tokens=sum(costs[:count]),
        rollouts=sum(row["usage"]["rollouts"] for row in done[:count]),
    )


def _by_rollouts(stages: Stages, name: str, how: ByRollouts, samples: list[Row]) -> list[Row]:
    """Labelled rows with what each took, in order, until they cost more than the budget."""
    policy, task = stages.policy(), get_task("math")
    seed, k = stages.seed, stages.setup.k

    async def labelled(row: Row) -> Row:
        rollouts = Rollouts(policy=policy, sampling=SAMPLING)
        label = RolloutLabels(rollouts=rollouts, task=task, seed=seed, k=k, **asdict(how))
        return await label(row) | {"usage": rollouts.usage()}

    path = stages.folder / f"rollouts-{name.replace(' ', '-')}.jsonl"
    spent = 0
    with Journal(path, asdict(how) | {"k": k, "seed": seed}) as journal:
        for chunk in _chunks(samples):
            left = journal.left(chunk)
            work = write_all(each(labelled, left, CONCURRENCY), journal, len(left))
            background.submit(work).result()
            own = {row["id"] for row in chunk}
            rows = [row for row in read_lines(path) if row["id"] in own]
            spent += sum(map(_tokens_of, [*chunk, *rows]))
            if spent > stages.setup.budget:
                break
    found = {row["id"]: row for row in read_lines(path)}
    return [found[row["id"]] for row in samples if row["id"] in found]


def _tokens_of(row: Row) -> int:
    """Policy tokens that a row of samples, or the rollouts of a labelled one, cost."""
    return int(row["usage"]["policy_tokens"])


def _affordable(costs: Iterable[int], budget: int) -> int:
    """How many questions the budget pays for, one after the other."""
    sums = list(accumulate(costs))
    if not sums or sums[-1] <= budget:
        raise ConfigurationError(
            f"{len(sums)} questions cost less than the budget of {budget} policy tokens"
        )
    return sum(total <= budget for total in sums)


def _chunks(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]
