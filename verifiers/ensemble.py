"""Several verifiers as one: the product of their scores, each to the power of its weight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepsearch.search.aggregate import aggregate
from stepsearch.search.batching import together
from stepsearch.search.contracts import (
    Aggregation,
    ScoreFailure,
    StepScores,
    Verifier,
    VerifierSpec,
)
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.scores import checked, malformed
from stepsearch.search.tree import Chain


class EnsembleVerifier:
    """Scores a step with the product of its members' scores ** weight (a log-linear pool).

    Members of kind `step` guide: they score every step. The others decide: they are asked for
    finished chains only, and their factor goes to the last step. `guides` makes members of kind
    `step` decide, too: a verifier that cannot yet tell prunes right chains, and what is pruned has
    no vote. On the last step the exponents are scaled to the same sum as everywhere else, so that
    finished and unfinished chains compare:

        unfinished: prod(guide ** a)
        finished: (prod(guide ** a) * prod(other ** b)) ** (sum(a) / (sum(a) + sum(b)))

    Every member must give probabilities: a product of anything else means nothing. A member with
    another range can be calibrated first, see `CalibratedVerifier`. A chain that one member cannot
    score has no score, with that member's reason. `StepScores.parts` keeps what every member said.

    How many chains agree on an answer is no property of a chain, so votes are not a member; they
    have their exponent in the selection (`vote_weight`).

    Args:
        members: the verifiers by name; a sequence takes the names of their specs.
        weights: exponent of every member, by name or in the order of the members; 1 for all when
            left out. An exponent above 1 makes a member's doubts count more.
        guides: names of the members that guide; all of kind `step` when left out.
        name: the name of the score column; `rule*prm` for members `rule` and `prm` when left out.
        aggregation: how a chain's step scores become one number. A member that judges each step
            by itself forgets a wrong step under `last`; the rule and most PRMs do not.

    Raises:
        ConfigurationError: no members, names that repeat, weights that do not fit the members, a
            member that does not give probabilities, none that scores steps, or guides that are not
            members that do.
    """

    def __init__(
        self,
        members: Mapping[str, Verifier] | Sequence[Verifier],
        weights: Mapping[str, float] | Sequence[float] | None = None,
        *,
        guides: Sequence[str] | None = None,
        name: str | None = None,
        aggregation: Aggregation = "last",
    ) -> None:
        self.members = _by_name(members)
        self.weights = _weights_of(self.members, weights)
        self.guides = _guides_of(self.members, guides)
        self.spec = _spec(self.members, self.weights, self.guides, name, aggregation)

    @classmethod
    def declare(
        cls, *, name: str | None = None, aggregation: Aggregation = "last", **_: Any
    ) -> VerifierSpec:
        """What the scores mean whatever the members are: they must all give probabilities."""
        return VerifierSpec(name=name or "ensemble", aggregation=aggregation)

    def count_tokens(self, chain: Chain) -> int | None:
        """The sum over the members that are asked; None when one of them cannot tell.

        Who decides pays for each finished chain as a whole, also for what such chains share, so
        that a limit on verifier tokens is reached before as many distinct ones are read.
        """
        asked = [self._asked(name, chain) for name in self.members]
        return _sum(
            [
                member.count_tokens(chain)
                for member, chain in zip(self.members.values(), asked, strict=True)
                if chain is not None
            ]
        )

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score the chains with all members at once; the newest steps of each are returned.

        All steps are returned when a member is not incremental.

        Raises:
            VerifierError: a member's backend failed for good.
        """
        columns = await together(self._ask(name, chains) for name in self.members)
        rows = [dict(zip(self.members, row, strict=True)) for row in zip(*columns, strict=True)]
        return [
            self._combine(chain, {name: s for name, s in row.items() if s is not None})
            for chain, row in zip(chains, rows, strict=True)
        ]

    async def _ask(self, name: str, chains: Sequence[Chain]) -> list[StepScores | None]:
        """What a member says about each chain; None where it is not asked."""
        asked = [self._asked(name, chain) for chain in chains]
        wanted = [chain for chain in asked if chain is not None]
        results = await self.members[name].score(wanted) if wanted else []
        if len(results) != len(wanted):
            raise VerifierError(
                f"{name}: asked for {len(wanted)} scores, the verifier returned {len(results)}"
            )
        told = (s if isinstance(s, StepScores) else malformed(s) for s in results)
        return [None if chain is None else next(told) for chain in asked]

    def _asked(self, name: str, chain: Chain) -> Chain | None:
        """The chain as a member must see it for all members to score the same steps."""
        if name not in self.guides:
            if len(chain) and chain.newest.stop == "step":
                return None
        elif self.spec.incremental or not self.members[name].spec.incremental:
            return chain
        return Chain(chain.tree, chain.node, chain.tail, len(chain))

    def _combine(self, chain: Chain, scores: dict[str, StepScores]) -> StepScores:
        tokens = _sum([s.tokens for s in scores.values()])
        reused = _sum([s.tokens_reused for s in scores.values()])
        count = chain.num_new if self.spec.incremental else len(chain)
        parts = {}
        for name, given in scores.items():
            spec = self.members[name].spec
            new = count if name in self.guides else len(chain)
            good = checked(given, spec, num_steps=len(chain), num_new=new)
            if good.failure is not None:
                failure = ScoreFailure(good.failure.kind, f"{name}: {good.failure.message}")
                return StepScores(failure=failure, tokens=tokens, tokens_reused=reused)
            parts[name] = self._part(name, good.values, count)
        return StepScores(
            values=self._pooled(parts, count),
            notes=_join_notes({name: s.notes for name, s in scores.items()}, count),
            parts=parts,
            tokens=tokens,
            tokens_reused=reused,
        )

    def _part(self, name: str, values: tuple[float, ...], count: int) -> tuple[float, ...]:
        """The newest steps' scores, or what all of them say of the chain; none for no new step."""
        if name in self.guides:
            return values[-count:] if count else ()
        whole = aggregate(self.members[name].spec.aggregation, values)
        return () if whole is None or not count else (whole,)

    def _pooled(self, parts: Mapping[str, tuple[float, ...]], count: int) -> tuple[float, ...]:
        """The product at every step; members that do not guide reach the last one only."""
        values, guides = [], math.fsum(self.weights[name] for name in self.guides)
        for back in range(count, 0, -1):
            given = {name: part[-back] for name, part in parts.items() if len(part) >= back}
            scale = guides / math.fsum(self.weights[name] for name in given)
            powers = [math.pow(v, self.weights[name] * scale) for name, v in given.items()]
            values.append(math.prod(powers))
        return tuple(values)


def _by_name(members: Mapping[str, Verifier] | Sequence[Verifier]) -> dict[str, Verifier]:
    if isinstance(members, Mapping):
        named = dict(members)
    else:
        named = {member.spec.name: member for member in members}
    if not named or len(named) != len(members):
        raise ConfigurationError("members must hold at least one verifier, and no name twice")
    for name, member in named.items():
        kind, range_ = member.spec.kind, member.spec.range
        if kind not in ("step", "outcome") or range_ != "probability":
            raise ConfigurationError(
                f"members: {name!r} has kind {kind!r} and range {range_!r}, but a product needs "
                "kind 'step' or 'outcome' and range 'probability' of every member; calibrate it or "
                "leave it out"
            )
    if all(member.spec.kind == "outcome" for member in named.values()):
        raise ConfigurationError(
            f"members: {next(iter(named))!r} has kind 'outcome' like all others, so nothing would "
            "score the steps; add a member of kind 'step', or use it alone"
        )
    return named


def _weights_of(
    members: dict[str, Verifier], weights: Mapping[str, float] | Sequence[float] | None
) -> dict[str, float]:
    if weights is None:
        return dict.fromkeys(members, 1.0)
    given = (
        dict(weights) if isinstance(weights, Mapping) else dict(zip(members, weights, strict=False))
    )
    if len(weights) != len(members) or set(given) != set(members):
        raise ConfigurationError(
            f"weights={weights!r} must hold one number for each of the members {', '.join(members)}"
        )
    for name, weight in given.items():
        if not 0 < weight < math.inf:
            raise ConfigurationError(f"weights: {weight!r} of {name!r} must be positive and finite")
    return {name: float(given[name]) for name in members}


def _guides_of(members: dict[str, Verifier], guides: Sequence[str] | None) -> tuple[str, ...]:
    steps = [name for name, member in members.items() if member.spec.kind == "step"]
    if guides is None:
        return tuple(steps)
    if isinstance(guides, str) or not isinstance(guides, Sequence):
        raise ConfigurationError(f"guides={guides!r} must be a list of names, [{guides}]")
    if not guides or any(name not in steps for name in guides):
        raise ConfigurationError(
            f"guides={list(guides)!r} must name members of kind 'step', which here are "
            f"{', '.join(steps)}"
        )
    return tuple(name for name in steps if name in guides)


def _spec(
    members: dict[str, Verifier],
    weights: dict[str, float],
    guides: Sequence[str],
    name: str | None,
    aggregation: Aggregation,
) -> VerifierSpec:
    specs = {member_name: member.spec for member_name, member in members.items()}
    name = "*".join(specs) if name is None else name
    if name in specs:
        raise ConfigurationError(
            f"name={name!r} is a member's name, whose scores are kept beside; set another name"
        )
    lengths = [s.max_length for s in specs.values() if s.max_length is not None]
    return VerifierSpec(
        name=name,
        aggregation=aggregation,
        # A finished chain does not grow, so what the others say of it cannot change either.
        incremental=all(specs[guide].incremental for guide in guides),
        max_length=min(lengths, default=None),
        reserved=tuple(dict.fromkeys(r for s in specs.values() for r in s.reserved)),
        num_parameters=_num_parameters(specs.values()),
        provenance={
            "members": {n: dict(s.provenance) for n, s in specs.items()},
            "weights": weights,
            "guides": list(guides),
            "deciding_steps": [n for n, s in specs.items() if s.kind == "step" and n not in guides],
        },
    )


def _num_parameters(specs: Iterable[VerifierSpec]) -> int | None:
    """Parameters used per token: members of unequal size have no such number."""
    sizes = {spec.num_parameters for spec in specs} - {0}
    if len(sizes) > 1:
        return None
    return sizes.pop() if sizes else 0


def _join_notes(notes: Mapping[str, tuple[str, ...]], count: int) -> tuple[str, ...]:
    """What the members say about each of the newest steps, aligned to the end."""
    joined = [
        "; ".join(f"{n}: {said[-k]}" for n, said in notes.items() if len(said) >= k and said[-k])
        for k in range(count, 0, -1)
    ]
    return tuple(joined) if any(joined) else ()


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
