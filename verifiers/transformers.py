"""Token-level process reward models on transformers; a prefix that was scored is never run again.

A causal model's score of a step depends on the steps before it only, so keys and values of a prefix
stay valid while the chain grows (causal attention; Vaswani et al. 2017). The runner keeps them, and
shares one base model among policies and verifiers.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES, Encoded
from stepsearch.search.contracts import ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.tree import Chain
from stepsearch.verifiers.body import Body, check_on_too_long, raise_too_long, scored, too_long
from stepsearch.verifiers.encoders import chain_encoder
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.selfcheck import require

if TYPE_CHECKING:
    from stepsearch.verifiers.vllm_body import VllmBody


class TransformersVerifier:
    """Scores every step from the hidden state at, or before, the step's mark.

    Text, never a policy's ids, is what it reads; it has its own tokenizer. Scores are those of one
    pass over the whole text, up to the numerics of the device: within 1e-5 in float32. The softmax
    and the head are computed in float32 whatever the model's dtype.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: how the model is fed and read; a mapping is turned into a `StepFormat`.
        name: the name of the score column.
        adapter: folder of a LoRA adapter, which then also holds the head; None reads the head from
            the model's own files.
        revision: of a hub model.
        device: `auto`, `cpu`, `cuda:N`.
        dtype: of the model, `auto` being float32 on a CPU and bfloat16 elsewhere.
        on_too_long: what a chain above the length limit does: `drop` gives that chain a typed
            failure and the search goes on without it; `fail` ends the search. Nothing is ever cut.
        cache_bytes: memory for keys and values of prefixes, shared with whoever shares the base.
        selfcheck: score a few probes now and refuse to load when they come out wrong; see
            `selfcheck.selfcheck`.

    Raises:
        ModelNotFoundError: model, adapter or weights are not where they were looked for.
        ConfigurationError: a setting does not fit.
        VerifierError: head, mark, tokenizer or template are not what the format says, or the
            self-check failed.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        format: StepFormat | Mapping[str, Any],
        name: str = "prm",
        adapter: str | Path | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        selfcheck: bool = True,
    ) -> None:
        check_on_too_long(on_too_long)
        self.format = format if isinstance(format, StepFormat) else StepFormat.from_mapping(format)
        self._fails_when_too_long = on_too_long == "fail"
        self._set_up(
            Body(
                model,
                adapter=adapter,
                revision=revision,
                device=device,
                dtype=dtype,
                cache_bytes=cache_bytes,
            ),
            name,
        )
        if selfcheck:
            require(self)

    def _set_up(self, body: Body | VllmBody, name: str) -> None:
        self._body = body
        self._encode, template = chain_encoder(self.format, self._body.tokenizer)
        self._head = self._body.head(self.format.head)
        self._max_length = self._body.max_length(self.format.max_length)
        self.spec = VerifierSpec(
            name=name,
            range=self.format.head.range,
            aggregation=self.format.aggregation,
            threshold=self.format.threshold,
            max_length=self._max_length,
            reserved=self.format.reserved,
            num_parameters=body.num_parameters,
            provenance={
                **self._body.provenance,
                "template_hash": template.hash,
                "template_date": template.date,
                "format": asdict(self.format),
            },
        )

    @classmethod
    def declare(
        cls, *, format: StepFormat | Mapping[str, Any], name: str = "prm", **_: Any
    ) -> VerifierSpec:
        """What the scores mean, told by the format alone; the other settings do not matter."""
        if not isinstance(format, StepFormat):
            format = StepFormat.from_mapping(format)
        return VerifierSpec(
            name=name,
            range=format.head.range,
            aggregation=format.aggregation,
            threshold=format.threshold,
        )

    def count_tokens(self, chain: Chain) -> int:
        """Tokens that the newest steps add, or of the prompt when there are no steps."""
        encoded = self.encode(chain)
        if isinstance(encoded, ScoreFailure):
            return 0
        return len(encoded.ids) - (encoded.num_known if len(chain) else 0)

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        """Score the newest steps of every chain; all chains are handed to the runner at once.

        Raises:
            VerifierError: the model cannot be run any more, or a chain is too long and
                `on_too_long` is `fail`.
        """
        encoded = [self.encode(chain) for chain in chains]
        if self._fails_when_too_long:
            raise_too_long(self.spec.name, encoded)
        return await asyncio.gather(*map(self._score_one, encoded))

    async def _score_one(self, encoded: EncodedChain | ScoreFailure) -> StepScores:
        if isinstance(encoded, ScoreFailure):
            return StepScores(failure=encoded)
        if not encoded.positions:
            return StepScores()
        states = await self._body.hidden(self.spec.name, encoded.ids, encoded.positions)
        if not isinstance(states, Encoded):
            return states
        return scored(self._head.scores(states.hidden), states.computed, states.reused)

    def encode(self, chain: Chain) -> EncodedChain | ScoreFailure:
        """What the model reads for a chain, and where its newest steps are scored."""
        encoded = self._encode(chain)
        if isinstance(encoded, EncodedChain) and len(encoded.ids) > self._max_length:
            return too_long(len(encoded.ids), self._max_length)
        return encoded

    @contextmanager
    def uncached(self) -> Iterator[TransformersVerifier]:
        """The same model without its cache: what is scored neither uses nor fills it."""
        probe = copy.copy(self)
        probe._body = self._body.uncached()
        probe._fails_when_too_long = False
        try:
            yield probe
        finally:
            probe._body.close()
