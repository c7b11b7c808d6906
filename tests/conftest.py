"""Fixtures for all tests: the data folder and the embedded model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

DATA_VARIABLE = "STEPSEARCH_DATA"
DATA_FOLDERS = ("data/gsm8k", "data/multiarith", "data/samples", "models")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the data sets and interim models that are not part of the repository.

    A machine without them skips what needs them; where the variable is set, nothing may skip.
    """
    value = os.environ.get(DATA_VARIABLE)
    if not value:
        pytest.skip(f"{DATA_VARIABLE} is not set: no data sets and interim models on this machine")
    folder = Path(value)
    missing = [name for name in DATA_FOLDERS if not (folder / name).is_dir()]
    if missing:
        pytest.fail(f"{DATA_VARIABLE}={value} lacks {', '.join(missing)}")
    return folder


@pytest.fixture(scope="session")
def embedded_path() -> Path:
    """Folder of the embedded model, fetched and converted once per machine."""
    from stepsearch.policies.embedded import embedded_model

    return embedded_model()


@pytest.fixture(autouse=True)
def _two_torch_threads() -> None:
    """Few threads, so that tests neither crowd a small machine nor depend on its core count."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 2:
        torch.set_num_threads(2)
