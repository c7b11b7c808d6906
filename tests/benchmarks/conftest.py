"""Samples of two problems that several tests read out, and a Ray that is theirs alone."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.samples import problem, said, write


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return write(
        tmp_path / "samples.jsonl",
        [
            problem(
                "a", 7,
                said(5, prm=[0.9, 0.2], orm=0.3),
                said(7, prm=[0.1, 0.8], orm=0.9),
                said("7.0", prm=[0.5, 0.1], orm=0.2),
                said(5, prm=[0.4, 0.3], orm=0.1),
            ),
            problem(
                "b", "1/2",
                said("0.5", prm=[0.6], orm=0.4),
                ("no answer here", {"prm": [1.0], "orm": 1.0}),
                said(3, prm=[0.7, 0.65], orm=0.5),
                said(r"\\frac{1}{2}".replace("\\\\", "\\"), prm=[0.3, 0.2], orm=0.3),
            ),
        ],
    )  # fmt: skip


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No cluster that others left or use is joined; its sockets need a short path."""
    folder = tempfile.mkdtemp(prefix="ray")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    shutil.rmtree(folder, ignore_errors=True)
