"""A verifier as a reward of reinforcement learning, with the call signature of TRL's trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from stepsearch.search.aggregate import aggregate
from stepsearch.search.background import background
from stepsearch.search.contracts import Aggregation, ScoreFailure, Verifier
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_separator
from stepsearch.verifiers.stepwise import ask, chain_of, score_steps
from stepsearch.verifiers.training.outcome import split_steps

Turns = str | Sequence[dict[str, str]]


class RewardFunction(Protocol):
    """What TRL's GRPO trainer calls: keyword arguments in, one reward per completion out."""

    __name__: str

    def __call__(
        self, *, prompts: Sequence[Turns], completions: Sequence[Turns], **columns: Any
    ) -> list[float | None]:
        """Rewards of completions."""
        ...


def reward_function(
    verifier: Verifier,
    *,
    aggregation: Aggregation | None = None,
    separator: str = "\n",
    name: str | None = None,
) -> RewardFunction:
    """A reward out of a verifier's scores: of steps for a PRM, of the whole for an ORM.

    The function takes what `GRPOTrainer` gives its `reward_funcs`: `prompts`, `completions`
    (texts, or conversations whose last user turn is the question) and any further columns, which
    are not looked at. A completion that cannot be scored gets None, which TRL leaves out; never a
    made-up number.

    Args:
        verifier: gives the scores.
        aggregation: how a solution's step scores become its reward; None takes the verifier's own.
        separator: ends a step of a completion.
        name: what the reward is called in logs; None takes the verifier's name.

    Raises:
        ConfigurationError: an aggregation was given for a verifier that scores whole solutions, or
            the separator would end no step.
    """
    check_separator("separator", separator)
    if verifier.spec.kind == "outcome" and aggregation not in (None, "last"):
        raise ConfigurationError(
            f"aggregation={aggregation!r} needs scores of steps; verifier {verifier.spec.name!r} "
            "scores whole solutions"
        )
    fold: Aggregation = aggregation or verifier.spec.aggregation

    def reward(
        *, prompts: Sequence[Turns], completions: Sequence[Turns], **columns: Any
    ) -> list[float | None]:
        chains = [
            chain_of(_question(prompt), split_steps(_text(completion), separator))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        told = [chain for chain in chains if len(chain)]
        if verifier.spec.kind == "outcome":
            scored = background.submit(_outcomes(verifier, told)).result()
        else:
            scored = background.submit(score_steps(verifier, told)).result()
        rest = iter(scored)
        found = [next(rest) if len(chain) else None for chain in chains]
        return [
            None if values is None or isinstance(values, ScoreFailure) else aggregate(fold, values)
            for values in found
        ]

    reward.__name__ = name or verifier.spec.name
    return reward


async def _outcomes(verifier: Verifier, chains: Sequence[Any]) -> list[Any]:
    results = await ask(verifier, chains)
    return [
        scores.failure if scores.failure is not None else scores.values[-1:] for scores in results
    ]


def _question(prompt: Turns) -> str:
    if isinstance(prompt, str):
        return prompt
    return next((turn["content"] for turn in reversed(prompt) if turn["role"] == "user"), "")


def _text(completion: Turns) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(turn["content"] for turn in completion if turn["role"] == "assistant")
