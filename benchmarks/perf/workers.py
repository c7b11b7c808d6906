"""What Ray workers add up to: problems a second of one process, and of 1, 2 and 4 workers.

A scripted policy waits 0.3 to 0.5 s for every step, as a served model would, so the processors have
little to do. Time runs from the first problem handed out to the last one that came back; starting
Ray and the workers is not in it. Each line says what the processors did, which bounds the rate
whatever the number of workers, and whether every tree is that of one process.

    python -m stepsearch.benchmarks.perf.workers [--problems 200] [--in-flight 4] [--repeat 3]
        [--address ADDRESS]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from stepsearch.benchmarks.ray_workers import solve_sharded
from stepsearch.conf.build import build_engine, load_config
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.trace import encode
from stepsearch.search.tree import Chain
from stepsearch.search.types import Problem, Step

STEPS = 4
SHORTEST, SPREAD = 0.3, 0.2
WORKERS = (1, 2, 4)


def policy() -> ScriptedPolicy:
    """Chains of `STEPS` steps, each after a wait that its chain and seed decide."""

    def propose(chain: Chain, seed: int) -> Step:
        text = f"step {seed % 4}\n"
        if len(chain) + 1 == STEPS:
            return scripted_step(f"#### {seed % 4}", "eos")
        return scripted_step(text)

    def latency(chain: Chain, seed: int) -> float:
        return SHORTEST + SPREAD * (zlib.crc32(f"{seed} {chain.text}".encode()) % 1000) / 1000

    return ScriptedPolicy(propose, latency=latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run.

    Attributes:
        seconds: from the first problem handed out to the last one that came back.
        cpu: seconds of processor time of this process and of the workers within them.
        trees: what came back, by problem, without what time decides.
    """

    seconds: float
    cpu: float
    trees: dict[str, str]


def settings(in_flight: int, workers: int = 1, address: str = "null") -> DictConfig:
    """The configuration of a run; workers that wait need no processor each."""
    return load_config(
        [
            "policy._target_=stepsearch.benchmarks.perf.workers.policy",
            *("verifier=rule", "task=exact", "search=beam", "search.n=4", "search.width=2"),
            *(f"concurrency={in_flight}", f"ray.workers={workers}", "ray.cpus=0.25"),
            f"ray.address={address}",
        ],
        name="bench",
    )


def plain(problems: Sequence[Problem], in_flight: int) -> Figures:
    """Without Ray, in this process."""
    engine = build_engine(settings(in_flight))
    cpu, started = time.process_time(), time.perf_counter()
    lines = [encode(found, {}) for found in engine.solve_many(problems)]
    seconds = time.perf_counter() - started
    return Figures(seconds=seconds, cpu=time.process_time() - cpu, trees=_trees(lines))


def sharded(
    problems: Sequence[Problem], in_flight: int, workers: int, address: str = "null"
) -> Figures:
    """On Ray workers."""
    ready = _Ready()
    logger = logging.getLogger(solve_sharded.__module__)
    logger.setLevel(logging.INFO)
    logger.addHandler(ready)
    lines = []
    try:
        for line in solve_sharded(settings(in_flight, workers, address), problems):
            lines.append(line)
            if len(lines) == len(problems):
                seconds = time.perf_counter() - ready.started
                cpu = ready.cpu() - ready.before
    finally:
        logger.removeHandler(ready)
    return Figures(seconds=seconds, cpu=cpu, trees=_trees(lines))


class _Ready(logging.Handler):
    """Notes when the workers have their engines, and which processes they are."""

    def emit(self, record: logging.LogRecord) -> None:
        if told := re.search(r"workers, processes (.*)", record.getMessage()):
            self._pids = told[1].split()
            self.before, self.started = self.cpu(), time.perf_counter()

    def cpu(self) -> float:
        """Processor seconds so far, of the workers and of this process."""
        return time.process_time() + sum(map(_cpu_of, self._pids))


def _cpu_of(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _trees(lines: Sequence[str]) -> dict[str, str]:
    """Traces by problem, without provenance and seconds."""
    found = {}
    for line in lines:
        trace = json.loads(line)
        del trace["provenance"], trace["usage"]["seconds"]
        found[trace["id"]] = json.dumps(trace, sort_keys=True)
    return found


def measure(count: int, in_flight: int, address: str) -> Iterator[str]:
    """One line for every layout."""
    problems = [Problem(text=f"problem {k}", id=str(k)) for k in range(count)]
    alone = plain(problems, in_flight)
    one = 0.0
    for workers in (0, *WORKERS):
        run = alone if workers == 0 else sharded(problems, in_flight, workers, address)
        rate = count / run.seconds
        one = rate if workers == 1 else one
        yield (
            f"{workers or 'no Ray':>7} {rate:7.2f} problems/s "
            f"{f'{rate / one:5.2f}x' if one else '':>6} {run.seconds:6.1f} s "
            f"{1e3 * run.cpu / count:6.1f} ms CPU/problem "
            f"{run.cpu / run.seconds:5.2f} cores, load {os.getloadavg()[0]:.1f}, "
            f"{'same trees' if run.trees == alone.trees else 'OTHER TREES'}"
        )


def main() -> None:
    """Print one line per layout and repetition."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=4, help="problems of each worker")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--address", default="null", help="of a cluster to join; else one is started"
    )
    options = parser.parse_args()
    for _ in range(options.repeat):
        for line in measure(options.problems, options.in_flight, options.address):
            print(line, flush=True)


if __name__ == "__main__":
    main()
