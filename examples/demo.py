"""The main job on the embedded model: beam search guided by a step verifier, step by step.

    python examples/demo.py

A 135M-parameter model writes solution steps, the `rule` verifier checks every equation in them, and
beam search goes on with the chains whose arithmetic holds. Printed are the candidates of every
round, which of them survived, the answer and its cost, and what the model says without a verifier.

The model is small and was never trained for this, so its equations are often the wrong ones for the
question; that the arithmetic in them holds is all this verifier can see to.
"""

from __future__ import annotations

import sys

from stepsearch import Problem, Solution
from stepsearch.api import engine_for
from stepsearch.search.tree import ROOT
from stepsearch.show import render

QUESTION = "A baker makes 5 trays with 12 muffins each. He sells 38 muffins. How many are left?"
GOLD = "22"
WRONG = 0.02  # what the rule verifier gives a chain with a wrong equation


def main() -> None:
    """Solve the question with and without the verifier."""
    colour = sys.stdout.isatty()
    problem = Problem(text=QUESTION, answer=GOLD)
    print(f"question  {QUESTION}\n")
    beam = engine_for(search="beam", verifier="rule")
    solution = beam.solve(problem)
    show_rounds(solution)
    print("\nchosen chain\n")
    print(render(solution, colour=colour, select=beam.settings.select))
    print("\nthe same model, with the verifier only looking on\n")
    rows = [("beam by rule", solution)]
    for name, search in (("greedy", "greedy"), ("majority of 8", "best_of_n")):
        engine = engine_for(search=search, verifier="rule", select="majority")
        rows.append((name, engine.solve(problem)))
    for name, result in rows:
        finished = [c for c in result.candidates if c.stop == "eos"]
        wrong = sum(c.score == WRONG for c in finished)
        print(
            f"  {name:14} answer {result.answer or 'none':5} "
            f"{wrong} of {len(finished)} chains with a wrong equation, "
            f"{result.usage.policy_tokens} policy tokens"
        )
    print(f"\n  the right answer is {GOLD}")


def show_rounds(solution: Solution) -> None:
    """Every candidate of the beam, round by round, and whether it survived."""
    tree = solution.tree
    column = tree.scores["rule"]
    pruned = 0
    for depth in range(1, max(tree.depth) + 1):
        print(f"round {depth}")
        for node in (n for n in range(len(tree)) if tree.depth[n] == depth):
            survives = tree.num_children(node) > 0 or tree.is_terminal(node)
            pruned += not survives and column[node] is not None
            score = column[node]
            shown = "  -  " if score is None else f"{score:.2f}"
            mark = "done" if tree.is_terminal(node) else "kept" if survives else "cut "
            parent = tree.parent[node]
            below = "" if parent == ROOT else f" (after {parent})"
            text = tree.texts[node].strip()
            print(f"  {mark} {shown}  {node:3} {text}{below}  [{column.note(node)}]")
    print(f"\nThe verifier cut {pruned} candidates; none of their continuations was written.")


if __name__ == "__main__":
    main()
