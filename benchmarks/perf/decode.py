"""Decoding speed of the in-process runner beside a bare batched decode of the same rows.

Prints a table; `python -m stepsearch.benchmarks.perf.decode`. Both write the same number of tokens
per row from the same prompts, greedily or at temperature 0.8, each the best of several tries taken
in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stepsearch.policies.causal import CausalRunner
from stepsearch.policies.loading import find_model, load_tokenizer, shared_runner
from stepsearch.policies.sampling import Draw, Token

ROWS = (1, 4, 16, 32)
NEW_TOKENS = 32
PROMPT_TOKENS = 120
TRIES = 2
TEMPERATURE = 0.8


def bare(model: Any, prompts: torch.Tensor, temperature: float) -> None:
    """Batched decoding as transformers does it, with its own sampler."""
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=temperature > 0,
        temperature=temperature or None,
        top_k=0 if temperature > 0 else None,
        pad_token_id=0,
    )


def ours(runner: CausalRunner, prompts: torch.Tensor, temperature: float) -> None:
    """The same rows through the runner, prompts not cached."""

    async def row(ids: list[int], seed: int) -> None:
        count = 0

        def on_token(_: Token) -> bool:
            nonlocal count
            count += 1
            return count < NEW_TOKENS

        await runner.generate(ids, Draw(seed=seed, temperature=temperature), on_token)

    async def main() -> None:
        await asyncio.gather(*[row(ids, i) for i, ids in enumerate(prompts.tolist())])

    asyncio.run(main())


def seconds(work: Callable[[], None]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    source = find_model("embedded")
    model: Any = AutoModelForCausalLM.from_pretrained(source.location, dtype=torch.float32)
    model.eval()
    runner = shared_runner("embedded", device="cpu", max_rows=max(ROWS))
    size = len(load_tokenizer("embedded"))
    print(f"{torch.get_num_threads()} threads, {NEW_TOKENS} tokens after {PROMPT_TOKENS}, float32")
    print("rows  temperature  bare tok/s  ours tok/s  ratio")
    generator = torch.Generator().manual_seed(0)
    for rows in ROWS:
        for temperature in (0.0, TEMPERATURE):
            theirs, mine = [], []
            for _ in range(TRIES):
                shape = (rows, PROMPT_TOKENS)
                prompts = torch.randint(100, size, shape, generator=generator)
                theirs.append(seconds(partial(bare, model, prompts, temperature)))
                mine.append(seconds(partial(ours, runner, prompts, temperature)))
            tokens = rows * NEW_TOKENS
            a, b = tokens / min(theirs), tokens / min(mine)
            print(f"{rows:4d}  {temperature:11.1f}  {a:10.1f}  {b:10.1f}  {b / a:5.2f}", flush=True)


if __name__ == "__main__":
    main()
