"""A model on vLLM whose hidden states or head outputs verifiers read, prefixes reused."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig

from stepsearch.policies.description import Description, describe
from stepsearch.policies.loading import load_tokenizer
from stepsearch.policies.reading import Reading
from stepsearch.policies.vllm_engine import (
    EngineSettings,
    PoolTask,
    VllmEngine,
    known_settings,
    require_installed,
    vllm_version,
)
from stepsearch.search.batching import together
from stepsearch.search.contracts import ScoreFailure, StepScores
from stepsearch.search.errors import ConfigurationError, ModelNotFoundError, VerifierError
from stepsearch.verifiers.body import model_folder
from stepsearch.verifiers.formats.readout import HeadFormat, TokensFormat
from stepsearch.verifiers.heads import Head, Layer
from stepsearch.verifiers.labels import check_labels
from stepsearch.verifiers.tokens import token_ids

_OUTPUTS = ("lm_head.weight", "model.embed_tokens.weight")
_ALTERED = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class VllmBody:
    """An engine that reads sequences, in the place of `Body`.

    What the reused prefix leaves to be computed always ends with the last token, so every score
    is a request of its own that ends where the score is read, whatever vLLM kept of the sequence:

    - two tokens of the language model: the hidden state of the last token, and the two rows of the
      output layer, read from the model's files;
    - a `...ForSequenceClassification`: the outputs of its head for the last token;
    - a `...ForProcessRewardModel` (Qwen): the outputs of its head for all tokens that were
      computed. vLLM's own choice for it (STEP) reads no cache, so it is overridden.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: what is read.
        revision: of a hub model.
        engine: how the engine is started, by the names of `EngineSettings`.

    Raises:
        ModelNotFoundError: the model is not where it was looked for.
        ConfigurationError: vLLM could not start, or cannot read this head.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        format: HeadFormat | TokensFormat,
        revision: str | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        given = known_settings(engine)
        require_installed()
        about = describe(model, revision)
        self.tokenizer = load_tokenizer(model, revision)
        self._about = about
        self._task = _task(about, format)
        self._cached = True
        settings = EngineSettings(
            model=about.location,
            revision=about.revision,
            runner="pooling",
            convert=None if self._task == "token_classify" else self._task,
            **given,
        )
        self.engine = VllmEngine(settings)
        self.provenance: dict[str, Any] = {
            "backend": "vllm",
            "model": about.name,
            "revision": about.revision,
            "model_hash": about.model_hash,
            "adapter": None,
            "dtype": self.engine.dtype,
            "route": self._task,
            "prefix_cache": settings.prefix_cache,
            "versions": {"vllm": vllm_version()},
        }

    @property
    def num_parameters(self) -> int | None:
        """Parameters of the model."""
        return self._about.num_parameters

    def head(self, format: HeadFormat | TokensFormat) -> Head:
        """What makes a score of what the engine gives.

        Raises:
            VerifierError: the tokens are not what the format says.
            ModelNotFoundError: the files lack the output layer.
        """
        if isinstance(format, HeadFormat):
            return Head((), format)
        rows = _output_rows(self._about, token_ids(format, self.tokenizer))
        layer = Layer(rows, rows.new_zeros(2))
        return Head((layer,), HeadFormat(num_outputs=2, activation="softmax", good=0))

    async def read(
        self, name: str, ids: Sequence[int], positions: Sequence[int], head: Head
    ) -> Reading | StepScores:
        """What a head says at some positions, or the typed failure of this sequence alone.

        Raises:
            VerifierError: the engine cannot be used any more.
        """
        reads = [self._read(ids[: position + 1]) for position in positions]
        try:
            found = await asyncio.wrap_future(self.engine.loop.submit(together(reads)))
        except Exception as error:
            if self.engine.is_closed:
                raise VerifierError(f"{name}: {error}") from error
            return StepScores(failure=ScoreFailure("missing", str(error)), tokens=None)
        rows, computed, reused = zip(*found, strict=True)
        return Reading(head.scores(torch.stack(rows)), sum(computed), sum(reused))

    async def _read(self, ids: Sequence[int]) -> tuple[torch.Tensor, int, int]:
        pooled = await self.engine.pool(ids, self._task, cached=self._cached)
        cached = pooled.cached or 0
        expected = len(ids) - cached if self._task == "token_classify" else 1
        if len(pooled.rows) != expected:
            raise VerifierError(
                f"vLLM gave {len(pooled.rows)} rows for {len(ids)} tokens of which {cached} were"
                f" cached, not {expected}; use another version of it"
            )
        return pooled.rows[-1], len(ids) - cached, cached

    def max_length(self, limit: int | None) -> int:
        """The longest input: the format's limit or the engine's."""
        return min(limit or self.engine.max_length, self.engine.max_length)

    @contextmanager
    def uncached(self) -> Iterator[VllmBody]:
        """The same engine, its prefix cache unread."""
        other = copy.copy(self)
        other._cached = False
        yield other

    def close(self) -> None:
        """Stop the engine and give its memory back. Closing twice does nothing."""
        self.engine.close()


def _task(about: Description, format: HeadFormat | TokensFormat) -> PoolTask:
    config = AutoConfig.from_pretrained(about.location, revision=about.revision)
    names = [str(name) for name in config.architectures or []]
    if isinstance(format, TokensFormat):
        altered = [key for key in _ALTERED if getattr(config, key, None) not in (None, 1.0)]
        if altered or not any(name.endswith("ForCausalLM") for name in names):
            raise ConfigurationError(
                f"backend=vllm reads two tokens of a plain causal model; {about.name} is"
                f" {', '.join(names)} {' '.join(altered)}; use backend=transformers"
            )
        return "embed"
    check_labels(format, config)
    if format.prefix == "score" and any(n.endswith("ForProcessRewardModel") for n in names):
        return "token_classify"
    is_classifier = any(name.endswith("ForSequenceClassification") for name in names)
    if format.prefix == "score" and is_classifier and config.num_labels == format.num_outputs:
        return "classify"
    raise ConfigurationError(
        f"backend=vllm reads the heads of ...ForSequenceClassification and"
        f" ...ForProcessRewardModel; {about.name} is {', '.join(names)} with"
        f" format.head.prefix={format.prefix!r}, num_outputs={format.num_outputs};"
        " use backend=transformers"
    )


def _output_rows(about: Description, ids: tuple[int, int]) -> torch.Tensor:
    """[2, hidden] rows of the output layer, float32; the embedding where the two are tied."""
    folder = model_folder(about.location, about.revision)
    for name in _OUTPUTS:
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                if name in tensors.keys():  # noqa: SIM118 - not a mapping
                    part = tensors.get_slice(name)
                    return torch.cat([part[i : i + 1] for i in ids]).float()
    raise ModelNotFoundError(
        f"no *.safetensors in {folder} has {' or '.join(_OUTPUTS)}, the language model's output"
    )
