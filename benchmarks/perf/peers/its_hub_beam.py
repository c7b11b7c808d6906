"""Beam search of its_hub 1.2.0 with mocks; run by an interpreter that has its_hub installed.

Prints one JSON line per repetition: {"n": ..., "steps": ..., "seconds": ...}.
"""

import asyncio
import json
import sys
import time

from its_hub.api import AbstractLanguageModel, AbstractProcessRewardModel
from its_hub.core.algorithms.beam_search import BeamSearch
from its_hub.core.lms.step_generation import StepGeneration

STEP = "w w w w w w w w w w w w w w w w w w w w"


class Policy(AbstractLanguageModel):
    """Costs nothing but reads the newest step."""

    def __init__(self):
        self.steps = 0
        self.read = 0

    async def agenerate(self, messages, stop=None, **kwargs):
        self.steps += len(messages)
        self.read += sum(len(m[-1].content) for m in messages)
        return [{"role": "assistant", "content": STEP} for _ in messages]


class Verifier(AbstractProcessRewardModel):
    """Costs nothing but reads the newest step."""

    def score(self, prompt, steps):
        return [len(step) % 97 / 97 for step in steps]

    async def ascore(self, prompt, steps):
        return self.score(prompt, steps)


def main():
    depth = int(sys.argv[1])
    for n in map(int, sys.argv[2].split(",")):
        policy = Policy()
        generation = StepGeneration(max_steps=depth - 1, step_token="\n", stop_token="<end>")
        search = BeamSearch(generation, Verifier(), beam_width=max(1, n // 4))
        started = time.perf_counter()
        asyncio.run(search.ainfer(policy, "question", budget=n))
        seconds = time.perf_counter() - started
        print(json.dumps({"n": n, "steps": policy.steps, "seconds": seconds}), flush=True)


main()
