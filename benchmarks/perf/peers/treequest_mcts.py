"""StandardMCTS of treequest 0.3.3, in place, with mocks; run by an interpreter that has it.

The mocks cost nothing but read the ids of the newest step. Prints one JSON line per size:
{"nodes": ..., "seconds": ...}.

    python treequest_mcts.py WIDTH DEPTH NODES[,NODES...]
"""

import json
import sys
import time

from treequest import StandardMCTS

IDS = [tuple(range(k, k + 20)) for k in range(97)]


def search(width, depth, nodes):
    """Seconds of one search."""

    def generate(state):
        """One step below a state, and its score; a state is its depth and its newest ids."""
        level, ids = (0, IDS[0]) if state is None else state
        step = IDS[(sum(ids) + level) % 97]
        return (min(level + 1, depth), step), sum(step) % 97 / 97

    algorithm = StandardMCTS(samples_per_action=width)
    state = algorithm.init_tree()
    started = time.perf_counter()
    for _ in range(nodes):
        state = algorithm.step(state, {"step": generate}, inplace=True)
    return time.perf_counter() - started


def main():
    """Search once to warm up, then once per size."""
    width, depth = int(sys.argv[1]), int(sys.argv[2])
    search(width, depth, 64)
    for nodes in map(int, sys.argv[3].split(",")):
        print(json.dumps({"nodes": nodes, "seconds": search(width, depth, nodes)}), flush=True)


if __name__ == "__main__":
    main()
