"""Step verifiers score incrementally: tokens computed, and time beside full re-scoring.

A chain grows by ten steps with four candidates each, the way a beam does; after every step all
candidates are scored. Incremental is `TransformersVerifier`; full re-scoring is the same verifier
with its prefix cache off, so that every chain is computed from its first token at every step.

Bound: with s steps of t tokens after a prompt of p, full re-scoring computes p / t + (s + 1) / 2
times the tokens, less what siblings scored together share.

    python -m stepsearch.benchmarks.perf.scoring MODEL_FOLDER [--layers N]

MODEL_FOLDER holds a token-classification model; without it one is made of the embedded model with a
random head.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from stepsearch.policies.embedded import embedded_model
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.encoding import EncodedChain
from stepsearch.verifiers.transformers import TransformersVerifier

STEPS, WIDTH = 10, 4
FORMAT = {
    "name": "bench",
    "prompt": "chat",
    "mark": "\n",
    "head": {"prefix": "score", "num_outputs": 2, "activation": "softmax", "good": 1},
}
QUESTION = "A shop sells pens, books and bags. " * 8 + "How much is everything together?"


def classifier(folder: Path) -> Path:
    """The embedded model with a random head of two labels."""
    torch.manual_seed(0)
    base = embedded_model()
    model = AutoModelForTokenClassification.from_pretrained(base, num_labels=2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def grow(verifier: TransformersVerifier, tree: Tree) -> tuple[int, float]:
    """Score a growing chain with its siblings; tokens computed and seconds."""
    rng = random.Random(0)
    computed, parent = 0, ROOT
    started = time.perf_counter()
    for number in range(STEPS):
        children = []
        for _ in range(WIDTH):
            a, b = rng.randrange(100), rng.randrange(100)
            text = f"Step {number}: the sum of {a} and {b} pens is {a} + {b} = {a + b} pens.\n"
            children.append(tree.add(parent, Step(text=text)))
        chains = [tree.chain(child, num_new=1) for child in children]
        for scores in asyncio.run(verifier.score(chains)):
            assert scores.failure is None
            computed += scores.tokens or 0
        parent = children[0]
    return computed, time.perf_counter() - started


def distinct(verifier: TransformersVerifier, tree: Tree) -> int:
    """Distinct verifier-input tokens of a tree: distinct prefixes of its inputs."""
    prefixes: set[tuple[int, ...]] = set()
    for node in range(1, len(tree)):
        encoded = verifier.encode(tree.chain(node, num_new=1))
        assert isinstance(encoded, EncodedChain)
        prefixes.update(tuple(encoded.ids[:end]) for end in range(1, len(encoded.ids) + 1))
    return len(prefixes)


def main() -> None:
    """Print tokens computed over distinct tokens, and the ratio of the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or classifier(Path(folder))
        ratios = []
        for _ in range(options.repeat):
            row = {}
            for name, cache in (("incremental", 1 << 30), ("full", 0)):
                verifier = TransformersVerifier(model=model, format=FORMAT, cache_bytes=cache)
                tree = Tree(QUESTION)
                computed, seconds = grow(verifier, tree)
                row[name] = seconds
                needed = distinct(verifier, tree)
                print(f"{name:12} {computed:6} tokens computed / {needed} distinct = "
                      f"{computed / needed:.3f}, {seconds:.2f} s")  # fmt: skip
                del verifier
                gc.collect()  # the next one has a cache of its own
            ratios.append(row["full"] / row["incremental"])
            print(f"incremental is {ratios[-1]:.1f} times faster")


if __name__ == "__main__":
    main()
