"""Memory of a large tree, and the time to save and load it as a trace line.

Bound: the columns hold 4 bytes for parent, child index, depth, last child, previous sibling, number
of tokens and log-probability, 8 for the token offset, 1 for the stop, 8 + 1 for a score, 8 for the
reference to the (shared, empty) text: 54 bytes a node and 4 a token, plus what growing arrays keep
in reserve.

    python -m stepsearch.benchmarks.perf.memory [--nodes 1000000] [--tokens 30]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

from stepsearch.search.columns import decode_tree, encode_tree
from stepsearch.search.steps import StepColumns
from stepsearch.search.tree import Tree
from stepsearch.search.types import Step


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def grow(num_nodes: int, num_tokens: int) -> Tree:
    """A tree with four children per node and one scored verifier."""
    tree = Tree("question")
    column = tree.score_column("prm")
    steps = StepColumns.of(
        [Step(text="", token_ids=tuple(range(k, k + num_tokens))) for k in range(4)]
    )
    for parent in range(num_nodes // 4):
        first = len(tree)
        tree.extend([parent] * 4, steps)
        for node in range(first, first + 4):
            column.set(node, 0.5)
    return tree


def main() -> None:
    """Print bytes per node and seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=30)
    options = parser.parse_args()
    before = resident()
    started = time.perf_counter()
    tree = grow(options.nodes, options.tokens)
    grown = time.perf_counter() - started
    used = resident() - before
    per_node = used / len(tree) - 4 * options.tokens
    print(f"{len(tree):,} nodes, {len(tree.tokens):,} tokens: {used / 1e6:.0f} MB resident")
    print(f"{per_node:.1f} bytes a node besides 4 a token; grown in {grown:.1f} s")
    started = time.perf_counter()
    line = json.dumps(encode_tree(tree), separators=(",", ":"))
    saved = time.perf_counter() - started
    started = time.perf_counter()
    again = decode_tree(json.loads(line))
    loaded = time.perf_counter() - started
    assert again.tokens == tree.tokens
    print(f"saved in {saved:.2f} s ({len(line) / 1e6:.0f} MB), loaded in {loaded:.2f} s")


if __name__ == "__main__":
    main()
