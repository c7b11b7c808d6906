"""A GPU is never given to two runs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stepsearch.benchmarks import device_lock
from stepsearch.benchmarks.device_lock import devices, visible_devices
from stepsearch.search.errors import ConfigurationError

HOLD = """
import sys, time
from stepsearch.benchmarks.device_lock import devices
with devices({count}) as names:
    print(*names, time.monotonic(), flush=True)
    time.sleep({seconds})
    print(time.monotonic(), flush=True)
"""


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-77")
    monkeypatch.setattr(device_lock, "_mine", [])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    device_lock._mine.clear()


def hold(count: int, seconds: float) -> subprocess.Popen[str]:
    script = HOLD.format(count=count, seconds=seconds)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_a_run_sees_its_own_devices_only() -> None:
    with devices(1) as names:
        assert names == ["3"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert visible_devices() == ["3", "GPU-77"]
    with devices(None) as names:
        assert names == []


def test_a_process_keeps_the_device_it_began_with() -> None:
    with devices(1):
        pass
    with devices(1) as names:
        assert names == ["3"]


def test_runs_never_share_a_device() -> None:
    runs = [hold(1, 0.5) for _ in range(5)]
    spans = {}
    for index, run in enumerate(runs):
        told = run.communicate(timeout=60)[0].split()
        spans[index] = (told[0], float(told[1]), float(told[2]))
    assert {name for name, _, _ in spans.values()} == {"3", "GPU-77"}, "both are used"
    for i, (name, start, end) in spans.items():
        for j, (other, begin, finish) in spans.items():
            assert i == j or name != other or end <= begin or finish <= start


def test_a_killed_run_gives_its_devices_back() -> None:
    run = hold(2, 60)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("3 GPU-77")
    run.kill()
    run.communicate()
    started = time.monotonic()
    with devices(2) as names:
        assert names == ["3", "GPU-77"]
    assert time.monotonic() - started < 5


def test_more_than_there_are() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"devices=3: there are 2 GPUs .*\(3, GPU-77\)"),
        devices(3),
    ):
        pass
