"""Write the held-out questions and the halves of the others, each file in an order by chance.

    python examples/training_split.py QUESTIONS.jsonl FOLDER [HELD_OUT]

`held` has the held-out worked questions, `made` those of the generator.

What a policy has learnt by heart says little about what it writes on a new question. So verifiers
are trained on solutions of questions that their writer was not trained on: one policy is trained on
either half, and writes solutions of the other.
"""

from __future__ import annotations

import random
import sys
from hashlib import blake2b
from pathlib import Path

from stepsearch.verifiers.training.lines import write_lines
from stepsearch.verifiers.training.questions import Question, is_held_out, read_questions


def half_of(group: str) -> int:
    """Which half the questions of a group are in: by a hash of its name alone."""
    return blake2b(f"half\x00{group}".encode(), digest_size=1).digest()[0] % 2


def main() -> None:
    """Read, split, write."""
    path, folder, *share = sys.argv[1:]
    held_out = float(share[0]) if share else 0.07
    parts: dict[str, list[Question]] = {"held": [], "made": [], "half0": [], "half1": []}
    for question in read_questions(path):
        if not is_held_out(question.group, held_out):
            parts[f"half{half_of(question.group)}"].append(question)
        elif question.source != "variant":
            parts["made" if question.source == "words" else "held"].append(question)
    for name, questions in parts.items():
        random.Random(0).shuffle(questions)
        write_lines(Path(folder) / f"{name}.jsonl", (q.to_row() for q in questions))
        print(f"{name}: {len(questions)} questions")


if __name__ == "__main__":
    main()
