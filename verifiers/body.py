"""A causal model in memory whose hidden states verifiers read: what their kinds have in common."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import snapshot_download

from stepsearch.policies.causal import CausalRunner
from stepsearch.policies.loading import (
    find_model,
    load_tokenizer,
    model_hash,
    shared_runner,
)
from stepsearch.policies.reading import Encoded, Reading
from stepsearch.policies.shipped import find_adapter
from stepsearch.search.contracts import ScoreFailure, StepScores
from stepsearch.search.errors import ConfigurationError, PolicyError, VerifierError
from stepsearch.verifiers.formats.readout import HeadFormat, TokensFormat
from stepsearch.verifiers.heads import Head, read_head, token_head
from stepsearch.verifiers.labels import check_labels
from stepsearch.verifiers.tokens import token_ids

Result = TypeVar("Result")


class Body:
    """A model with its tokenizer, shared with whoever uses the same base.

    Args:
        model: `embedded`, a folder, or a hub name.
        adapter: a LoRA adapter, as of `find_adapter`; None for the model itself.
        revision: of a hub model.
        device: `auto`, `cpu`, `cuda:N`.
        dtype: of the model; `auto` is float32 on a CPU and bfloat16 elsewhere.
        cache_bytes: memory for keys and values of prefixes.

    Raises:
        ModelNotFoundError: model or adapter are not where they were looked for.
        ConfigurationError: a setting does not fit.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        adapter: str | Path | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        cache_bytes: int,
    ) -> None:
        source = find_model(model, revision)
        self.tokenizer = load_tokenizer(model, revision)
        self.runner = shared_runner(
            model, revision=revision, device=device, dtype=dtype, cache_bytes=cache_bytes
        )
        self.model = self.runner.model
        folder = model_folder(source.location, source.revision)
        self._weights = folder if adapter is None else find_adapter(adapter)
        self._adapter = None if adapter is None else self.runner.load_adapter(self._weights)
        self.provenance: dict[str, Any] = {
            "model": source.name,
            "revision": None if source.is_local else folder.name,
            "model_hash": model_hash(model),
            "adapter": None if adapter is None else str(adapter),
            "adapter_hash": self._adapter,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }

    def head(self, format: HeadFormat | TokensFormat) -> Head:
        """The head that a format asks for.

        Raises:
            ModelNotFoundError: there is no file that could hold it.
            VerifierError: it is not there, or not what the format says.
        """
        if isinstance(format, TokensFormat):
            try:
                return token_head(self.model, token_ids(format, self.tokenizer))
            except ConfigurationError as error:
                raise VerifierError(str(error)) from error
        check_labels(format, self.model.config)
        return read_head(self._weights, format, self.model.shapes.hidden_size, self.model.device)

    async def hidden(
        self, name: str, ids: Sequence[int], positions: Sequence[int]
    ) -> Encoded | StepScores:
        """Hidden states at some positions, or the typed failure of this sequence alone.

        Raises:
            VerifierError: the model cannot be run any more.
        """
        return await self._or_failure(name, self.runner.encode(ids, positions, self._adapter))

    async def read(
        self, name: str, ids: Sequence[int], positions: Sequence[int], head: Head
    ) -> Reading | StepScores:
        """What a head says at some positions, or the typed failure of this sequence alone.

        Raises:
            VerifierError: the model cannot be run any more.
        """
        reading = self.runner.read(ids, positions, head.values, self._adapter)
        return await self._or_failure(name, reading)

    async def _or_failure(self, name: str, result: Awaitable[Result]) -> Result | StepScores:
        try:
            return await result
        except PolicyError as error:
            if self.runner.is_closed:
                raise VerifierError(f"{name}: {error}") from error
            return StepScores(failure=ScoreFailure("missing", str(error)), tokens=None)

    def max_length(self, limit: int | None) -> int:
        """The longest input: the format's limit or the model's context."""
        return min(limit or self.model.max_positions, self.model.max_positions)

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return self.model.num_parameters

    @contextmanager
    def uncached(self) -> Iterator[Body]:
        """The same model with a runner of its own that remembers nothing."""
        other = copy.copy(self)
        other.runner = CausalRunner(self.model, cache_bytes=0)
        try:
            yield other
        finally:
            other.runner.close()


def model_folder(location: str, revision: str | None) -> Path:
    """The folder of a model's weights; that of a hub model is named by its commit."""
    if Path(location).is_dir():
        return Path(location)
    return Path(snapshot_download(location, revision=revision, allow_patterns="*.safetensors"))
