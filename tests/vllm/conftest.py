"""One engine for all tests of the policy: starting one takes a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny import save_tiny
from support.vllm_settings import ENGINE, SIZES


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), **SIZES)


@pytest.fixture(scope="session")
def policy(folder: Path) -> Iterator[Any]:
    from stepsearch.policies.vllm import VllmPolicy

    made = VllmPolicy(
        model=folder,
        prompt_format={"system": None},
        logprobs=True,
        engine=ENGINE | {"max_length": 512, "stream_interval": 8},
    )
    yield made
    made.close()
    assert made.engine.is_closed
