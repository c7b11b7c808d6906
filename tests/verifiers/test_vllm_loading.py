"""Loading a verifier on vLLM, without vLLM: the engine does not outlive what went wrong."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
from support.tokenizers import qwen_tokenizer
from support.vllm_models import CLASSES, OUTCOME

from stepsearch.search.contracts import ScoreFailure, StepScores
from stepsearch.search.errors import VerifierError
from stepsearch.verifiers import vllm
from stepsearch.verifiers.heads import Head


class Body:
    """An engine that loses every score, in the place of `VllmBody`."""

    num_parameters = None
    provenance: ClassVar[dict[str, Any]] = {}
    closed = 0

    def __init__(self, *_: object, format: Any, **__: object) -> None:
        self.tokenizer = qwen_tokenizer()

    def head(self, format: Any) -> Head:
        return Head((), format)

    def max_length(self, limit: int | None) -> int:
        return 1000

    def uncached(self) -> Any:
        return nullcontext(self)

    async def read(self, *_: object) -> StepScores:
        return StepScores(failure=ScoreFailure("missing", "lost"))

    def close(self) -> None:
        type(self).closed += 1


@pytest.mark.parametrize(
    ("kind", "format"), [(vllm.VllmVerifier, CLASSES), (vllm.VllmOutcomeVerifier, OUTCOME)]
)
def test_an_engine_that_fails_its_selfcheck_is_stopped(
    kind: Any, format: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Body, "closed", 0)
    monkeypatch.setattr(vllm, "VllmBody", Body)
    with pytest.raises(VerifierError, match="failed its self-check"):
        kind(model="x", format=format)
    assert Body.closed == 1
    made = kind(model="x", format=format, selfcheck=False)
    assert Body.closed == 1, "what was loaded keeps its engine"
    made.close()
