"""What several files share: models, and one engine of the policy; starting one takes a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny import save_tiny
from support.vllm_models import with_head
from support.vllm_settings import ENGINE, SIZES

Folders = dict[str, Path]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A language model, a process reward model and an outcome reward model."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("tokens", "process", "outcome")}
    save_tiny(made["tokens"], **SIZES)
    with_head(made["process"], "Qwen2ForProcessRewardModel", 2)
    with_head(made["outcome"], "LlamaForSequenceClassification", 1)
    return made


@pytest.fixture(scope="session")
def folder(folders: Folders) -> Path:
    return folders["tokens"]


@pytest.fixture(scope="module")
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
