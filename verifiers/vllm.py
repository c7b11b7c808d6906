"""Process and outcome reward models on vLLM; scores are those of the in-process verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import as_dict
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.model_verifier import HeadVerifier, check_on_too_long
from stepsearch.verifiers.outcome import OutcomeVerifier
from stepsearch.verifiers.transformers import TransformersVerifier
from stepsearch.verifiers.vllm_body import VllmBody


class _HasEngine(HeadVerifier):
    def _start(
        self,
        form: StepFormat | OutcomeFormat,
        body: VllmBody,
        name: str,
        *,
        on_too_long: str,
        selfcheck: bool,
    ) -> None:
        try:
            self._load(form, body, name, on_too_long=on_too_long, selfcheck=selfcheck)
        except BaseException:
            body.close()  # nobody will hold it
            raise

    def close(self) -> None:
        """Stop the engine and give its memory back. Closing twice does nothing."""
        for body in self._bodies:
            assert isinstance(body, VllmBody)
            body.close()


class VllmVerifier(_HasEngine, TransformersVerifier):
    """Scores every step as `TransformersVerifier` does, on a vLLM engine of its own.

    Of a prefix that was scored before, vLLM computes again at most one block (16 tokens on a GPU).
    In bfloat16 scores differ from the in-process ones by about 1e-2.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: how the model is fed and read; a mapping is turned into a `StepFormat`.
        name: the name of the score column.
        adapter: must be None: vLLM reads no head beside an adapter.
        revision: of a hub model.
        device: must be `auto`: vLLM takes the GPUs that it sees.
        dtype: of the model; `auto` is the one that it is stored in.
        on_too_long: see `TransformersVerifier`.
        cache_bytes: memory for keys and values; None takes what is left of `engine.gpu_memory`.
        selfcheck: score a few probes now and refuse to load when they come out wrong.
        engine: how the engine is started, by the names of `EngineSettings`.

    Raises:
        ModelNotFoundError: the model is not where it was looked for.
        ConfigurationError: a setting does not fit, vLLM could not start, or cannot read this head.
        VerifierError: as for `TransformersVerifier`.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        format: StepFormat | Mapping[str, Any],
        name: str = "prm",
        adapter: None = None,
        revision: str | None = None,
        device: Literal["auto"] = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int | None = None,
        selfcheck: bool = True,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        check_on_too_long(on_too_long)
        self.format = StepFormat.from_mapping(format)
        settings = _settings(adapter, device, dtype, cache_bytes, engine)
        body = VllmBody(model, format=self.format.head, revision=revision, engine=settings)
        self._start(self.format, body, name, on_too_long=on_too_long, selfcheck=selfcheck)


class VllmOutcomeVerifier(_HasEngine, OutcomeVerifier):
    """Scores whole chains as `OutcomeVerifier` does, on a vLLM engine of its own.

    Args: as for `VllmVerifier`, with an `OutcomeFormat`.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        format: OutcomeFormat | Mapping[str, Any],
        name: str = "orm",
        adapter: None = None,
        revision: str | None = None,
        device: Literal["auto"] = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int | None = None,
        selfcheck: bool = True,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        check_on_too_long(on_too_long)
        self.format = OutcomeFormat.from_mapping(format)
        settings = _settings(adapter, device, dtype, cache_bytes, engine)
        body = VllmBody(model, format=self.format.head, revision=revision, engine=settings)
        self._start(self.format, body, name, on_too_long=on_too_long, selfcheck=selfcheck)


def _settings(
    adapter: object,
    device: str,
    dtype: str,
    cache_bytes: int | None,
    engine: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Settings of the engine; those that it cannot honour are refused."""
    if adapter is not None:
        raise ConfigurationError(
            f"verifier.adapter={adapter}: vLLM reads no head beside an adapter; merge it into the"
            " model, or use the verifier without vLLM"
        )
    if device != "auto":
        raise ConfigurationError(
            f"verifier.device={device!r}: vLLM takes the GPUs that it sees; set"
            " CUDA_VISIBLE_DEVICES instead"
        )
    return {"dtype": dtype, "cache_bytes": cache_bytes} | as_dict("verifier.engine", engine)
