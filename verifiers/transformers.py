"""Token-level process reward models on transformers; a prefix that was scored is never run again.

A causal model's score of a step depends on the steps before it only, so keys and values of a prefix
stay valid while the chain grows (causal attention; Vaswani et al. 2017). The runner keeps them, and
shares one base model among policies and verifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stepsearch.policies.causal import DEFAULT_CACHE_BYTES
from stepsearch.search.contracts import VerifierSpec
from stepsearch.verifiers.body import Body
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.model_verifier import HeadVerifier, check_on_too_long


class TransformersVerifier(HeadVerifier):
    """Scores every step from the hidden state at, or before, the step's mark.

    Text, never a policy's ids, is what it reads; it has its own tokenizer. Scores are those of one
    pass over the whole text, up to the numerics of the device: within 1e-5 in float32. The softmax
    and the head are computed in float32 whatever the model's dtype.

    Args:
        model: `embedded`, a folder, or a hub name.
        format: how the model is fed and read; a mapping is turned into a `StepFormat`.
        name: the name of the score column.
        adapter: a LoRA adapter, as of `find_adapter`, which then also holds the head; None reads
            the head from the model's own files.
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
        self.format = StepFormat.from_mapping(format)
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
        cls, *, format: StepFormat | Mapping[str, Any], name: str = "prm", **_: Any
    ) -> VerifierSpec:
        """What the scores mean, told by the format alone; the other settings do not matter."""
        return StepFormat.from_mapping(format).declare(name)
