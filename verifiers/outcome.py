"""Outcome reward models on transformers: one score for a whole solution (Cobbe et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES
from stepsearch.search.contracts import VerifierSpec
from stepsearch.verifiers.body import Body
from stepsearch.verifiers.formats.outcome import OutcomeFormat
from stepsearch.verifiers.model_verifier import HeadVerifier, check_on_too_long


class OutcomeVerifier(HeadVerifier):
    """Scores the whole of a chain at the last token of its rendering.

    One number a chain, entered at its newest step. Every chain is tokenised and read as a whole; of
    keys and values only those of a shared prefix are reused.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: how the model is fed and read; a mapping is turned into an `OutcomeFormat`.
        name: the name of the score column.
        adapter: a LoRA adapter, as of `find_adapter`, which then also holds the head; None reads
            the head from the model's own files.
        revision: of a hub model.
        device: `auto`, `cpu`, `cuda:N`.
        dtype: of the model, `auto` being float32 on a CPU and bfloat16 elsewhere; the head is
            always computed in float32.
        on_too_long: `drop` gives a chain above the length limit a typed failure, `fail` ends the
            search. Nothing is ever cut: the end is what is judged.
        cache_bytes: memory for keys and values of prefixes, shared with whoever shares the base.
        selfcheck: score a few probes now and refuse to load when they come out wrong.

    Raises:
        ModelNotFoundError: model, adapter or weights are not where they were looked for.
        ConfigurationError: a setting does not fit.
        VerifierError: head, tokenizer or template are not what the format says, or the self-check
            failed.
    """

    def __init__(
        self,
        *,
        model: str | Path,
        format: OutcomeFormat | Mapping[str, Any],
        name: str = "orm",
        adapter: str | Path | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        on_too_long: Literal["drop", "fail"] = "drop",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        selfcheck: bool = True,
    ) -> None:
        check_on_too_long(on_too_long)
        self.format = OutcomeFormat.from_mapping(format)
        body = Body(
            model,
            adapter=adapter,
            revision=revision,
            device=device,
            dtype=dtype,
            cache_bytes=cache_bytes,
        )
        self._load(self.format, body, name, on_too_long=on_too_long, selfcheck=selfcheck)

    @classmethod
    def declare(
        cls, *, format: OutcomeFormat | Mapping[str, Any], name: str = "orm", **_: Any
    ) -> VerifierSpec:
        """What the scores mean, told by the format alone; the other settings do not matter."""
        return OutcomeFormat.from_mapping(format).declare(name)
