"""Replay: going on from a saved search.

A search is determined by its settings. So it is run again from its start, and what it asks of the
models is answered from the saved tree for as long as it is there: the algorithm needs no state of
its own in the trace, and what comes out is what a search gives that was never interrupted. The
price is the host's time, some ten microseconds a node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stepsearch.search.batching import Batcher
from stepsearch.search.contracts import (
    Policy,
    Sample,
    Samples,
    SamplingParams,
    StepScores,
    VerifierSpec,
)
from stepsearch.search.errors import ConfigurationError, TraceError
from stepsearch.search.meter import CarriedScores, Meter
from stepsearch.search.seeding import Seeder
from stepsearch.search.steps import STOP_CODES
from stepsearch.search.tree import FAILED, SCORED, UNSCORED, Chain, ScoreColumn, Tree
from stepsearch.search.types import Budget, Stop

_STEP = STOP_CODES["step"]
_SAME = ("stepsearch", "policy", "verifier", "task", "aggregation", "sampling", "seed")


class ReplayPolicy:
    """Answers from a saved tree where it can, else asks the policy.

    A child is known by its seed, which is that of its place in the tree.

    Args:
        saved: the tree; what budget or interruption disturbed in it is left out.
        policy: asked for what is not there.
        seeder: of the saved search.
        meter: counts the saved search already, so that what is answered from it is taken off.
    """

    def __init__(self, saved: Tree, policy: Policy, seeder: Seeder, meter: Meter) -> None:
        self.spec = policy.spec
        self._saved = saved
        self._policy = policy
        self._meter = meter
        self._end = num_whole(saved)
        self._nodes: dict[int, int] = {}
        for parent in range(self._end):
            children = [child for child in saved.children(parent) if child < self._end]
            if children:
                seeds = seeder.children(saved, parent, 0, len(children))
                self._nodes.update(zip(seeds, children, strict=True))

    async def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Sample | Samples]:
        """See `Policy.sample`."""
        missing = []
        limit = 1 if params.until == "step" else params.max_steps
        for request, seed in enumerate(seeds):
            nodes = self._continuation(self._nodes.get(seed, self._end), limit)
            if nodes is None:
                missing.append(request)
                continue
            steps = tuple(map(self._saved.step, nodes))
            self._meter.policy_calls -= 1
            self._meter.policy_tokens -= sum(step.num_tokens for step in steps)
            self._meter.completions -= steps[-1].stop == "eos"
            yield Sample(request, steps, 0, 0)
        if missing:
            rest = [chains[request] for request in missing], [seeds[request] for request in missing]
            async for found in self._policy.sample(*rest, params):
                if isinstance(found, Sample):
                    yield found._replace(request=missing[found.request])
                else:
                    yield found._replace(requests=[missing[r] for r in found.requests])

    def _continuation(self, start: int, limit: int) -> range | None:
        """The nodes of a continuation of at most `limit` steps, None when it is not all there."""
        stop = start + 1
        while stop <= self._end and stop < start + limit:
            if self._saved.stop_code[stop - 1] != _STEP:
                break
            stop += 1
        return range(start, stop) if stop <= self._end else None


class ReplayVerifier:
    """Answers from a saved tree where it can, else asks the verifier.

    Args:
        saved: as for `ReplayPolicy`; its nodes have the ids that they get again.
        spec: what the verifier declared.
        batcher: takes the other chains to the verifier.
    """

    def __init__(
        self, saved: Tree, spec: VerifierSpec, batcher: Batcher[Chain, StepScores]
    ) -> None:
        self._saved = saved
        self._spec = spec
        self._batcher = batcher
        # Siblings may begin alike and go on differently; a score may depend on how a chain ended.
        self._children: dict[tuple[int, str, tuple[int, ...], Stop], list[int]] = {}
        for node in range(1, num_whole(saved)):
            step = saved.step(node)
            key = saved.parent[node], step.text, step.token_ids, step.stop
            self._children.setdefault(key, []).append(node)

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """See `Verifier.score`."""
        known = [self._known(chain) for chain in chains]
        missing = [chain for chain, scores in zip(chains, known, strict=True) if scores is None]
        rest = iter(await self._batcher.submit(missing) if missing else ())
        found = []
        for scores in known:
            answer = next(rest) if scores is None else scores
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        return found

    def _known(self, chain: Chain) -> StepScores | None:
        column = self._saved.scores.get(self._spec.name)
        if column is None:
            return None
        node = self._find(chain, column)
        if node is None or column.status[node] == UNSCORED:
            return None
        if column.status[node] == FAILED:
            return CarriedScores(failure=column.failures[node])
        new = self._saved.path(node)[-chain.num_new :]
        parts = {name: self._values(part, new) for name, part in self._saved.scores.items()}
        values = parts.pop(self._spec.name)
        parts = {name: part for name, part in parts.items() if part}  # a member was asked, or not
        notes = tuple(column.notes.get(step, "") for step in new[-len(values) :])
        return CarriedScores(values=values, notes=notes if any(notes) else (), parts=parts)

    def _find(self, chain: Chain, column: ScoreColumn) -> int | None:
        """The first saved node whose chain is the same; only an end where scores change.

        What is in the middle of a scored chain got its score from there, but a twin may have one
        of its own. Which of two twins failed by itself is not told by a tree.
        """
        nodes = [chain.node] if chain.node < num_whole(self._saved) else []
        for step in chain.tail:
            keys = [(node, step.text, step.token_ids, step.stop) for node in nodes]
            nodes = [child for key in keys for child in self._children.get(key, ())]
        if not self._spec.incremental:
            nodes = [n for n in nodes if n in column.per_leaf or column.status[n] == FAILED]
        return nodes[0] if nodes else None

    def _values(self, column: ScoreColumn, new: Sequence[int]) -> tuple[float, ...]:
        """A column's scores of the newest steps, or of all steps when they change as it grows."""
        if new[-1] in column.per_leaf:
            return column.per_leaf[new[-1]]
        return tuple(column.values[node] for node in new if column.status[node] == SCORED)


def num_whole(saved: Tree) -> int:
    """How many nodes, the root included, nothing disturbed."""
    return len(saved) if saved.num_whole is None else saved.num_whole


def require_resumable(
    saved: Mapping[str, Any], now: Mapping[str, Any], grows: Sequence[str]
) -> None:
    """Check that a search with these settings begins as the saved one did.

    Args:
        saved: the provenance of the trace.
        now: that of the engine.
        grows: parameters of the strategy that may be larger than before.

    Raises:
        ConfigurationError: a setting differs, or a limit is smaller than before.
        TraceError: the trace does not say what it was made with.
    """
    for name in _SAME:
        if saved.get(name) != now[name]:
            raise ConfigurationError(
                f"{name} differs from that of the trace, which has {saved.get(name)!r}; "
                "resume with the same, or solve the problem anew"
            )
    told, new = _table(saved, "strategy"), dict(now["strategy"])
    old = dict(told)
    for name in grows:
        _require_not_less(f"search.{name}", old.pop(name, None), new.pop(name, None))
    if old != new:
        allowed = (
            f"only {', '.join(grows)} may grow" if grows else "none of its settings may change"
        )
        raise ConfigurationError(
            f"search differs from that of the trace, which has {told!r}; {allowed}"
        )
    limits = _table(saved, "budget")
    for name in asdict(Budget()):
        _require_not_less(f"budget.{name}", limits.get(name), now["budget"][name])


def _table(saved: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of the provenance that has settings of its own."""
    table = saved.get(name)
    if not isinstance(table, Mapping):
        raise TraceError(
            f"the trace does not say with what {name} it was made ({table!r:.100}), so it cannot "
            "be resumed; solve the problem anew"
        )
    return table


def _require_not_less(name: str, old: object, new: float | None) -> None:
    if old is not None and (isinstance(old, bool) or not isinstance(old, int | float)):
        raise TraceError(f"the trace was made with {name}={old!r:.100}, which is no number")
    if new is not None and (old is None or new < old):
        limit = "no limit" if old is None else old
        raise ConfigurationError(f"{name}={new} must not be less than in the trace, {limit}")
