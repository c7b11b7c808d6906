"""StandardMCTS of treequest 0.3.3, in place, with mocks; run by an interpreter that has it.

The mocks cost nothing but read the ids of the newest step. Prints one JSON line per size:
{"nodes": ..., "seconds": ..., "last_tenth": seconds of the last tenth of the nodes}.

    python treequest_mcts.py WIDTH DEPTH NODES[,NODES...]
"""

import json
import sys
import time

from treequest import StandardMCTS

IDS = [tuple(range(k, k + 20)) for k in range(97)]


def search(width, depth, nodes):
    """Seconds of one search, and of the last tenth of its nodes."""

    def generate(state):
        """One step below a state, and its score; a state is its depth and its newest ids."""
        level, ids = (0, IDS[0]) if state is None else state
        step = IDS[(sum(ids) + level) % 97]
        return (min(level + 1, depth), step), sum(step) % 97 / 97

    algorithm = StandardMCTS(samples_per_action=width)
    state = algorithm.init_tree()
    times = [time.perf_counter()]
    for share in (nodes - nodes // 10, nodes // 10):
        for _ in range(share):
            state = algorithm.step(state, {"step": generate}, inplace=True)
        times.append(time.perf_counter())
    return times[2] - times[0], times[2] - times[1]


def main():
    """Search once to warm up, then once per size."""
    width, depth = int(sys.argv[1]), int(sys.argv[2])
    search(width, depth, 64)
    for nodes in map(int, sys.argv[3].split(",")):
        seconds, last_tenth = search(width, depth, nodes)
        found = {"nodes": nodes, "seconds": seconds, "last_tenth": last_tenth}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
