"""What the stages of `gpu` share: models, searches, engine limits, and who was busy."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepsearch.policies.vllm import VllmPolicy
from stepsearch.policies.vllm_engine import VllmEngine, vllm_version
from stepsearch.search.background import BackgroundLoop, background
from stepsearch.search.contracts import SamplingParams, Strategy, Verifier
from stepsearch.search.engine import Engine
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.tree import Chain
from stepsearch.search.types import Budget, Problem, Solution

SAMPLING = SamplingParams(temperature=1.0, max_step_tokens=128, max_tokens=192)
MAX_STEPS = 8
WARM = 16
"""Problems that fill a batch before anything is timed."""

HALF = 0.42
"""Of a card's memory, for each of two engines that are on it."""

TICKS = os.sysconf("SC_CLK_TCK")


def say(line: str) -> None:
    """Print at once: a run may be cut off."""
    print(line, flush=True)


def versions() -> str:
    """Card and versions, asked in a process of its own: CUDA must not start in this one."""
    script = (
        "import torch, transformers; found = torch.cuda.is_available();"
        "print(torch.cuda.get_device_name() if found else 'CPU', 'torch', torch.__version__,"
        " 'transformers', transformers.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return f"{done.stdout.strip()} vllm {vllm_version()}"


def model_folder(model: str, work: Path) -> Path:
    """The embedded model, or one with random weights, written once and not by this process."""
    if model == "embedded":
        from stepsearch.policies.embedded import embedded_model

        return embedded_model()
    folder = work / model
    if not folder.exists():
        module = "stepsearch.benchmarks.perf.random_model"
        subprocess.run([sys.executable, "-m", module, model, str(folder)], check=True)
        say(f"{model}: written")
    return folder


def engine_settings(model: str, share: float = 0.85) -> dict[str, Any]:
    """Limits of an engine that gets a share of the card, the same for a search and a raw run."""
    if model == "tiny":
        return {"max_length": 1024, "eager": True, "max_seqs": 64, "options": {"block_size": 32}}
    return {"max_length": 1024, "max_seqs": 1024, "max_batched_tokens": 16384, "gpu_memory": share}


@contextlib.contextmanager
def starting(name: str) -> Iterator[None]:
    """Tell how long an engine took to start."""
    start = time.perf_counter()
    yield
    say(f"  {name} started in {time.perf_counter() - start:.0f} s")


def make_policy(folder: Path, settings: dict[str, Any], **changes: Any) -> VllmPolicy:
    """A policy, and how long its engine took to start."""
    gc.collect()  # an engine that nobody holds any more gives its memory back
    with starting(f"the engine of {folder.name}"):
        return VllmPolicy(model=folder, prompt_format={"system": ""}, engine=settings, **changes)


def strategies(n: int) -> dict[str, Strategy]:
    """Searches of n candidates."""
    return {
        "best_of_n": BestOfN(n=n, max_steps=MAX_STEPS),
        "beam": Beam(n=n, width=4, max_steps=MAX_STEPS),
        "dvts": Dvts(n=n, width=4, max_steps=MAX_STEPS),
        "mcts": Mcts(simulations=n, width=4, parallel=8, max_steps=MAX_STEPS),
    }


def chance(chain: Chain) -> float:
    """A score that costs nothing and depends on the newest step alone."""
    return zlib.crc32(chain.newest.text.encode()) / 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Solutions, the seconds that they took, and the processor time of who worked on them.

    Attributes:
        solutions: one a problem.
        seconds: wall time.
        search: seconds of processor time of the thread that searches.
        front: of the thread that vLLM's front end lives on; both share the interpreter's lock.
        engines: of all processes that this one started.
    """

    solutions: list[Solution]
    seconds: float
    search: float
    front: float
    engines: float

    def host(self) -> str:
        """Who was busy, as shares of the wall time."""
        shares = (self.search, self.front, self.engines)
        return "search {:.0%}, front end {:.0%}, engines {:.0%}".format(
            *(share / self.seconds for share in shares)
        )


def search(
    policy: VllmPolicy, verifier: Verifier, strategy: Strategy, load: int, name: str
) -> Timed:
    """Solve as many problems at once as `load` says; one that failed is an error.

    Raises:
        RuntimeError: a search failed.
    """
    problems = [
        Problem(text=f"{name} {load}: " + "what is left of it? " * 6 + str(i)) for i in range(load)
    ]
    engine = Engine(
        policy=policy,
        strategy=strategy,
        verifier=verifier,
        budget=Budget(policy_tokens=None),
        sampling=SAMPLING,
        concurrency=load,
    )
    before, start = _clocks(), time.perf_counter()
    solutions = list(engine.solve_many(problems))
    seconds = time.perf_counter() - start
    spent = [after - at for at, after in zip(before, _clocks(), strict=True)]
    for solution in solutions:
        if solution.error is not None:
            raise RuntimeError(f"{name}: {solution.error}")
    return Timed(
        solutions=solutions, seconds=seconds, search=spent[0], front=spent[1], engines=spent[2]
    )


def warm_up(policy: VllmPolicy, verifier: Verifier, model: str) -> None:
    """Fill a batch once, so that what is compiled for large ones is there before the clock runs."""
    search(policy, verifier, BestOfN(n=warm_candidates(model)), WARM, "warm-up")


def warm_candidates(model: str) -> int:
    """Candidates of each of the problems that fill a batch."""
    return 8 if model == "tiny" else 64


def num_tokens(solutions: Sequence[Solution]) -> int:
    """Tokens that the policy wrote."""
    return sum(solution.usage.policy_tokens for solution in solutions)


def _clocks() -> tuple[float, float, float]:
    return _thread(background), _thread(VllmEngine.loop), _children(os.getpid())


def _thread(loop: BackgroundLoop) -> float:
    async def read() -> float:
        return time.thread_time()

    return loop.submit(read()).result()


def _children(process: int) -> float:
    """Processor seconds of a process's descendants that still run; 0 where there is no /proc."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            total += (int(fields[11]) + int(fields[12])) / TICKS + _children(int(stat.parent.name))
    return total
