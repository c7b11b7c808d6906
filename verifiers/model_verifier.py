"""What verifiers that read a model's hidden states have in common, wherever the model runs."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from stepsearch.search.batching import together
from stepsearch.search.contracts import ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.encoders import Template, chain_encoder, solution_encoder
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.formats.implicit import ImplicitFormat
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.selfcheck import require

if TYPE_CHECKING:
    from stepsearch.verifiers.body import Body
    from stepsearch.verifiers.openai_body import OpenAIBody
    from stepsearch.verifiers.vllm_body import VllmBody


class HasIds(Protocol):
    """What a model reads for one chain, and more."""

    @property
    def ids(self) -> Sequence[int]:
        """Token ids."""
        ...


Input = TypeVar("Input", bound=HasIds)


class ModelVerifier(ABC, Generic[Input]):
    """Encodes chains, fails those that are too long, and scores each by itself.

    Attributes:
        spec: what the scores mean, and which model gives them.
    """

    spec: VerifierSpec

    def _set_up(
        self,
        form: StepFormat | OutcomeFormat | ImplicitFormat,
        name: str,
        bodies: Sequence[Body | VllmBody | OpenAIBody],
        encoder: tuple[Callable[[Chain], Input | ScoreFailure], Template],
        *,
        on_too_long: str,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self._bodies = bodies
        self._encode, template = encoder
        self._fails_when_too_long = on_too_long == "fail"
        self._max_length = min(body.max_length(form.max_length) for body in bodies)
        sizes = [body.num_parameters for body in bodies]
        known = [size for size in sizes if size is not None]
        self.spec = replace(
            form.declare(name),
            max_length=self._max_length,
            # Tokens are counted at every model.
            num_parameters=sum(known) // len(sizes) if len(known) == len(sizes) else None,
            provenance={
                **bodies[0].provenance,
                **(provenance or {}),
                "template_hash": template.hash,
                "template_date": template.date,
                "format": asdict(form),
            },
        )

    @abstractmethod
    def count_tokens(self, chain: Chain) -> int:
        """Tokens that the newest steps add, or of the prompt when there are no steps."""

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score every chain's newest steps; all chains are handed to the model at once.

        Raises:
            VerifierError: the model cannot be run any more, or a chain is too long and
                `on_too_long` is `fail`.
        """
        encoded = [self.encode(chain) for chain in chains]
        for result in encoded if self._fails_when_too_long else ():
            if isinstance(result, ScoreFailure) and result.kind == "too_long":
                raise VerifierError(f"{self.spec.name}: {result.message}")
        return await together(map(self._score_or_fail, chains, encoded))

    async def _score_or_fail(self, chain: Chain, encoded: Input | ScoreFailure) -> StepScores:
        if isinstance(encoded, ScoreFailure):
            return StepScores(failure=encoded)
        return await self._score_one(chain, encoded) if chain.num_new else StepScores()

    @abstractmethod
    async def _score_one(self, chain: Chain, encoded: Input) -> StepScores:
        """Score the newest steps of a chain; there is one at least."""

    def encode(self, chain: Chain) -> Input | ScoreFailure:
        """What the model reads for a chain, and where it is scored; nothing is ever cut."""
        encoded = self._encode(chain)
        if isinstance(encoded, ScoreFailure) or len(encoded.ids) <= self._max_length:
            return encoded
        return ScoreFailure(
            "too_long",
            f"the chain has {len(encoded.ids)} verifier tokens, the limit is "
            f"{self._max_length} (format.max_length and the model's context)",
        )

    @contextmanager
    def uncached(self) -> Iterator[Self]:
        """The same without a cache: what is scored neither uses nor fills it."""
        probe = copy.copy(self)
        probe._fails_when_too_long = False
        with ExitStack() as stack:
            contexts: list[AbstractContextManager[Body | VllmBody | OpenAIBody]] = [
                body.uncached() for body in self._bodies
            ]
            probe._bodies = [stack.enter_context(context) for context in contexts]
            yield probe


class HeadVerifier(ModelVerifier[EncodedChain]):
    """Reads scores out of one model's hidden states with a head."""

    def _load(
        self,
        form: StepFormat | OutcomeFormat,
        body: Body | VllmBody | OpenAIBody,
        name: str,
        *,
        on_too_long: str,
        selfcheck: bool,
    ) -> None:
        if isinstance(form, StepFormat):
            encoder = chain_encoder(form, body.tokenizer)
            self._set_up(form, name, [body], encoder, on_too_long=on_too_long)
        else:
            self._set_up(
                form, name, [body], solution_encoder(form, body.tokenizer), on_too_long=on_too_long
            )
        self._head = body.head(form.head)
        if selfcheck:
            require(self)

    @property
    def _body(self) -> Body | VllmBody | OpenAIBody:
        return self._bodies[0]

    def count_tokens(self, chain: Chain) -> int:
        """Tokens that the newest steps add, or of the prompt when there are no steps.

        All tokens where the input of a prefix is another one.
        """
        encoded = self.encode(chain)
        if isinstance(encoded, ScoreFailure):
            return 0
        return len(encoded.ids) - (encoded.num_known if len(chain) else 0)

    async def _score_one(self, chain: Chain, encoded: EncodedChain) -> StepScores:
        name, ids, positions = self.spec.name, encoded.ids, encoded.positions
        reading = await self._body.read(name, ids, positions, self._head)
        return reading if isinstance(reading, StepScores) else scored(*reading)


def scored(values: Sequence[float], computed: int, reused: int) -> StepScores:
    """Scores as a result, or the failure that one of them is not finite."""
    if all(map(math.isfinite, values)):
        return StepScores(values=tuple(values), tokens=computed, tokens_reused=reused)
    failure = ScoreFailure(
        "not_a_number",
        "the head's output is not finite; where dtype is float16, use bfloat16 or float32",
    )
    return StepScores(failure=failure, tokens=computed, tokens_reused=reused)


def check_on_too_long(value: str) -> None:
    """Raise `ConfigurationError` unless `on_too_long` is known."""
    if value not in ("drop", "fail"):
        raise ConfigurationError(f"on_too_long={value!r} must be drop or fail")
