"""How a run fills many GPUs: a simulation on the virtual clock, not a measurement.

Every policy GPU writes `ROWS` steps at once, each in a second; every PRM GPU scores one batch of up
to `BATCH` steps at a time, in 20 ms and 4 ms a step. A problem is a best-of-8 of 8 steps: each step
goes to any free row of the policy GPUs and then to the PRM. Workers hand out problems in windows.
Nothing of a network is in it, and nothing of the host: the figures say what scheduling loses.

Run as `python -m stepsearch.benchmarks.perf.scale`.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import asdict, dataclass

from stepsearch.benchmarks.perf.clock import run_virtual

ROWS, BATCH = 64, 64
SAMPLES, STEPS = 8, 8
STEP_SECONDS, CALL_SECONDS, SCORE_SECONDS = 1.0, 0.02, 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one layout.

    Attributes:
        gpus, prm_gpus: in all, and those with the PRM on them.
        window: problems in flight, for each policy GPU.
        problems_per_second: while the run lasts, its end included.
        policy_busy, prm_busy: share of their time.
    """

    gpus: int
    prm_gpus: int
    window: int
    problems_per_second: float
    policy_busy: float
    prm_busy: float


class _Prm:
    """PRM GPUs behind one queue; each takes what waits, up to a batch."""

    def __init__(self, count: int) -> None:
        self.busy = 0.0
        self._waiting: list[asyncio.Future[None]] = []
        self._free = count

    async def score(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        if self._free:
            self._free -= 1
            self._serve()
        await done

    def _serve(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        seconds = CALL_SECONDS + SCORE_SECONDS * len(batch)
        self.busy += seconds
        asyncio.get_running_loop().call_later(seconds, self._finish, batch)

    def _finish(self, batch: list[asyncio.Future[None]]) -> None:
        for done in batch:
            done.set_result(None)
        self._serve()


async def _run(policy_gpus: int, prm_gpus: int, window: int, num_problems: int) -> float:
    prm, rows = _Prm(prm_gpus), asyncio.Semaphore(policy_gpus * ROWS)
    places = asyncio.Semaphore(policy_gpus * window)
    rng = random.Random(0)

    async def chain() -> None:
        for _ in range(STEPS):
            async with rows:
                await asyncio.sleep(STEP_SECONDS * rng.lognormvariate(-0.125, 0.5))
            await prm.score()

    async def problem() -> None:
        async with places:
            await asyncio.gather(*(chain() for _ in range(SAMPLES)))

    await asyncio.gather(*(problem() for _ in range(num_problems)))
    return prm.busy


def simulate(gpus: int, prm_gpus: int, window: int, problems_per_gpu: int = 32) -> Figures:
    """Simulate a run over `gpus`, `prm_gpus` of which score."""
    policy_gpus = gpus - prm_gpus
    count = problems_per_gpu * gpus
    busy, seconds = run_virtual(_run(policy_gpus, prm_gpus, window, count))
    return Figures(
        gpus=gpus,
        prm_gpus=prm_gpus,
        window=window,
        problems_per_second=count / seconds,
        policy_busy=count * SAMPLES * STEPS * STEP_SECONDS / (seconds * policy_gpus * ROWS),
        prm_busy=busy / (seconds * prm_gpus),
    )


def main() -> None:
    """Print one JSON line per layout."""
    for gpus, prm_gpus, window in (
        *((8, prm, 16) for prm in (1, 2, 3)),
        *((8, 2, window) for window in (4, 8, 32)),
        *((64, prm, 16) for prm in (8, 12, 16)),
    ):
        print(json.dumps(asdict(simulate(gpus, prm_gpus, window))), flush=True)
    for gpus in (64, 1000):
        print(json.dumps(asdict(simulate(gpus, gpus // 4, 16, problems_per_gpu=8))), flush=True)


if __name__ == "__main__":
    main()
