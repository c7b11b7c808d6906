"""Hydra's launchers run sweeps of `bench` unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    path = folder / "problems.jsonl"
    rows = [{"question": f"question {i}", "answer": i % 4} for i in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = [
        *(
            "hydra.searchpath=[pkg://support.worldconf]",
            "policy=world",
            "verifier=rule",
            "task=exact",
        ),
        *("benchmark=file", f"benchmark.path={path}", "search=best_of_n"),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "stepsearch", "bench", "-m", *arguments, *overrides],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def results(root: Path) -> dict[str, list[str]]:
    """Tables by run, without what time decides."""
    found = {}
    for path in root.glob("*/results.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        seconds = lines[0].split(",").index("seconds")
        found[path.parent.name] = [
            ",".join(v for i, v in enumerate(line.split(",")) if i != seconds) for line in lines
        ]
    return found


def sweep(folder: Path, launcher: str) -> None:
    """The launcher's runs are those of the plain sweep, and a second sweep finds them done."""
    plain = start(folder, "seed=0,1", f"runs={folder / 'plain'}")
    assert plain.communicate(timeout=300)[1]
    assert plain.returncode == 0
    settings = (f"hydra/launcher={launcher}", "seed=0,1", f"runs={folder / 'launched'}")
    launched = start(folder, *settings)
    shown = launched.communicate(timeout=300)[1]
    assert launched.returncode == 0, shown
    assert len(results(folder / "plain")) == 2
    assert results(folder / "launched") == results(folder / "plain")


@pytest.mark.slow
def test_joblib(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep(tmp_path, "joblib")


@pytest.mark.slow
def test_what_goes_wrong_in_another_process_is_told_in_this_one(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = ("benchmark.limit=0,2", f"runs={tmp_path / 'runs'}")
    process = start(tmp_path, "hydra/launcher=joblib", *sweep)
    shown = process.communicate(timeout=300)[1]
    assert process.returncode == 2, shown
    assert "stepsearch: benchmark.limit=0 must be a whole number, at least 1" in shown
    assert "Traceback" not in shown
    assert len(results(tmp_path / "runs")) == 1, "the other run went on"


@pytest.mark.slow
def test_submitit(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    sweep(tmp_path, "submitit_local")


@pytest.mark.slow
@pytest.mark.usefixtures("own_ray")
def test_ray(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="see docs/scale.md")
    sweep(tmp_path, "ray")


@pytest.mark.slow
def test_sweeps_of_the_same_second_do_not_collide(tmp_path: Path) -> None:
    """Other settings are other folders; of two alike runs one does the work, the other is told."""
    root = f"runs={tmp_path / 'runs'}"
    sweeps = [start(tmp_path, s, root) for s in ("seed=0,1", "seed=2,3", "seed=0,1")]
    told = [process.communicate(timeout=300)[1] for process in sweeps]
    assert [process.returncode for process in sweeps[:2]] in ([0, 0], [2, 0]), told
    for process, shown in zip(sweeps, told, strict=True):
        assert process.returncode == 0 or "another process is at work" in shown
    found = results(tmp_path / "runs")
    assert len(found) == 4
    for path in (tmp_path / "runs").glob("*/traces.jsonl"):
        ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
        assert sorted(ids) == sorted(f"file-{i}" for i in range(12))
