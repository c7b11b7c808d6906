"""Several step verifiers as one: the product of their scores, each to the power of its weight."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from stepsearch.search.contracts import (
    Aggregation,
    ScoreFailure,
    StepScores,
    Verifier,
    VerifierSpec,
)
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.scores import checked
from stepsearch.search.tree import Chain

_T = TypeVar("_T")


class EnsembleVerifier:
    """Scores a step with the product of its members' scores ** weight (a log-linear pool).

    Every member must score steps with probabilities: a product of anything else means nothing. A
    chain that one member cannot score has no score, with that member's reason. `StepScores.parts`
    keeps what every member said.

    Args:
        members: the verifiers by name; a sequence takes the names of their specs.
        weights: exponent of every member, by name or in the order of the members; 1 for all when
            left out. An exponent above 1 makes a member's doubts count more.
        name: the name of the score column; `rule*prm` for members `rule` and `prm` when left out.
        aggregation: how a chain's step scores become one number. A member that judges each step
            by itself forgets a wrong step under `last`; the rule and most PRMs do not.

    Raises:
        ConfigurationError: no members, names that repeat, weights that do not fit the members, or
            a member that does not give one probability per step.
    """

    def __init__(
        self,
        members: Mapping[str, Verifier] | Sequence[Verifier],
        weights: Mapping[str, float] | Sequence[float] | None = None,
        *,
        name: str | None = None,
        aggregation: Aggregation = "last",
    ) -> None:
        self.members = _by_name(members)
        self.weights = _weights_of(self.members, weights)
        self.spec = _spec(self.members, self.weights, name, aggregation)

    @classmethod
    def declare(
        cls, *, name: str | None = None, aggregation: Aggregation = "last", **_: Any
    ) -> VerifierSpec:
        """What the scores mean whatever the members are: they must all give probabilities."""
        return VerifierSpec(name=name or "ensemble", aggregation=aggregation)

    def count_tokens(self, chain: Chain) -> int | None:
        """The sum over the members; None when one of them cannot tell."""
        return _sum(
            [member.count_tokens(self._asked(member, chain)) for member in self.members.values()]
        )

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score the chains with all members at once; the newest steps of each are returned.

        All steps are returned when a member is not incremental.

        Raises:
            VerifierError: a member's backend failed for good.
        """
        columns = await asyncio.gather(
            *(
                member.score([self._asked(member, chain) for chain in chains])
                for member in self.members.values()
            )
        )
        return [
            self._combine(chain, dict(zip(self.members, row, strict=True)))
            for chain, row in zip(chains, zip(*columns, strict=True), strict=True)
        ]

    def _asked(self, member: Verifier, chain: Chain) -> Chain:
        """The chain as a member must see it for all members to score the same steps."""
        if self.spec.incremental or not member.spec.incremental:
            return chain
        return Chain(chain.tree, chain.node, chain.tail, len(chain))

    def _combine(self, chain: Chain, scores: dict[str, StepScores]) -> StepScores:
        tokens = _sum([s.tokens for s in scores.values()])
        reused = _sum([s.tokens_reused for s in scores.values()])
        count = chain.num_new if self.spec.incremental else len(chain)
        parts = {}
        for name, given in scores.items():
            good = checked(given, self.members[name].spec, num_steps=len(chain), num_new=count)
            if good.failure is not None:
                failure = ScoreFailure(good.failure.kind, f"{name}: {good.failure.message}")
                return StepScores(failure=failure, tokens=tokens, tokens_reused=reused)
            parts[name] = _newest(good.values, count)
        return StepScores(
            values=tuple(self._product(row) for row in zip(*parts.values(), strict=True)),
            notes=_join_notes({n: _newest(s.notes, count) for n, s in scores.items()}, count),
            parts=parts,
            tokens=tokens,
            tokens_reused=reused,
        )

    def _product(self, values: Sequence[float]) -> float:
        weights = self.weights.values()
        return math.prod([math.pow(v, w) for v, w in zip(values, weights, strict=True)])


def _by_name(members: Mapping[str, Verifier] | Sequence[Verifier]) -> dict[str, Verifier]:
    if isinstance(members, Mapping):
        named = dict(members)
    else:
        named = {member.spec.name: member for member in members}
    if not named or len(named) != len(members):
        raise ConfigurationError("members must hold at least one verifier, and no name twice")
    for name, member in named.items():
        kind, range_ = member.spec.kind, member.spec.range
        if kind != "step" or range_ != "probability":
            raise ConfigurationError(
                f"members: {name!r} has kind {kind!r} and range {range_!r}, but a product needs "
                "kind 'step' and range 'probability' of every member; leave it out"
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


def _spec(
    members: dict[str, Verifier],
    weights: dict[str, float],
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
        incremental=all(s.incremental for s in specs.values()),
        max_length=min(lengths, default=None),
        reserved=tuple(dict.fromkeys(r for s in specs.values() for r in s.reserved)),
        num_parameters=_num_parameters(specs.values()),
        provenance={
            "members": {n: dict(s.provenance) for n, s in specs.items()},
            "weights": weights,
        },
    )


def _num_parameters(specs: Iterable[VerifierSpec]) -> int | None:
    """Parameters used per token: members of unequal size have no such number."""
    sizes = {spec.num_parameters for spec in specs} - {0}
    if len(sizes) > 1:
        return None
    return sizes.pop() if sizes else 0


def _newest(values: tuple[_T, ...], count: int) -> tuple[_T, ...]:
    return values[len(values) - count :] if values else ()


def _join_notes(notes: dict[str, tuple[str, ...]], count: int) -> tuple[str, ...]:
    joined = [
        "; ".join(f"{name}: {given[i]}" for name, given in notes.items() if given and given[i])
        for i in range(count)
    ]
    return tuple(joined) if any(joined) else ()


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
