"""The values that cross every border of the system: no behaviour, no model, no I/O."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from stepsearch.search.errors import ConfigurationError, UnjudgedError
from stepsearch.search.parameters import number, whole

if TYPE_CHECKING:
    from stepsearch.search.contracts import VerifierSpec
    from stepsearch.search.tree import Tree

Stop = Literal["step", "eos", "length", "context", "budget", "loop"]
"""Why a step ended: its separator, the model's own end, the step's token limit, no room left in
the context, the problem's budget, or a model that repeats itself. Only `step` can be continued."""

STOPS: tuple[Stop, ...] = ("step", "eos", "length", "context", "budget", "loop")

SolutionStop = Literal[
    "done",
    "settled",
    "budget",
    "max_steps",
    "context",
    "abstained",
    "verifier_failed",
    "policy_failed",
    "failed",
    "cancelled",
]
"""Why a search ended; `failed` is by what is neither policy nor verifier: strategy or task."""

FAILURES: tuple[SolutionStop, ...] = ("policy_failed", "verifier_failed", "failed")
"""The stops that an error is the cause of; `Solution.error` says which."""

_NO_LIMIT = "null (None) is no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question to solve.

    Attributes:
        text: the question as the user wrote it.
        id: identifies the problem in seeds, results and traces; empty means "derive it from the
            text", so that the same question gets the same random numbers in every run.
        answer: the gold answer, used for grading only; never shown to a policy or a verifier.
        meta: whatever the data set knows about the problem.
    """

    text: str
    id: str = ""
    answer: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {"text": str, "id": str, "answer": str | None, "meta": Mapping}
        for name, kind in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigurationError(
                    f"{name}={value!r} of a problem must be "
                    f"{'a mapping' if name == 'meta' else 'text'}"
                )
        if not self.id:
            text = self.text.encode(errors="surrogatepass")
            digest = hashlib.blake2b(text, digest_size=8).hexdigest()
            object.__setattr__(self, "id", digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a solution, as the policy produced it.

    Attributes:
        text: this step's slice of an incremental decode of the whole chain, separator included, so
            that joining the texts of a chain gives back its exact text.
        token_ids: the ids that were sampled, the end-of-sequence id included when there was one.
        stop: why the step ended.
        logprob: sum over its tokens of log p(token | prefix) under the model at temperature 1
            before any truncation, in nats; None when the backend does not tell.
        count: how many tokens were sampled, where the ids are unknown; else leave it None.
        num_tokens: how many tokens were sampled; follows from the others.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    stop: Stop = "step"
    logprob: float | None = None
    count: int | None = None
    num_tokens: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Stored, since it is read several times for every step of every search.
        count = len(self.token_ids) if self.count is None else self.count
        object.__setattr__(self, "num_tokens", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was spent. Additive. None means that a backend could not tell.

    Attributes:
        policy_tokens: tokens the policy generated.
        prompt_tokens: prefix tokens the policy computed.
        prompt_tokens_reused: prefix tokens the policy took from its cache.
        verifier_tokens: tokens the verifiers computed; calls that raised tell nothing of theirs.
        verifier_tokens_reused: tokens the verifiers took from their cache.
        policy_calls: continuations asked of the policy.
        verifier_calls: chains given to the verifier.
        completions: finished chains.
        seconds: wall time of the search.
        flops: 2 x parameters x tokens computed, policy and verifiers together.
    """

    policy_tokens: int = 0
    prompt_tokens: int | None = 0
    prompt_tokens_reused: int | None = 0
    verifier_tokens: int | None = 0
    verifier_tokens_reused: int | None = 0
    policy_calls: int = 0
    verifier_calls: int = 0
    completions: int = 0
    seconds: float = 0.0
    flops: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        def add(name: str) -> Any:
            a, b = getattr(self, name), getattr(other, name)
            return None if a is None or b is None else a + b

        return Usage(**{f.name: add(f.name) for f in fields(Usage)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Hard limits for one problem; None means no limit.

    All but `seconds` are deterministic: the same seed under the same budget gives the same tree,
    whatever the timing. `seconds` depends on the machine.

    Raises:
        ConfigurationError: a limit is not a number above 0; the first three are whole numbers.
    """

    policy_tokens: int | None = 2048
    verifier_tokens: int | None = None
    completions: int | None = None
    flops: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for f in fields(Budget):
            name, value = f"budget.{f.name}", getattr(self, f.name)
            if value is None:
                continue
            if f.name in ("flops", "seconds"):
                value = number(name, value, above=0, hint=_NO_LIMIT)
            else:
                value = whole(name, value, least=1, hint=_NO_LIMIT)
            object.__setattr__(self, f.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStep:
    """A step of the chosen chain with what the verifier said.

    Attributes:
        score: the verifier's score, None when it failed or was not asked.
        note: what the verifier says about the step, or why scoring failed; may be empty.
    """

    text: str
    score: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A chain that may become the solution.

    Attributes:
        node: the chain's last node in the tree.
        answer: the extracted answer, None when there is none (such a chain does not vote).
        score: the aggregated score of the chain, None when it has none.
        stop: how the chain ended; anything but `eos` means that it was cut.
    """

    node: int
    answer: str | None
    score: float | None
    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The result of one search.

    Attributes:
        problem: the problem that was solved.
        answer: the chosen answer, None when no chain finished or it was withheld.
        score: what selection ranked the answer by: the chain's score (`best`), the share of the
            score mass (`weighted`) or of the votes (`majority`); None when there is no answer.
        node: last node of the chosen chain in the tree; None when there is none.
        steps: the steps of the chosen chain.
        candidates: every chain that took part in the selection.
        usage: everything that was spent.
        tree: the whole search tree.
        stop: why the search ended.
        error: what failed, when something did.
        chains_saved: how many more chains the strategy could have ended when its settled answer
            stopped it; None when it has no bound, or nothing was settled.
        verifier: what the scores of the steps mean; None when there was no verifier.
    """

    problem: Problem
    answer: str | None
    score: float | None
    node: int | None
    steps: tuple[ScoredStep, ...] = field(repr=False)
    candidates: tuple[Candidate, ...] = field(repr=False)
    usage: Usage
    tree: Tree = field(repr=False)
    stop: SolutionStop
    error: str | None = None
    chains_saved: int | None = None
    verifier: VerifierSpec | None = None

    @property
    def text(self) -> str:
        """The chosen chain as one text."""
        return "".join(step.text for step in self.steps)

    def first_error(self, threshold: float | None = None) -> int | None:
        """The first step judged wrong, a position in `steps`; None when none is.

        Args:
            threshold: a step whose score is below it is judged wrong; None takes the verifier's
                own.

        Raises:
            UnjudgedError: there is no threshold, or a step before the first wrong one has no
                score, so that nobody knows.
        """
        if threshold is None:
            threshold = None if self.verifier is None else self.verifier.threshold
        if threshold is None:
            name = None if self.verifier is None else self.verifier.name
            raise UnjudgedError(
                f"verifier {name!r} has no threshold of its own; give first_error(threshold=...)"
                if name
                else "there was no verifier, so no step was judged; solve with one"
            )
        if math.isnan(threshold):
            raise UnjudgedError("threshold=nan judges nothing; give a number")
        for index, step in enumerate(self.steps):
            if step.score is None:
                raise UnjudgedError(
                    f"step {index} has no score ({step.note or 'it was not asked for'}), so the "
                    "first wrong step is unknown; use a verifier that scores every step"
                )
            if step.score < threshold:
                return index
        return None
