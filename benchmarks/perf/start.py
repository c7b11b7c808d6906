"""From process start to the first answer, everything cached: import, load, search.

    python -m stepsearch.benchmarks.perf.start [--repeat 3]

The question is that of `examples/demo.py`. Every repetition is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

SCRIPT = """
import time
started = time.perf_counter()
import stepsearch
from stepsearch.api import engine_for
import stepsearch.conf.build
import stepsearch.policies.transformers
imported = time.perf_counter()
engine = engine_for()
loaded = time.perf_counter()
solution = engine.solve({question!r})
solved = time.perf_counter()
import json
print(json.dumps({{"import": imported - started, "load": loaded - imported,
                   "search": solved - loaded, "tokens": solution.usage.policy_tokens}}))
"""
QUESTION = "A baker makes 5 trays with 12 muffins each. He sells 38 muffins. How many are left?"


def measure() -> dict[str, float]:
    """Seconds of each part, and of the whole process."""
    started = time.perf_counter()
    code = SCRIPT.format(question=QUESTION)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    whole = time.perf_counter() - started
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**parts, "whole": whole}


def main() -> None:
    """Print the median of every part, with the smallest and largest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    runs = [measure() for _ in range(parser.parse_args().repeat)]
    for part in runs[0]:
        values = [run[part] for run in runs]
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"{part:8} {middle:8.2f}  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
