"""What search costs on vLLM; prints one table a stage, and all of them at the end.

    python -m stepsearch.benchmarks.perf.gpu --models 0.5b 1.5b embedded
    python -m stepsearch.benchmarks.perf.gpu --stages verifier pair modes --models 0.5b
    python -m stepsearch.benchmarks.perf.gpu --profile dvts --models 0.5b
    python -m stepsearch.benchmarks.perf.gpu --models tiny --problems 2 --n 8     (without a GPU)

Stages, each for every model; all but the first take the largest number of problems:

- `tax`: wall time of a search over that of plain generation of the same tokens (`gpu_tax`), the
  engine's passes, and how busy the two threads of this process and the engines' processes were;
  medians of `--rounds`, but none after the first is begun that would not end within `--limit`
  seconds, engines' starts included;
- `verifier`: verifier tokens computed over distinct ones, on vLLM and in process (`gpu_verifier`);
- `pair`: policy and verifier on one card, beside each alone;
- `modes`: what a generator per request and batch-invariant kernels cost.

Weights are random (`random_model`) but for `embedded`, which has no aim: the host is its limit.
`--profile SEARCH` runs one search with cProfile on the thread that searches, and one more with it
on the thread of vLLM's front end. With OUT set, rows also go to $OUT/gpu.json.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from stepsearch.benchmarks.perf import gpu_row, gpu_tax, gpu_verifier
from stepsearch.benchmarks.perf.gpu_setup import (
    engine_settings,
    make_policy,
    model_folder,
    num_tokens,
    say,
    search,
    strategies,
    versions,
    warm_up,
)
from stepsearch.policies.vllm_engine import VllmEngine
from stepsearch.search.background import BackgroundLoop, background

MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seeded": ({}, {}),
    "unseeded": ({"seeded": False}, {}),
    "batch-invariant, seeded": ({}, {"batch_invariant": True}),
}
LISTED = 35


class Printed(Protocol):
    """A row of a table."""

    def line(self) -> str:
        """The row as text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRow:
    """One search in one mode of sampling."""

    model: str
    mode: str
    search: str
    tokens: int
    seconds: float

    def line(self) -> str:
        """The row as text."""
        rate = self.tokens / self.seconds
        return f"{self.model:<9}{self.mode:<26}{self.search:<11}{self.tokens:>9}{rate:>9.0f}/s"


def tax(folder: Path, model: str, asked: argparse.Namespace) -> list[Printed]:
    """Every search at every number of problems."""
    plan = gpu_tax.Plan(
        searches=asked.searches,
        problems=asked.problems,
        n=asked.n,
        rounds=asked.rounds,
        until=time.perf_counter() + asked.limit,
    )
    say(gpu_row.HEAD)
    return list(gpu_tax.tax_rows(folder, model, plan))


def verifier(folder: Path, model: str, asked: argparse.Namespace) -> list[Printed]:
    """Tokens computed over distinct ones."""
    say(gpu_verifier.HEAD)
    return list(gpu_verifier.token_rows(folder, model))


def pair(folder: Path, model: str, asked: argparse.Namespace) -> list[Printed]:
    """Policy and verifier on one card."""
    return list(gpu_verifier.pair_rows(folder, model, max(asked.problems), asked.n))


def modes(folder: Path, model: str, asked: argparse.Namespace) -> list[Printed]:
    """The same searches with and without seeds, and batch-invariant; the last needs a GPU."""
    rows: list[Printed] = []
    for mode, (changes, engine) in MODES.items():
        if model == "tiny" and engine:
            say(f"  {mode}: needs a GPU")
            continue
        policy = make_policy(folder, engine_settings(model) | engine, **changes)
        try:
            warm_up(policy, gpu_tax.free(), model)
            for name in ("best_of_n", "beam"):
                load = max(asked.problems)
                timed = search(policy, gpu_tax.free(), strategies(asked.n)[name], load, name)
                row = ModeRow(
                    model=model,
                    mode=mode,
                    search=name,
                    tokens=num_tokens(timed.solutions),
                    seconds=timed.seconds,
                )
                say(row.line())
                rows.append(row)
        finally:
            policy.close()
    return rows


STAGES = {"tax": tax, "verifier": verifier, "pair": pair, "modes": modes}


def profile(folder: Path, model: str, asked: argparse.Namespace) -> None:
    """Print where the two threads of one search spend their time."""
    policy = make_policy(folder, engine_settings(model))
    try:
        warm_up(policy, gpu_tax.free(), model)
        for title, loop in (("search", background), ("front end", VllmEngine.loop)):
            profiler = cProfile.Profile()
            _on(loop, profiler.enable)
            strategy, load = strategies(asked.n)[asked.profile], max(asked.problems)
            timed = search(policy, gpu_tax.free(), strategy, load, f"{title} {asked.profile}")
            _on(loop, profiler.disable)
            text = io.StringIO()
            pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(LISTED)
            say(f"{title} thread, {timed.seconds:.2f} s of wall time: {timed.host()}")
            say(text.getvalue())
    finally:
        policy.close()


def _on(loop: BackgroundLoop, switch: Any) -> None:
    """Switch a profiler on or off on a loop's own thread, which it is bound to."""

    async def run() -> None:
        switch()

    loop.submit(run()).result()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["0.5b"], help="tiny, 0.5b, 1.5b, embedded")
    parser.add_argument("--stages", nargs="+", default=["tax"], choices=list(STAGES))
    parser.add_argument("--searches", nargs="+", default=list(gpu_row.AIMS))
    parser.add_argument("--problems", nargs="+", type=int, default=[64, 8, 1])
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="of the largest number of problems")
    parser.add_argument("--limit", type=float, default=520, help="seconds for one model")
    parser.add_argument("--profile", choices=list(gpu_row.AIMS), help="instead of all stages")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # for a run without a GPU
    say(versions())
    tables: dict[str, list[Printed]] = {}
    with tempfile.TemporaryDirectory() as work:
        for model in asked.models:
            folder = model_folder(model, Path(work))
            if asked.profile:
                profile(folder, model, asked)
                continue
            for stage in asked.stages:
                say(f"\n== {stage}, {model}")
                rows = STAGES[stage](folder, model, asked)
                tables.setdefault(stage, []).extend(rows)
    _summary(tables)


def _summary(tables: dict[str, list[Printed]]) -> None:
    heads = {"tax": gpu_row.HEAD, "verifier": gpu_verifier.HEAD}
    for stage, rows in tables.items():
        say(f"\n{heads.get(stage, stage)}")
        for row in rows:
            say(row.line())
    if out := os.environ.get("OUT"):
        found = {stage: [asdict(row) for row in rows] for stage, rows in tables.items()}  # type: ignore[call-overload]
        (Path(out) / "gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
