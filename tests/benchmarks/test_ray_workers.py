"""One run over Ray actors: the result of one process, whatever happens to a worker."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stepsearch.benchmarks.ray_workers import Layout, require_room
from stepsearch.cli import main
from stepsearch.search.errors import ConfigurationError

TESTS = Path(__file__).parents[1]
COUNT = 200


def problems(folder: Path, count: int) -> Path:
    path = folder / "problems.jsonl"
    rows = [{"question": f"question {i}", "answer": i % 4} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def start(folder: Path, name: str, *overrides: str, count: int = COUNT) -> subprocess.Popen[str]:
    arguments = [
        *(
            "hydra.searchpath=[pkg://support.worldconf]",
            "policy=world",
            "verifier=rule",
            "task=exact",
        ),
        "+policy.latency={_target_:support.worlds.latency,scale:0.4}",
        *("benchmark=file", f"benchmark.path={problems(folder, count)}", "search=best_of_n"),
        *(f"runs={folder / name}", "concurrency=4"),
    ]
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stepsearch", "bench", *arguments, *overrides],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stderr=log,
            stdout=subprocess.DEVNULL,
            text=True,
        )


def table(root: Path) -> list[str]:
    [path] = root.glob("*/results.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    seconds = lines[0].split(",").index("seconds")
    return [",".join(v for i, v in enumerate(li.split(",")) if i != seconds) for li in lines]


def ids(root: Path) -> list[str]:
    [path] = root.glob("*/traces.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["id"] for line in lines]


def wait_for(folder: Path, name: str, num_traces: int) -> list[int]:
    """Wait until so many problems are kept; the processes of the workers."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = list((folder / name).glob("*/traces.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= num_traces:
            told = re.search(r"workers, processes (.*)", (folder / f"{name}.log").read_text())
            assert told is not None
            return [int(pid) for pid in told[1].split()]
        time.sleep(0.05)
    raise AssertionError((folder / f"{name}.log").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("own_ray")
def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    alone = start(tmp_path, "alone")
    assert alone.wait(200) == 0, (tmp_path / "alone.log").read_text()
    for workers in (2, 4):
        name = f"{workers} workers"
        sharded = start(tmp_path, name, "workers=ray", f"ray.workers={workers}", "ray.cpus=0.25")
        victim = wait_for(tmp_path, name, 50)[0]
        os.kill(victim, signal.SIGKILL)
        assert sharded.wait(200) == 0, (tmp_path / f"{name}.log").read_text()
        assert "a worker was lost" in (tmp_path / f"{name}.log").read_text()
        assert table(tmp_path / name) == table(tmp_path / "alone")
        assert sorted(ids(tmp_path / name)) == sorted(f"file-{i}" for i in range(COUNT)), "once"


def test_more_workers_than_there_is_room_for_are_refused() -> None:
    layout = Layout(address=None, workers=4, cpus=1, gpus=0)
    with pytest.raises(ConfigurationError, match=r"ray\.workers=4 with ray\.cpus=1 .* 4 CPUs"):
        require_room({"CPU": 2.0}, layout)
    with pytest.raises(ConfigurationError, match="need 1 GPUs, and this machine has 0"):
        require_room({"CPU": 2.0}, replace(layout, workers=2, gpus=0.5))
    require_room({"CPU": 2.0}, replace(layout, cpus=0.5))
    require_room({"CPU": 2.0}, replace(layout, address="auto"))


def test_wrong_workers_are_refused(tmp_path: Path, capfd) -> None:
    arguments = [
        *(
            "hydra.searchpath=[pkg://support.worldconf]",
            "policy=world",
            "verifier=rule",
            "task=exact",
        ),
        *("benchmark=file", f"benchmark.path={problems(tmp_path, 4)}", f"runs={tmp_path / 'r'}"),
    ]
    assert main(["bench", *arguments, "workers=many"]) == 2
    assert "workers='many' must be null or ray" in capfd.readouterr().err
    assert main(["bench", *arguments, "workers=ray", "ray.workers=0"]) == 2
    assert "ray.workers=0 must be at least 1" in capfd.readouterr().err
