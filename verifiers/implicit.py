"""Implicit process reward models: log-ratios of two language models (Yuan et al. 2024)."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import torch

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES
from stepsearch.policies.reading import Encoded
from stepsearch.search.batching import together
from stepsearch.search.contracts import ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.body import Body
from stepsearch.verifiers.encoders import answer_encoder
from stepsearch.verifiers.formats.implicit import EncodedAnswer, ImplicitFormat
from stepsearch.verifiers.model_verifier import ModelVerifier, check_on_too_long, scored
from stepsearch.verifiers.selfcheck import require

_MAX_SUMS = 1 << 15
_MAX_LOGITS = 256
_MAX_DISTANCE = 0.5


class ImplicitVerifier(ModelVerifier[EncodedAnswer]):
    """Scores a step with the sum of `beta * (logp - logp of reference)` up to it.

    The sum of a prefix does not change as the chain grows: keys, values and sums are kept. The
    softmax over the vocabulary is computed in float32.

    Args:
        model: the reward model: `embedded`, a folder, or a hub name.
        reference: the model that it was trained from.
        format: how both are fed; a mapping is turned into an `ImplicitFormat`.
        name: the name of the score column.
        revision: of a hub model.
        reference_revision: of a hub reference.
        device: `auto`, `cpu`, `cuda:N`, for both.
        dtype: of both models, `auto` being float32 on a CPU and bfloat16 elsewhere.
        on_too_long: `drop` gives a chain above the length limit a typed failure, `fail` ends the
            search. Nothing is ever cut.
        cache_bytes: memory for keys and values of prefixes, for each of the two models.
        selfcheck: score a few probes now and refuse to load when they come out wrong.

    Raises:
        ModelNotFoundError: a model is not where it was looked for.
        ConfigurationError: a setting does not fit.
        VerifierError: the reference is not the model's, tokenizer or template are not what the
            format says, or the self-check failed.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        reference: str | Path,
        format: ImplicitFormat | Mapping[str, Any],
        name: str = "prm",
        revision: str | None = None,
        reference_revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        selfcheck: bool = True,
    ) -> None:
        check_on_too_long(on_too_long)
        self.format = ImplicitFormat.from_mapping(format)
        sources = ((model, revision), (reference, reference_revision))
        self._models = [
            Body(m, revision=r, device=device, dtype=dtype, cache_bytes=cache_bytes)
            for m, r in sources
        ]
        distance = _checked_distance(*self._models)
        self._set_up(
            self.format,
            name,
            self._models,
            answer_encoder(self.format, self._models[0].tokenizer),
            on_too_long=on_too_long,
            provenance={
                "reference": self._models[1].provenance,
                "reference_distance": distance,
            },
        )
        self._sums = _Sums()
        if selfcheck:
            require(self)

    @classmethod
    def declare(
        cls, *, format: ImplicitFormat | Mapping[str, Any], name: str = "prm", **_: Any
    ) -> VerifierSpec:
        """What the scores mean, told by the format alone; the other settings do not matter."""
        return ImplicitFormat.from_mapping(format).declare(name)

    def count_tokens(self, chain: Chain) -> int:
        """Tokens that the newest steps add at both models, or of the prompt without steps."""
        encoded = self.encode(chain)
        if isinstance(encoded, ScoreFailure):
            return 0
        if not len(chain):
            return 2 * encoded.num_prompt
        known = encoded.ends[-1 - chain.num_new]
        # The last token is predicted, not read.
        return 2 * (encoded.ends[-1] - known - (known == encoded.num_prompt))

    async def _score_one(self, chain: Chain, encoded: EncodedAnswer) -> StepScores:
        ids = encoded.ids
        before = encoded.breaks[-1 - chain.num_new]
        known = self._sums.get(ids[:before])
        first = encoded.num_prompt if known is None else before
        places = list(range(first - 1, len(ids) - 1))
        found = await together(
            body.hidden(self.spec.name, ids, places)
            for body in self._bodies
            if isinstance(body, Body)
        )
        states = [state for state in found if isinstance(state, Encoded)]
        for state in found:
            if isinstance(state, StepScores):
                return state
        sums = await asyncio.to_thread(self._add_up, states, ids[first:])
        sums += known or 0.0
        for end in encoded.breaks[-chain.num_new :]:
            if first < end <= len(ids):
                self._sums.put(ids[:end], float(sums[end - first - 1]))
        return scored(
            [float(sums[end - first - 1]) for end in encoded.ends[-chain.num_new :]],
            sum(state.computed for state in states),
            sum(state.reused for state in states),
        )

    def _add_up(self, states: Sequence[Encoded], ids: Sequence[int]) -> torch.Tensor:
        """Running sums of the rewards of some ids, from the states before each of them."""
        targets = torch.tensor(ids)
        ours, theirs = (
            _log_probabilities(body, state, targets)
            for body, state in zip(self._models, states, strict=True)
        )
        return (self.format.beta * (ours - theirs)).cumsum(0)

    @contextmanager
    def uncached(self) -> Iterator[Self]:
        """The same models without caches: what is scored neither uses nor fills them."""
        with super().uncached() as probe:
            probe._sums = _Sums()
            yield probe


class _Sums:
    """Rewards of prefixes, the least recently used ones forgotten."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, ids: Sequence[int]) -> float | None:
        with self._lock:
            return self._found.get(_digest(ids))

    def put(self, ids: Sequence[int], value: float) -> None:
        with self._lock:
            self._found[_digest(ids)] = value
            self._found.move_to_end(_digest(ids))
            if len(self._found) > _MAX_SUMS:
                self._found.popitem(last=False)


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("i", ids).tobytes(), digest_size=16).digest()


def _log_probabilities(body: Body, states: Encoded, targets: torch.Tensor) -> torch.Tensor:
    """Log-probability of every target, [n] float64 on the CPU; few logits exist at a time."""
    found = []
    for start in range(0, len(targets), _MAX_LOGITS):
        hidden = states.hidden[start : start + _MAX_LOGITS].to(body.model.dtype)
        logits = body.model.logits(hidden)
        wanted = targets[start : start + _MAX_LOGITS, None].to(logits.device)
        found.append(logits.log_softmax(dim=-1).gather(1, wanted)[:, 0].double().cpu())
    return torch.cat(found)


def _checked_distance(model: Body, reference: Body) -> float:
    """How far the weights are from the reference's.

    Raises:
        VerifierError: the two have other tokenizers or shapes, are the same, or have nothing to do
            with each other.
    """
    names = f"model={model.provenance['model']} and reference={reference.provenance['model']}"
    hint = "give the model that the reward model was trained from as reference"
    if model.tokenizer.get_vocab() != reference.tokenizer.get_vocab():
        raise VerifierError(f"{names} have different vocabularies; {hint}")
    distance = model.model.distance(reference.model)
    if distance is None:
        raise VerifierError(f"{names} have weights of different shapes; {hint}")
    if distance == 0:
        raise VerifierError(f"{names} have the same weights, so every score would be 0; {hint}")
    if distance > _MAX_DISTANCE:
        raise VerifierError(
            f"the weights of {names} differ by {distance:.2f} of their size, which is no"
            f" fine-tuning; {hint}"
        )
    return distance
