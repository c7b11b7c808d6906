"""How an engine's passes are counted and its cache emptied; no engine runs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stepsearch.benchmarks.perf import gpu_engine
from stepsearch.benchmarks.perf.gpu_engine import counted, empty_llm


class Client:
    """Hands out messages as the clients of vLLM's core do."""

    def __init__(self, *sizes: int) -> None:
        self._left = [SimpleNamespace(outputs=[None] * size) for size in sizes]

    def get_output(self) -> Any:
        return self._left.pop(0)

    async def get_output_async(self) -> Any:
        return self._left.pop(0)


def test_messages_with_tokens_are_passes() -> None:
    client = Client(7, 4, 0, 2, 9)
    with counted(client, "get_output", waits=False) as counter:
        client.get_output()
        counter.restart()
        assert [len(client.get_output().outputs) for _ in range(3)] == [4, 0, 2]
    client.get_output()
    assert (counter.passes, counter.rows) == (2, 6)
    assert "get_output" not in vars(client)


def test_messages_that_are_awaited_count_alike() -> None:
    client = Client(4, 0, 2)

    async def take() -> list[int]:
        return [len((await client.get_output_async()).outputs) for _ in range(3)]

    with counted(client, "get_output_async", waits=True) as counter:
        assert asyncio.run(take()) == [4, 0, 2]
    assert (counter.passes, counter.rows) == (2, 6)


@pytest.mark.parametrize("answers", [[True], [None], [False, False, True]])
def test_a_cache_is_emptied_again_until_nothing_is_in_flight(answers: list[bool | None]) -> None:
    empty_llm(SimpleNamespace(reset_prefix_cache=lambda: answers.pop(0)))
    assert answers == []


def test_a_cache_that_stays_in_use_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_engine, "PATIENCE", 0.0)
    with pytest.raises(RuntimeError, match="still in flight"):
        empty_llm(SimpleNamespace(reset_prefix_cache=lambda: False))
