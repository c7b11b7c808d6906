"""What is set for one engine does not stay for the next; needs no vLLM."""

from __future__ import annotations

import os

import pytest

from stepsearch.policies.vllm_engine import _batch_invariance

NAME = "VLLM_BATCH_INVARIANT"


@pytest.mark.parametrize("before", [None, "0", "1"])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_batch_invariance_is_set_for_one_engine(
    monkeypatch: pytest.MonkeyPatch, before: str | None, is_wanted: bool
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    with _batch_invariance(is_wanted):
        assert os.environ.get(NAME) == ("1" if is_wanted else before)
    assert os.environ.get(NAME) == before
