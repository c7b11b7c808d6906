"""Verifiers on real engines: the scores of the in-process ones, and prefixes that are reused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny import save_tiny
from support.vllm_models import CLASSES, OUTCOME, TOKENS, chains_of, score
from support.vllm_settings import ENGINE, SIZES

from stepsearch.search.errors import ConfigurationError
from stepsearch.testing.verifier import check_verifier
from stepsearch.verifiers.outcome import OutcomeVerifier
from stepsearch.verifiers.transformers import TransformersVerifier
from stepsearch.verifiers.vllm import VllmOutcomeVerifier, VllmVerifier

pytestmark = pytest.mark.vllm

CPU: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
ENGINES = {"engine": ENGINE | {"max_length": 512}}
FORMATS: dict[str, dict[str, Any]] = {"tokens": TOKENS, "process": CLASSES, "outcome": OUTCOME}


@pytest.fixture(scope="module", params=list(FORMATS))
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[tuple[Any, Any]]:
    whole = request.param == "outcome"
    ours, theirs = (
        (VllmOutcomeVerifier, OutcomeVerifier) if whole else (VllmVerifier, TransformersVerifier)
    )
    model: dict[str, Any] = {"model": folders[request.param], "format": FORMATS[request.param]}
    made: Any = ours(**model, **ENGINES)
    yield made, theirs(**model, **CPU)
    made.close()


def test_scores_are_those_of_the_verifier_in_process(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    chains = chains_of("How many are left?") + chains_of("How many?")
    a, b = score(ours, chains), score(theirs, chains)
    assert all(s.failure is None for s in (*a, *b))
    for one, other in zip(a, b, strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-4)
    assert len({round(s.values[0], 4) for s in a}) > 6


def test_it_keeps_the_contract(pair: tuple[Any, Any]) -> None:
    check_verifier(pair[0])


def test_a_prefix_is_computed_once(pair: tuple[Any, Any]) -> None:
    """Blocks have 32 tokens here: what is computed again is less than one of them a step."""
    ours, _ = pair
    chains = chains_of("A question that nobody asked before?")
    scored = [score(ours, [chain])[0] for chain in chains]
    lengths = [ours.encode(chain).positions[-1] + 1 for chain in chains]
    assert [s.tokens + s.tokens_reused for s in scored] == lengths
    for before, length, s in zip(lengths, lengths[1:], scored[1:], strict=False):
        assert s.tokens <= length - before + 32 + 8
    again = score(ours, [chains[-1]])[0]
    assert again.tokens <= 32
    assert again.values == pytest.approx(scored[-1].values, abs=1e-5)


def test_a_head_that_vllm_cannot_read_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    with pytest.raises(ConfigurationError, match="backend=transformers"):
        VllmVerifier(model=tmp_path, format=CLASSES, **ENGINES)
