"""Score labelled solutions with trained verifiers, for `stepsearch rerank`.

python examples/training_score.py LABELLED.jsonl OUT.jsonl prm orm
"""

from __future__ import annotations

import sys

from stepsearch.verifiers.training.lines import read_lines, write_lines
from stepsearch.verifiers.training.scorer import score_rows


def main() -> None:
    """Read, score with every folder given, write."""
    labelled, out, *folders = sys.argv[1:]
    rows = list(read_lines(labelled))
    for folder in folders:
        score_rows(folder, rows)
    write_lines(
        out,
        (
            {
                "id": row["id"],
                "problem": row["problem"],
                "answer": row["answer"],
                "samples": [
                    {"text": "\n".join(s["steps"]) + "\n", "scores": s.get("scores", {})}
                    for s in row["solutions"]
                ],
            }
            for row in rows
        ),
    )


if __name__ == "__main__":
    main()
