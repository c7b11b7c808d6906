"""One engine for all tests of the policy: starting one takes a minute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny import save_tiny

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

# What vLLM's attention on a CPU can run: heads of 32 and blocks of 32 tokens.
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "eager": True,
    "max_seqs": 64,
    "options": {"block_size": 32},
}


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
