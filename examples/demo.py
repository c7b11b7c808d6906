"""The main job on the embedded model: beam search guided by a step verifier, step by step.

    python examples/demo.py

A 135M-parameter model with the policy adapter that comes with stepsearch writes solution steps, its
process reward model (PRM), a second adapter on the same model, scores them, and beam search goes on
with the best chains. Printed are the candidates of every round, which of them survived, the answer
and its cost, and what the policy says when the PRM only looks on.

The model is small and one question proves nothing: docs/results.md has the figures.
"""

from __future__ import annotations

import sys

from stepsearch import Problem, Solution
from stepsearch.api import engine_for
from stepsearch.search.tree import ROOT
from stepsearch.show import render

QUESTION = "A baker makes 5 trays with 12 muffins each. He sells 38 muffins. How many are left?"
GOLD = "22"


def main() -> None:
    """Solve the question with the verifier and without it."""
    colour = sys.stdout.isatty()
    problem = Problem(text=QUESTION, answer=GOLD)
    print(f"question  {QUESTION}\n")
    beam = engine_for(search="beam", verifier="prm")
    solution = beam.solve(problem)
    show_rounds(solution)
    print("\nchosen chain\n")
    print(render(solution, colour=colour, select=beam.settings.select))
    print("\nthe same policy, with the verifier only looking on\n")
    rows = [("beam by PRM", solution)]
    for name, search in (("greedy", "greedy"), ("majority of 8", "best_of_n")):
        engine = engine_for(search=search, verifier="prm", select="majority")
        rows.append((name, engine.solve(problem)))
    for name, result in rows:
        finished = [c for c in result.candidates if c.stop == "eos"]
        right = sum(c.answer == GOLD for c in finished)
        print(
            f"  {name:14} answer {result.answer or 'none':5} "
            f"{right} of {len(finished)} chains end right, "
            f"{result.usage.policy_tokens} policy tokens"
        )
    print(f"\n  the right answer is {GOLD}")


def show_rounds(solution: Solution) -> None:
    """Every candidate of the beam, round by round, and whether it survived."""
    tree = solution.tree
    column = tree.scores["prm"]
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
            print(f"  {mark} {shown}  {node:3} {text}{below}")
    print(f"\nThe verifier cut {pruned} candidates; none of their continuations was written.")


if __name__ == "__main__":
    main()
