"""Samples of two problems that several tests read out, and a Ray that is theirs alone."""

import shutil
import subprocess
import sys
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
    """No cluster that others left or use is joined; its sockets need a short path.

    Where the machine does not let Ray itself start, there is nothing to test.
    """
    folder = tempfile.mkdtemp(prefix="ray")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    script = "import ray; ray.init(num_cpus=1, include_dashboard=False)"
    tried = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    if tried.returncode:
        pytest.skip(f"Ray does not start here: {(tried.stderr.strip() or '?').splitlines()[-1]}")
    yield
    shutil.rmtree(folder, ignore_errors=True)
