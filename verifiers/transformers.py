"""Token-level process reward models on transformers; a prefix that was scored is never run again.

A causal model's score of a step depends on the steps before it only, so keys and values of a prefix
stay valid while the chain grows (causal attention; Vaswani et al. 2017). The runner keeps them, and
shares one base model among policies and verifiers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import snapshot_download
from transformers import PreTrainedTokenizerBase

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES
from stepsearch.policies.loading import (
    Source,
    find_model,
    load_tokenizer,
    model_hash,
    shared_runner,
)
from stepsearch.policies.prompt import PromptEncoder, PromptFormat
from stepsearch.search.contracts import ScoreFailure, StepScores, VerifierSpec
from stepsearch.search.errors import ConfigurationError, PolicyError, VerifierError
from stepsearch.search.tree import Chain
from stepsearch.verifiers.formats.encoding import ChainEncoder, EncodedChain
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.heads import read_head


class TransformersVerifier:
    """Scores every step with a head on the hidden state at the step's mark.

    Text, never a policy's ids, is what it reads; it has its own tokenizer. Scores are those of one
    pass over the whole text, up to the numerics of the device: within 1e-5 in float32.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: how the model is fed and read; a mapping is turned into a `StepFormat`.
        name: the name of the score column.
        adapter: folder of a LoRA adapter, which then also holds the head; None reads the head from
            the model's own files.
        revision: of a hub model.
        device: `auto`, `cpu`, `cuda:N`.
        dtype: of the model, `auto` being float32 on a CPU and bfloat16 elsewhere; the head is
            always computed in float32.
        on_too_long: what a chain above the length limit does: `drop` gives that chain a typed
            failure and the search goes on without it; `fail` ends the search. Nothing is ever cut.
        cache_bytes: memory for keys and values of prefixes, shared with whoever shares the base.

    Raises:
        ModelNotFoundError: model, adapter or weights are not where they were looked for.
        ConfigurationError: a setting does not fit.
        VerifierError: the head or the step mark is not what the format says.
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
    ) -> None:
        if on_too_long not in ("drop", "fail"):
            raise ConfigurationError(f"on_too_long={on_too_long!r} must be drop or fail")
        self.format = format if isinstance(format, StepFormat) else StepFormat.from_mapping(format)
        self._fails_when_too_long = on_too_long == "fail"
        source = find_model(model, revision)
        tokenizer = load_tokenizer(model, revision)
        prompt = _prompt_encoder(self.format, tokenizer)
        self._encode = _chain_encoder(self.format, tokenizer, prompt)
        self._runner = shared_runner(
            model, revision=revision, device=device, dtype=dtype, cache_bytes=cache_bytes
        )
        body = self._runner.model
        folder = _folder(source)
        weights = folder if adapter is None else Path(adapter).expanduser()
        self._adapter = None if adapter is None else self._runner.load_adapter(weights)
        self._head = read_head(
            weights,
            self.format.head,
            body.shapes.hidden_size,
            body.device,
        )
        self._max_length = min(self.format.max_length or body.max_positions, body.max_positions)
        self.spec = VerifierSpec(
            name=name,
            aggregation=self.format.aggregation,
            threshold=self.format.threshold,
            max_length=self._max_length,
            reserved=self.format.reserved,
            num_parameters=body.num_parameters,
            provenance={
                "model": source.name,
                "revision": None if source.is_local else folder.name,
                "model_hash": model_hash(model),
                "adapter": None if adapter is None else str(adapter),
                "adapter_hash": self._adapter,
                "template_hash": None if prompt is None else prompt.template_hash,
                "format": asdict(self.format),
                "device": str(body.device),
                "dtype": str(body.dtype).removeprefix("torch."),
            },
        )

    @classmethod
    def declare(
        cls, *, format: StepFormat | Mapping[str, Any], name: str = "prm", **_: Any
    ) -> VerifierSpec:
        """What the scores mean, told by the format alone; the other settings do not matter."""
        if not isinstance(format, StepFormat):
            format = StepFormat.from_mapping(format)
        return VerifierSpec(name=name, aggregation=format.aggregation, threshold=format.threshold)

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
            for result in encoded:
                if isinstance(result, ScoreFailure) and result.kind == "too_long":
                    raise VerifierError(f"{self.spec.name}: {result.message}")
        return await asyncio.gather(*map(self._score_one, encoded))

    async def _score_one(self, encoded: EncodedChain | ScoreFailure) -> StepScores:
        if isinstance(encoded, ScoreFailure):
            return StepScores(failure=encoded)
        if not encoded.positions:
            return StepScores()
        try:
            hidden, computed, reused = await self._runner.encode(
                encoded.ids, encoded.positions, self._adapter
            )
        except PolicyError as error:
            if self._runner.is_closed:
                raise VerifierError(f"{self.spec.name}: {error}") from error
            return StepScores(failure=ScoreFailure("missing", str(error)), tokens=None)
        values = tuple(self._head.scores(hidden))
        failure = None
        if not all(map(math.isfinite, values)):
            failure = ScoreFailure(
                "not_a_number",
                "the head's output is not finite; where dtype is float16, use bfloat16 or float32",
            )
        return StepScores(
            values=() if failure else values, failure=failure, tokens=computed, tokens_reused=reused
        )

    def encode(self, chain: Chain) -> EncodedChain | ScoreFailure:
        """What the model reads for a chain, and where its newest steps are scored."""
        encoded = self._encode(chain)
        if isinstance(encoded, EncodedChain) and len(encoded.ids) > self._max_length:
            return ScoreFailure(
                "too_long",
                f"the chain has {len(encoded.ids)} verifier tokens, the limit is "
                f"{self._max_length} (format.max_length and the model's context)",
            )
        return encoded


def _prompt_encoder(format: StepFormat, tokenizer: PreTrainedTokenizerBase) -> PromptEncoder | None:
    if format.prompt == "plain":
        return None
    return PromptEncoder(tokenizer, PromptFormat(system=format.system, template=format.template))


def _chain_encoder(
    format: StepFormat, tokenizer: PreTrainedTokenizerBase, prompt: PromptEncoder | None
) -> ChainEncoder:
    def encode_text(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def encode_plain(question: str) -> list[int]:
        bos = tokenizer.bos_token_id
        return [*([] if bos is None else [bos]), *encode_text(question + format.joiner)]

    return ChainEncoder(format, encode_plain if prompt is None else prompt.encode, encode_text)


def _folder(source: Source) -> Path:
    """The model's folder; that of a hub model is named by its commit."""
    if source.is_local:
        return Path(source.location)
    return Path(
        snapshot_download(source.location, revision=source.revision, allow_patterns="*.safetensors")
    )
