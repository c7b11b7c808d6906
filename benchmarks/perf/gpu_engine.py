"""What the engine tax needs of running vLLM engines: their passes counted, their caches emptied.

vLLM's own statistics would count passes too (`vllm:iteration_tokens_total`), but what they cost
falls on the very threads that are measured. Each pass that gave a token is one message from the
engine's core to its client, so the messages are counted as they are taken: nothing else is asked
of vLLM. A request that has ended while its next pass was under way has no row in that pass here,
and a pass in which no other row gave a token is not seen.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

from stepsearch.policies.vllm import VllmPolicy
from stepsearch.policies.vllm_engine import VllmEngine

PATIENCE = 10.0
"""Seconds for what was aborted to leave the engine."""


class PassCounter:
    """Passes of an engine and rows that gave a token in them, since the last `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin to count anew."""
        self.passes = self.rows = 0

    def see(self, outputs: Any) -> Any:
        """Count one message, and give it back."""
        if outputs.outputs:
            self.passes += 1
            self.rows += len(outputs.outputs)
        return outputs


@contextlib.contextmanager
def counted(client: Any, method: str, *, waits: bool) -> Iterator[PassCounter]:
    """Count the messages that a client of an engine's core hands out by one of its methods.

    The method is a coroutine if it `waits`. A call that already waits for a message is not counted,
    so the first pass may be missed: let something run before anything is counted.
    """
    counter, take = PassCounter(), getattr(client, method)

    @functools.wraps(take)
    async def later() -> Any:
        return counter.see(await take())

    @functools.wraps(take)
    def now() -> Any:
        return counter.see(take())

    setattr(client, method, later if waits else now)
    try:
        yield counter
    finally:
        delattr(client, method)  # the class has its own; ours would hold the client in a circle


def counted_policy(policy: VllmPolicy) -> contextlib.AbstractContextManager[PassCounter]:
    """Count the passes of a policy's engine."""
    return counted(_front_end(policy).engine_core, "get_output_async", waits=True)


def counted_llm(llm: Any) -> contextlib.AbstractContextManager[PassCounter]:
    """Count the passes of a `vllm.LLM`."""
    return counted(llm.llm_engine.engine_core, "get_output", waits=False)


def empty_policy(policy: VllmPolicy) -> None:
    """Let the next search on a policy begin as the first did."""

    async def reset() -> Any:
        return await _front_end(policy).reset_prefix_cache()

    _empty(lambda: VllmEngine.loop.submit(reset()).result())


def empty_llm(llm: Any) -> None:
    """Let the next run of a `vllm.LLM` begin as the first did."""
    _empty(llm.reset_prefix_cache)


def _empty(reset: Callable[[], Any]) -> None:
    """Nothing cached, and nothing left to collect of the round before.

    vLLM refuses while a request holds a part of the cache, as aborted ones do for a moment.
    """
    gc.collect()
    end = time.perf_counter() + PATIENCE
    while reset() is False:  # versions that tell nothing return None
        if time.perf_counter() > end:
            raise RuntimeError("the prefix cache cannot be emptied: requests are still in flight")
        time.sleep(0.05)


def _front_end(policy: VllmPolicy) -> Any:
    """The front end of vLLM, which a policy has no need to show to anybody else."""
    return policy.engine._llm
