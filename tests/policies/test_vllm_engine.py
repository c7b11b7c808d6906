"""What is set for one engine does not stay for the next; needs no vLLM."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncGenerator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from stepsearch.policies import vllm_engine
from stepsearch.policies.vllm import VllmPolicy
from stepsearch.policies.vllm_engine import (
    Ask,
    EngineSettings,
    Piece,
    VllmEngine,
    _batch_invariance,
    _unfreeze,
    engine_arguments,
    is_installed,
)
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.verifiers.vllm_body import VllmBody

NAME = "VLLM_BATCH_INVARIANT"


@pytest.mark.parametrize("before", [None, "0", "1"])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_batch_invariance_is_set_for_one_engine(
    monkeypatch: pytest.MonkeyPatch, before: str | None, is_wanted: bool
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    with _batch_invariance(is_wanted):
        assert os.environ.get(NAME) == ("1" if is_wanted else before)
    assert os.environ.get(NAME) == before


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1024),
        ({"max_seqs": 2048}, 2048),
        ({"max_seqs": 256}, None),
        ({"options": {"max_cudagraph_capture_size": 64}}, 64),
        ({"options": {"cudagraph_capture_sizes": [8]}}, None),
    ],
)
def test_graphs_are_captured_up_to_the_largest_batch(
    changes: dict[str, Any], expected: int | None
) -> None:
    arguments = engine_arguments(EngineSettings(model="m", **changes))
    assert arguments.get("max_cudagraph_capture_size") == expected


@pytest.mark.skipif(is_installed(), reason="vLLM is installed")
@pytest.mark.parametrize("make", [VllmPolicy, partial(VllmBody, format=None)])
def test_without_vllm_no_model_is_looked_for(make: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match=r"vLLM cannot be imported.*docs/backends.md"):
        make(model="/no/such/folder")


class Llm:
    """An engine of vLLM's that does nothing."""

    model_config = SimpleNamespace(max_model_len=8, dtype="x")
    errored = False
    is_shut_down = False

    def shutdown(self) -> None:
        self.is_shut_down = True


def started(monkeypatch: pytest.MonkeyPatch, llm: Llm) -> VllmEngine:
    async def start(_: EngineSettings) -> Llm:
        return llm

    monkeypatch.setattr(vllm_engine, "_start", start)
    return VllmEngine(EngineSettings(model="m"))


async def pieces(engine: VllmEngine) -> list[Piece]:
    return [piece async for piece in engine.generate(cast(Ask, SimpleNamespace(ids=(1,))))]


def test_the_heap_stays_frozen_until_the_last_engine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (started(monkeypatch, Llm()) for _ in range(2))
    assert gc.get_freeze_count() > 0
    first.close()
    first.close()
    assert gc.get_freeze_count() > 0
    second.close()
    assert gc.get_freeze_count() == 0


def test_a_process_that_ended_by_itself_does_not_spoil_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ended(Llm):
        def shutdown(self) -> None:
            raise psutil.NoSuchProcess(1)

    engine = started(monkeypatch, Ended())
    engine.close()
    assert engine.is_closed


def test_a_forked_child_is_told_what_to_do_and_leaves_the_engine_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = Llm()
    engine = started(monkeypatch, llm)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(PolicyError, match=r"forked.*spawn"):
            engine.loop.submit(pieces(engine)).result(timeout=10)
        engine.close()
    assert not llm.is_shut_down
    _unfreeze()


def test_closing_ends_what_is_in_flight_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    class Endless(Llm):
        async def generate(self, *_: object, **__: object) -> AsyncGenerator[object, None]:
            began.set()
            await asyncio.Event().wait()
            yield

    monkeypatch.setattr(vllm_engine, "_sampling", lambda _: None)
    engine = started(monkeypatch, Endless())
    waiting = engine.loop.submit(pieces(engine))
    assert began.wait(10)
    engine.close()
    with pytest.raises(PolicyError, match="closed meanwhile"):
        waiting.result(timeout=10)
    with pytest.raises(PolicyError, match="is closed"):
        engine.loop.submit(pieces(engine)).result(timeout=10)
