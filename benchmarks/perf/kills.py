"""Kills a sweep of `stepsearch bench` at random moments and compares it with one left alone.

    python -m stepsearch.benchmarks.perf.kills FOLDER [--kills 2] [--seed 0] SETTING=VALUE ...

The settings are those of a sweep (`stepsearch bench -m`). One sweep in FOLDER/quiet is left alone.
Another in FOLDER/killed gets SIGKILL, with all its processes, at random numbers of solved problems,
and is started again each time. Both must end with the same tables, times aside, and with every
problem once in the traces. The exit status is 1 when they do not.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepsearch.benchmarks.run_folder import CONFIG, RESULTS, SUMMARY, TRACES
from stepsearch.search.trace import read

TIMES = ("seconds",)
CACHED = ("prompt_tokens", "prompt_tokens_reused", "verifier_tokens_reused", "flops")
"""Work that a cache may save: it depends on which problems are in progress together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a killed sweep and a quiet one differ in; nothing, if all is well.

    Attributes:
        num_runs: runs of the quiet sweep.
        num_solved: problems it solved in them.
        repeated: problems that the killed sweep has more than one trace of.
        different: cells of its tables that are not as in the quiet sweep.
        cached: the same for the columns in `CACHED`.
    """

    num_runs: int
    num_solved: int
    repeated: tuple[str, ...]
    different: tuple[str, ...]
    cached: tuple[str, ...]


def sweep(settings: Sequence[str], runs: Path, kill_at: int | None = None) -> None:
    """Sweep in a process group of its own.

    Args:
        settings: of `stepsearch bench -m`.
        runs: where the run folders are.
        kill_at: kill it when so many problems are solved.

    Raises:
        RuntimeError: it failed, or it ended before it could be killed.
    """
    command = [sys.executable, "-m", "stepsearch", "bench", "-m", *settings, f"runs={runs}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while kill_at is not None and count_solved(runs) < kill_at and process.poll() is None:
            time.sleep(0.05)
        if kill_at is None:
            process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    expected = 0 if kill_at is None else -signal.SIGKILL
    if process.wait() != expected:
        raise RuntimeError(f"the sweep in {runs} ended with status {process.returncode}")


def compare(quiet: Path, killed: Path) -> Finding:
    """Compare two complete sweeps with the same settings."""
    roots = (quiet, killed)
    names = sorted({path.parent.name for root in roots for path in root.glob(f"*/{CONFIG}")})
    solved = {name: _solved(quiet / name) for name in names}
    again = {name: _solved(killed / name) for name in names}
    cells = [cell for name in names for cell in _different(quiet / name, killed / name)]
    return Finding(
        num_runs=len(names),
        num_solved=sum(map(len, solved.values())),
        repeated=tuple(f"{n}: {i}" for n in names for i in set(again[n]) if again[n].count(i) > 1),
        different=tuple(text for column, text in cells if column not in CACHED),
        cached=tuple(text for column, text in cells if column in CACHED),
    )


def count_solved(runs: Path) -> int:
    """Whole traces in all runs of a sweep."""
    return sum(path.read_bytes().count(b"\n") for path in runs.glob(f"*/{TRACES}"))


def _solved(run: Path) -> list[str]:
    return [trace.problem.id for trace in read(run / TRACES)]


def _different(a: Path, b: Path) -> Iterator[tuple[str, str]]:
    """Columns and where they differ, for the table and the summary of a run."""
    ours, theirs = _cells(a), _cells(b)
    for row, column in {**ours, **theirs}:
        pair = ours.get((row, column)), theirs.get((row, column))
        if pair[0] != pair[1] and column not in TIMES:
            yield column, f"{a.name}, {row}, {column}: {pair[0]!r} and {pair[1]!r}"


def _cells(run: Path) -> dict[tuple[str, str], Any]:
    """Everything in the two tables of a run, by row and column."""
    with (run / RESULTS).open(encoding="utf-8", newline="") as file:
        cells = {(row["id"], k): v for row in csv.DictReader(file) for k, v in row.items()}
    summary = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    flat = {**summary.pop("usage"), **summary}
    return {**cells, **{("summary", name): value for name, value in flat.items()}}


def moments(num_kills: int, num_solved: int, rng: random.Random) -> list[int]:
    """Numbers of solved problems to kill at: one in each of equal parts of the sweep."""
    ends = [num_solved * i // num_kills for i in range(num_kills + 1)]
    return [rng.randrange(max(1, low), high) for low, high in pairwise(ends)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep twice, compare, print; returns the exit status."""
    options, settings = _parser().parse_known_args(arguments)
    quiet, killed = options.folder / "quiet", options.folder / "killed"
    sweep(settings, quiet)
    at = moments(options.kills, count_solved(quiet), random.Random(options.seed))
    for moment in at:
        sweep(settings, killed, kill_at=moment)
        print(f"killed with {count_solved(killed)} problems solved", flush=True)
    sweep(settings, killed)
    found = compare(quiet, killed)
    print(f"{found.num_runs} runs, {found.num_solved} problems, killed at {at}")
    for name in ("repeated", "different", "cached"):
        cells = getattr(found, name)
        print("\n  ".join([f"{name}: {len(cells)}", *cells]))
    return 1 if found.repeated or found.different else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kills", description="Kill a sweep, go on, and compare with one left alone."
    )
    parser.add_argument("folder", type=Path, help="of both sweeps; what is there is gone on with")
    parser.add_argument("--kills", type=int, default=2, help="how many times; default 2")
    parser.add_argument("--seed", type=int, help="of the moments; default: other ones each time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
