"""The batcher: few large calls, no timers, failures apart."""

import asyncio

import pytest
from support.clock import run_virtual

from stepsearch.search.batching import Batcher, together


class Backend:
    """Doubles numbers in one virtual second; fails on 13."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    async def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        await asyncio.sleep(1.0)
        if 13 in items:
            raise ValueError("13")
        return [2 * item for item in items]


def test_what_waits_goes_together_and_the_device_never_idles() -> None:
    backend = Backend()

    async def run() -> list[list[int | Exception]]:
        batcher = Batcher(backend)
        first = [batcher.submit([k]) for k in range(3)]
        await asyncio.sleep(0.5)
        later = [batcher.submit([k, k]) for k in range(3, 6)]
        return [await future for future in first + later]

    results, passed = run_virtual(run())
    assert results == [[0], [2], [4], [6, 6], [8, 8], [10, 10]]
    assert backend.calls == [[0, 1, 2], [3, 3, 4, 4, 5, 5]]
    assert passed == 2.0


def test_calls_are_capped() -> None:
    backend = Backend()

    async def run() -> None:
        batcher = Batcher(backend, max_items=4, max_in_flight=None)
        await asyncio.gather(*(batcher.submit([k]) for k in range(10)))

    _, passed = run_virtual(run())
    assert [len(call) for call in backend.calls] == [4, 4, 2]
    assert passed == 1.0, "with no limit of calls in flight they run together"


def test_a_failing_item_fails_alone() -> None:
    async def run() -> list[list[int | Exception]]:
        batcher = Batcher(Backend())
        return await asyncio.gather(batcher.submit([1, 13, 2]), batcher.submit([3]))

    (first, second), _ = run_virtual(run())
    assert (first[0], first[2], second) == (2, 4, [6])
    assert isinstance(first[1], ValueError)


def test_a_wrong_number_of_results_is_an_error() -> None:
    async def short(items: list[int]) -> list[int]:
        return items[1:]

    async def run() -> list[int | Exception]:
        return await Batcher(short).submit([1, 2])

    results, _ = run_virtual(run())
    assert all(isinstance(result, RuntimeError) for result in results)


def test_what_was_cancelled_is_dropped() -> None:
    backend = Backend()

    async def run() -> None:
        batcher = Batcher(backend)
        batcher.submit([1])
        await asyncio.sleep(0.5)
        waiting = batcher.submit([2])
        last = batcher.submit([3])
        waiting.cancel()
        await last

    run_virtual(run())
    assert backend.calls == [[1], [3]]


def test_a_call_goes_on_while_somebody_waits_for_a_part_of_it() -> None:
    ended: list[str] = []

    async def call(items: list[int]) -> list[int]:
        try:
            await asyncio.sleep(8.0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")
        return items

    async def run() -> list[int | Exception]:
        batcher = Batcher(call)
        both = [batcher.submit([1]), batcher.submit([2])]
        await asyncio.sleep(1.0)
        both[0].cancel()
        assert await both[1] == [2]
        unwanted = batcher.submit([3])
        await asyncio.sleep(1.0)
        unwanted.cancel()
        return await batcher.submit([4])

    results, passed = run_virtual(run())
    assert results == [4]
    assert ended == ["done", "cancelled", "done"]
    assert passed == 8.0 + 1.0 + 8.0


def test_cancelling_the_loop_cancels_the_waiters() -> None:
    async def run() -> None:
        batcher = Batcher(Backend())
        future = batcher.submit([1])
        await asyncio.sleep(0.1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    run_virtual(run())


@pytest.mark.parametrize("max_in_flight", [1, None])
def test_a_call_that_was_cancelled_before_it_began_blocks_nothing(max_in_flight) -> None:
    backend = Backend()

    async def run() -> list[int | Exception]:
        batcher = Batcher(backend, max_in_flight=max_in_flight)
        batcher.submit([1])
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        return await batcher.submit([2])

    results, _ = run_virtual(run())
    assert results == [4]
    assert backend.calls == [[1, 2]]


def test_what_is_done_together_ends_together() -> None:
    ended: list[str] = []

    async def work(seconds: float, fails: bool = False) -> float:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append(f"{seconds:g} cancelled")
            raise
        if fails:
            raise ConnectionError("gone")
        ended.append(f"{seconds:g} done")
        return seconds

    async def run() -> list[float]:
        with pytest.raises(ConnectionError):
            await together([work(1.0), work(2.0, fails=True), work(3.0)])
        assert ended == ["1 done", "3 cancelled"]
        whole = asyncio.create_task(together([work(4.0)]))
        await asyncio.sleep(1.0)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole
        assert ended[2:] == ["4 cancelled"]
        return await together(work(seconds) for seconds in (6.0, 5.0))

    results, passed = run_virtual(run())
    assert results == [6.0, 5.0]
    assert passed == 2.0 + 1.0 + 6.0
