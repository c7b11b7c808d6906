"""What the engine asks of a policy, a verifier and a strategy."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload, runtime_checkable

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import number, whole
from stepsearch.search.steps import StepColumns
from stepsearch.search.types import Step

if TYPE_CHECKING:
    from stepsearch.search.session import Session
    from stepsearch.search.tree import Chain

Aggregation = Literal["last", "min", "mean", "product"]
Kind = Literal["step", "prefix", "outcome"]
Range = Literal["probability", "signed", "unbounded"]
_NO_DETECTION = "0 switches the detection of loops off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to continue a chain.

    Attributes:
        until: `step` for one step, `end` for all steps to the end of the chain.
        temperature: 0 means greedy.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep this many tokens; 0 keeps all.
        max_step_tokens: limit of one step; reaching it ends the chain with stop `length`.
        max_tokens: limit of the whole call, what the budget allots; reaching it within a step and
            before the step limit ends the chain with stop `budget`.
        max_steps: with `until="end"`, the chain is left at stop `step` after so many steps.
        max_repeats: the chain ends with stop `loop` when the same run of tokens was written this
            many times in a row; 0 switches the detection off.

    Raises:
        ConfigurationError: a value is no number, or outside its limits.
    """

    until: Literal["step", "end"] = "step"
    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    max_step_tokens: int = 128
    max_tokens: int = 1 << 30
    max_steps: int = 1 << 30
    max_repeats: int = 4

    def __post_init__(self) -> None:
        if self.until not in ("step", "end"):
            raise ConfigurationError(f"sampling.until={self.until!r} must be step or end")
        number("sampling.temperature", self.temperature, least=0, hint="0 is greedy")
        number("sampling.top_p", self.top_p, above=0, most=1, hint="1 keeps every token")
        whole("sampling.top_k", self.top_k, least=0, hint="0 keeps every token")
        whole("sampling.max_repeats", self.max_repeats, least=0, hint=_NO_DETECTION)
        if self.max_repeats == 1:
            raise ConfigurationError(f"sampling.max_repeats=1 must be at least 2; {_NO_DETECTION}")
        for name in ("max_step_tokens", "max_tokens", "max_steps"):
            whole(f"sampling.{name}", getattr(self, name), least=1)


class Sample(NamedTuple):
    """One finished continuation.

    Attributes:
        request: which of the requests it answers, a position in `chains` and `seeds`.
        steps: the new steps, at least one; only the last may have a stop other than `step`.
        prompt_tokens: prefix tokens computed for it, None when the backend does not tell. What
            siblings share is counted once, at one of them.
        prompt_tokens_reused: prefix tokens taken from a cache.
    """

    request: int
    steps: tuple[Step, ...]
    prompt_tokens: int | None = None
    prompt_tokens_reused: int | None = None


class Samples(NamedTuple):
    """Many continuations of one step each that finished together, as columns.

    What a backend that finishes whole batches yields instead of one `Sample` each; it costs a
    tenth.

    Attributes:
        requests: which of the requests each answers.
        steps: the new step of each; taken over by whoever receives them.
        prompt_tokens: prefix tokens computed for all of them, None when the backend does not tell.
        prompt_tokens_reused: prefix tokens taken from a cache.
    """

    requests: Sequence[int]
    steps: StepColumns
    prompt_tokens: int | None = None
    prompt_tokens_reused: int | None = None

    def apart(self) -> list[Sample]:
        """One `Sample` each; the prefix tokens of all stand at the first."""
        return [
            Sample(
                request,
                (self.steps.step(index),),
                0 if index and self.prompt_tokens is not None else self.prompt_tokens,
                0 if index and self.prompt_tokens_reused is not None else self.prompt_tokens_reused,
            )
            for index, request in enumerate(self.requests)
        ]


@runtime_checkable
class CountsPrompt(Protocol):
    """A policy that can tell how long a prompt is; a limit on FLOPs needs one."""

    def count_prompt_tokens(self, prompt: str) -> int:
        """Tokens of the rendered prompt."""
        ...


class TextLogprobs(NamedTuple):
    """How likely a model finds given texts.

    Attributes:
        values: log p(text | chain) in nats, one a text; empty when they do not fit the context.
        tokens: prefix tokens computed, None when the backend does not tell.
        tokens_reused: prefix tokens taken from a cache.
    """

    values: tuple[float, ...]
    tokens: int | None = None
    tokens_reused: int | None = None


@runtime_checkable
class WeighsTexts(Protocol):
    """A policy that can tell how likely given texts are; verdicts are read with it."""

    async def text_logprobs(self, chain: Chain, texts: Sequence[str]) -> TextLogprobs:
        """How likely each of the texts is as what follows the chain, at temperature 1.

        The chain's own ids are kept; a text is encoded by itself and put behind them.

        Raises:
            PolicyError: the backend failed for good.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What the engine and the trace must know about a policy.

    Attributes:
        name: names the model in output.
        num_parameters: parameters used per token, for FLOPs; None when unknown.
        provenance: model, revision or hash, adapter, prompt format, device, dtype and so on.
    """

    name: str
    num_parameters: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Policy(Protocol):
    """Who proposes the next steps."""

    @property
    def spec(self) -> PolicySpec:
        """What it is."""
        ...

    def sample(
        self, chains: Sequence[Chain], seeds: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[Sample | Samples]:
        """Continue `chains[i]` with `seeds[i]`; yield each continuation when it is finished.

        Siblings carry the same `Chain` object, next to each other. The event loop must not be kept
        waiting: what blocks (a synchronous client, a model's forward pass) goes on a thread, as by
        `asyncio.to_thread`, or neither Ctrl-C nor a limit of seconds ends the search meanwhile.

        Same seed, chain and parameters give the same steps, whatever else is in flight. Sampled
        ids are continued as they are, never re-tokenised. A chain that leaves no room in the
        context yields one empty step with stop `context`.

        Raises:
            PolicyError: the backend failed for good; that problem's search ends.
        """
        ...


FailureKind = Literal["too_long", "missing", "malformed", "not_a_number", "out_of_range", "budget"]


class ScoreFailure(NamedTuple):
    """Why a chain has no scores. Never turned into a number."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """What a verifier says about one chain.

    Attributes:
        values: one score per step, aligned to the END of the chain. A verifier whose scores of a
            prefix do not change as the chain grows (`spec.incremental`) may give only those of
            the newest `chain.num_new` steps; every other verifier gives all. Empty on failure.
        failure: why there are no scores; None when there are.
        notes: what the verifier says about each step in words, aligned like `values`; may be empty.
        parts: scores of component verifiers by name, aligned like `values`; fewer where a
            component scores whole chains only.
        tokens: verifier tokens computed, None when unknown.
        tokens_reused: verifier tokens taken from a cache, None when unknown.
    """

    values: tuple[float, ...] = ()
    failure: ScoreFailure | None = None
    notes: tuple[str, ...] = ()
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tokens: int | None = 0
    tokens_reused: int | None = 0


class NewestScores(Sequence[StepScores]):
    """The scores of many chains' newest steps and nothing else, as columns.

    What a verifier that scores whole batches returns instead of one `StepScores` each: it costs a
    tenth. Only for chains of which the newest step alone awaits a score.

    Args:
        values: the score of each chain's newest step.
        tokens: verifier tokens computed for each; None when unknown.
        tokens_reused: verifier tokens taken from a cache, likewise.

    Raises:
        ValueError: there is not one count, 0 or more, for each value.
        TypeError: something is not a number.
    """

    __slots__ = ("tokens", "tokens_reused", "values")

    def __init__(
        self,
        values: Sequence[float],
        tokens: Sequence[int] | None = None,
        tokens_reused: Sequence[int] | None = None,
    ) -> None:
        self.values = array("d", values)
        self.tokens = self._counts("tokens", tokens)
        self.tokens_reused = self._counts("tokens_reused", tokens_reused)

    def _counts(self, name: str, given: Sequence[int] | None) -> array[int] | None:
        if given is None:
            return None
        counts = array("q", given)
        if len(counts) != len(self.values):
            raise ValueError(f"{name} has {len(counts)} counts for {len(self.values)} scores")
        if counts and min(counts) < 0:
            raise ValueError(f"{name} holds {min(counts)}; a count is 0 or more")
        return counts

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> StepScores: ...
    @overload
    def __getitem__(self, index: slice) -> NewestScores: ...
    def __getitem__(self, index: int | slice) -> StepScores | NewestScores:
        tokens, reused = self.tokens, self.tokens_reused
        if isinstance(index, slice):
            return NewestScores(
                self.values[index],
                None if tokens is None else tokens[index],
                None if reused is None else reused[index],
            )
        return StepScores(
            values=(self.values[index],),
            tokens=None if tokens is None else tokens[index],
            tokens_reused=None if reused is None else reused[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec:
    """What has to be declared before a verifier's scores may be used.

    Attributes:
        name: the name of its score column in trees and traces.
        kind: what a score speaks of: `step` (PRM), `prefix` (one number per prefix) or `outcome`
            (ORM).
        range: `probability` [0, 1], `signed` [-1, 1] or `unbounded`.
        aggregation: how a chain's step scores become one number by default.
        threshold: a step below it counts as wrong; None when no value was tuned.
        incremental: scores of a prefix do not change when the chain grows.
        max_length: longest input in verifier tokens; None means unlimited.
        reserved: strings that must not stand in a question or step (step marks).
        num_parameters: parameters used per token, for FLOPs; None when unknown, 0 for no model.
        provenance: model, revision or hash, head, template and so on.
    """

    name: str
    kind: Kind = "step"
    range: Range = "probability"
    aggregation: Aggregation = "last"
    threshold: float | None = None
    incremental: bool = True
    max_length: int | None = None
    reserved: tuple[str, ...] = ()
    num_parameters: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Verifier(Protocol):
    """Who judges the steps."""

    @property
    def spec(self) -> VerifierSpec:
        """What its scores mean."""
        ...

    def count_tokens(self, chain: Chain) -> int | None:
        """Tokens that scoring the newest `chain.num_new` steps adds to what was needed before.

        For a chain without steps: what the question needs. Paid from the budget before the chain
        is scored. None when it cannot be told; a limit on verifier tokens or FLOPs is refused then.
        """
        ...

    async def score(self, chains: Sequence[Chain]) -> Sequence[StepScores]:
        """Score chains; result i belongs to chain i. A chain that fails fails alone.

        Cancelled when the searches that wait for all of these chains were cut short.

        Raises:
            ConnectionError, TimeoutError: the backend is out of reach for now; it is asked again a
                few times before it counts as failed.
            VerifierError: the backend failed for good; the searches that wait for it end.
        """
        ...


class Strategy(Protocol):
    """A search algorithm: grows the session's tree, does not choose the answer."""

    async def run(self, session: Session) -> None:
        """Grow the tree until the algorithm ends or the session is exhausted."""
        ...


@runtime_checkable
class Demanding(Protocol):
    """A strategy that cannot work with every verifier; asked before anything is loaded."""

    def require(self, verifier: VerifierSpec | None) -> None:
        """Raise `ConfigurationError` when the verifier, or having none, does not fit."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A strategy that goes on with partial chains, or a policy that says whether it can."""

    @property
    def continues(self) -> bool:
        """Whether it does, or can."""
        ...


@runtime_checkable
class Extensible(Protocol):
    """A strategy with parameters that only say how long it goes on.

    A search with larger ones begins as the one with smaller ones, so that it can be resumed.
    """

    @property
    def grows(self) -> Sequence[str]:
        """Names of these parameters."""
        ...


@runtime_checkable
class Declared(Protocol):
    """A verifier class that can tell what its scores mean before its model is loaded."""

    @classmethod
    def declare(cls, **settings: Any) -> VerifierSpec:
        """The spec as far as the settings of the constructor tell it."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A strategy that knows how many chains it ends at most."""

    @property
    def max_chains(self) -> int:
        """The most chains that end, finished or cut short."""
        ...


@runtime_checkable
class Windowed(Protocol):
    """A strategy that asks for more before it has acted on what it asked for."""

    @property
    def window(self) -> int:
        """The most expansions it has asked for and not yet acted on; parts of `gather` aside."""
        ...
