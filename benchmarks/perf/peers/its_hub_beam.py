"""Beam search of its_hub 1.2.0 with mocks; run by an interpreter that has its_hub installed.

The mocks cost nothing but read the ids of the newest step. its_hub hands out text, so the ids stand
in the text as numbers. Prints one JSON line per size: {"n": ..., "steps": ..., "seconds": ...}.

    python its_hub_beam.py DEPTH N[,N...]
"""

import asyncio
import json
import sys
import time

from its_hub.api import AbstractLanguageModel, AbstractProcessRewardModel
from its_hub.core.algorithms.beam_search import BeamSearch
from its_hub.core.lms.step_generation import StepGeneration

STEPS = [" ".join(str(k) for k in range(start, start + 20)) for start in range(97)]


def newest_ids(text):
    """Ids of the newest step, added up."""
    return sum(map(int, text.rsplit("\n", 1)[-1].split()))


class Policy(AbstractLanguageModel):
    """Writes one of 97 steps, chosen by the newest step."""

    def __init__(self):
        self.steps = 0

    async def agenerate(self, messages, stop=None, **kwargs):
        """One step per conversation."""
        self.steps += len(messages)
        read = [newest_ids(m[-1].content) if len(m) > 1 else 0 for m in messages]
        return [
            {"role": "assistant", "content": STEPS[(index + ids) % 97]}
            for index, ids in enumerate(read)
        ]


class Verifier(AbstractProcessRewardModel):
    """A number from the newest step."""

    def score(self, prompt, steps):
        """One score per text."""
        return [newest_ids(text) % 97 / 97 for text in steps]

    async def ascore(self, prompt, steps):
        """One score per text."""
        return self.score(prompt, steps)


def search(depth, n):
    """Steps and seconds of one search."""
    policy = Policy()
    generation = StepGeneration(max_steps=depth - 1, step_token="\n", stop_token="<end>")
    beam = BeamSearch(generation, Verifier(), beam_width=max(1, n // 4))
    started = time.perf_counter()
    asyncio.run(beam.ainfer(policy, "question", budget=n))
    return policy.steps, time.perf_counter() - started


def main():
    """Search once to warm up, then once per size."""
    depth = int(sys.argv[1])
    search(depth, 64)
    for n in map(int, sys.argv[2].split(",")):
        steps, seconds = search(depth, n)
        print(json.dumps({"n": n, "steps": steps, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
