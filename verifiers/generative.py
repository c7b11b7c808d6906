"""Verifiers that are language models: they write a critique of a step or solution and judge it.

See `critique` for how a verdict is read. A step without any verdict has no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from stepsearch.search.contracts import (
    Aggregation,
    Kind,
    Policy,
    ScoreFailure,
    StepScores,
    VerifierSpec,
    WeighsTexts,
)
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.critique import Critic, Verdict, VerdictFormat, total


class GenerativeVerifier:
    """Judges with a language model: every step in turn, or a solution as a whole.

    The critique of a step sees the question and the steps up to it, so that its score does not
    change when the chain grows.

    Args:
        policy: the model, through any backend. Where it tells how likely a text is
            (`WeighsTexts`) a verdict is a probability, else it is 0 or 1 as written.
        prompt: see `VerdictFormat`, like `cue`, `good` and `bad`.
        kind: `step` judges each of the newest steps, `outcome` the chain as a whole.
        samples: critiques of each; see `Critic`, like the settings that follow.
        name: the name of the score column.
        aggregation: how a chain's step scores become one number.

    Attributes:
        critic: what reads the verdicts, and counts critiques without one.

    Raises:
        ConfigurationError: a setting does not fit.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        prompt: str,
        kind: Kind = "step",
        cue: str = "Verdict:",
        good: str = " correct",
        bad: str = " wrong",
        samples: int = 4,
        temperature: float = 0.7,
        max_tokens: int = 512,
        seed: int = 0,
        name: str = "critic",
        aggregation: Aggregation = "min",
    ) -> None:
        if kind not in ("step", "outcome"):
            raise ConfigurationError(f"kind={kind!r} must be step or outcome")
        self._format = VerdictFormat(prompt=prompt, cue=cue, good=good, bad=bad)
        self.critic = Critic(
            policy,
            self._format,
            samples=samples,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )
        self.spec = replace(
            self.declare(name=name, kind=kind, aggregation=aggregation),
            num_parameters=policy.spec.num_parameters,
            provenance={
                "policy": dict(policy.spec.provenance) | {"name": policy.spec.name},
                "format": asdict(self._format),
                "critiques": {"samples": samples, "temperature": temperature, "seed": seed},
                "max_tokens": max_tokens,
                "reads": "logprobs" if isinstance(policy, WeighsTexts) else "words",
            },
        )

    @classmethod
    def declare(
        cls,
        *,
        name: str = "critic",
        kind: Kind = "step",
        aggregation: Aggregation = "min",
        **_: Any,
    ) -> VerifierSpec:
        """What the scores mean, whatever model judges."""
        # Below the threshold the model finds the other verdict more likely.
        return VerifierSpec(name=name, kind=kind, aggregation=aggregation, threshold=0.5)

    def count_tokens(self, chain: Chain) -> None:
        """None: nobody knows how long a critique will be."""
        return

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Judge the newest steps of every chain, or every chain; all at once.

        Raises:
            VerifierError: the model's backend failed for good.
        """
        unread = [_unreadable(chain) for chain in chains]
        asked = [range(0) if u else self._ends(c) for u, c in zip(unread, chains, strict=True)]
        texts = [chain.texts for chain in chains]
        verdicts = iter(
            await self.critic.judge(
                [
                    self._format.fill(chain.question, steps[:end])
                    for chain, steps, ends in zip(chains, texts, asked, strict=True)
                    for end in ends
                ]
            )
        )
        return [
            StepScores(failure=u) if u else self._scores({end: next(verdicts) for end in ends})
            for u, ends in zip(unread, asked, strict=True)
        ]

    def _ends(self, chain: Chain) -> range:
        """How many steps each critique of a chain sees."""
        if self.spec.kind == "step":
            return range(len(chain) - chain.num_new + 1, len(chain) + 1)
        return range(len(chain), len(chain) + 1) if len(chain) else range(0)

    def _scores(self, verdicts: Mapping[int, Verdict]) -> StepScores:
        tokens = total([verdict.tokens for verdict in verdicts.values()])
        reused = total([verdict.tokens_reused for verdict in verdicts.values()])
        for number, verdict in verdicts.items():
            if verdict.probability is None:
                failure = self._failure(number, verdict)
                return StepScores(failure=failure, tokens=tokens, tokens_reused=reused)
        return StepScores(
            values=tuple(verdict.probability or 0.0 for verdict in verdicts.values()),
            notes=tuple(map(_note, verdicts.values())),
            tokens=tokens,
            tokens_reused=reused,
        )

    def _failure(self, number: int, verdict: Verdict) -> ScoreFailure:
        if verdict.is_too_long:
            return ScoreFailure("too_long", f"step {number}: no room for a critique in the context")
        words = (self._format.good, self._format.bad)
        said = " or ".join(repr(self._format.cue + word) for word in words)
        return ScoreFailure(
            "missing", f"step {number}: none of {verdict.num_critiques} critiques held {said}"
        )


def _unreadable(chain: Chain) -> ScoreFailure | None:
    """Why no model can read a chain; None when it can."""
    try:
        chain.question.encode()
        chain.text.encode()
    except UnicodeEncodeError as error:
        return ScoreFailure("malformed", f"the text is not valid Unicode: {error}")
    return None


def _note(verdict: Verdict) -> str:
    """Says when verdicts are missing; silence means that all are there."""
    if verdict.num_verdicts == verdict.num_critiques:
        return ""
    return f"{verdict.num_verdicts} of {verdict.num_critiques} critiques held a verdict"
