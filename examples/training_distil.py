"""Right solutions of a policy's own as further worked questions.

    python examples/training_distil.py OUT.jsonl LABELLED.jsonl [...]

Rejection sampling fine-tuning (Yuan et al. 2023, arXiv:2308.01825): of every question the solutions
whose answer is right and none of whose steps is labelled wrong, one for every list of equations, at
most four, the shortest first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from stepsearch.verifiers.training.lines import read_lines, write_lines

MOST = 4
_SPACES = re.compile(r"[\s,$]+")


def equations(steps: list[str]) -> str:
    """What tells two ways to solve a question apart: what stands around the equation signs."""
    found = (re.findall(r"[\d.]+(?:[-+*/x=\s,$%()]+[\d.]+)+", step) for step in steps)
    return ";".join(_SPACES.sub("", one) for many in found for one in many)


def distilled(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The worked questions that a row gives."""
    right = [
        solution["steps"]
        for solution in row["solutions"]
        if solution["outcome"] == 1 and all(label != 0 for label in solution["labels"])
    ]
    ways: dict[str, list[str]] = {}
    for steps in sorted(right, key=lambda steps: len("".join(steps))):
        ways.setdefault(equations(steps), steps)
    for number, steps in enumerate(list(ways.values())[:MOST]):
        yield {
            "id": f"{row['id']}-own-{number}",
            "group": row.get("group", row["id"]),
            "source": "own",
            "problem": row["problem"],
            "answer": row["answer"],
            "solution": "\n".join(steps),
        }


def main() -> None:
    """Read, choose, write."""
    out, *labelled = sys.argv[1:]
    rows = [new for path in labelled for row in read_lines(path) for new in distilled(row)]
    write_lines(out, rows)
    print(f"{out}: {len(rows)} solutions of {len({row['problem'] for row in rows})} questions")


if __name__ == "__main__":
    main()
