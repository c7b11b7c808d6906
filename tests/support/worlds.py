"""Small worlds to search in: policies, verifiers and engines whose every answer is known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.contracts import Strategy
from stepsearch.search.engine import Engine
from stepsearch.search.task import ExactTask
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Solution, Step
from stepsearch.verifiers.scripted import ScriptedVerifier

Table = Mapping[str, Sequence[str]]

TABLE = {
    "": ["left ", "right "],
    "left ": ["good ", "bad "],
    "right ": ["#### 9."],
    "left good ": ["#### 1."],
    "left bad ": ["#### 2."],
}
"""Two first steps; below the weak one lies the best end, which a beam of one never sees."""

SCORES = {
    "left ": 0.8,
    "right ": 0.3,
    "left good ": 0.9,
    "left bad ": 0.1,
    "right #### 9.": 0.85,
    "left good #### 1.": 0.7,
    "left bad #### 2.": 0.2,
}


def fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts only."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def table_policy(table: Table, **settings: Any) -> ScriptedPolicy:
    """Chooses one of the steps that the table lists for a chain's text; `.` at the end is eos."""

    def propose(chain: Chain, seed: int) -> Step:
        choices = table[chain.text]
        text = choices[seed % len(choices)]
        return scripted_step(text, "eos" if text.endswith(".") else "step")

    return ScriptedPolicy(propose, **settings)


def random_policy(
    *, branching: int = 4, max_depth: int = 6, eos: float = 0.2, **settings: Any
) -> ScriptedPolicy:
    """Steps of 1 to 5 words that depend on chain and seed; every chain ends by `max_depth`."""

    def propose(chain: Chain, seed: int) -> Step:
        choice = int(fraction("choice", chain.text, len(chain), seed) * branching)
        length = 1 + int(fraction("length", chain.text, choice) * 5)
        ends = len(chain) + 1 >= max_depth or fraction("eos", chain.text, choice) < eos
        words = " ".join(f"w{choice}" for _ in range(length))
        if ends:
            return scripted_step(f"{words} #### {choice}", "eos")
        return scripted_step(words + "\n", "step")

    return ScriptedPolicy(propose, **settings)


def hash_verifier(**settings: Any) -> ScriptedVerifier:
    """Scores that depend on the text of the prefix only."""

    def score(chain: Chain) -> list[float]:
        texts = chain.texts
        count = len(texts)
        return [
            fraction("score", "".join(texts[: k + 1])) for k in range(count - chain.num_new, count)
        ]

    return ScriptedVerifier(score_fn=score, **settings)


def table_verifier(scores: Mapping[str, float], **settings: Any) -> ScriptedVerifier:
    """Looks up the score of a chain by its text."""

    def score(chain: Chain) -> list[float]:
        texts = chain.texts
        ends = range(len(texts) - chain.num_new, len(texts))
        return [scores["".join(texts[: k + 1])] for k in ends]

    return ScriptedVerifier(score_fn=score, **settings)


def engine(strategy: Strategy, policy: Any, verifier: Any = None, **settings: Any) -> Engine:
    """An engine, for the `exact` task unless another one is given."""
    settings = {"task": ExactTask()} | settings
    return Engine(policy=policy, strategy=strategy, verifier=verifier, **settings)


def outline(tree: Tree, verifier: str = "scripted") -> str:
    """A tree as text: one line per node, indented by depth, with score and stop."""
    column = tree.scores.get(verifier)
    lines: list[str] = []

    def visit(node: int) -> None:
        for child in tree.children(node):
            score = None if column is None else column[child]
            shown = "-" if score is None else f"{score:.2f}"
            indent = "  " * (tree.depth[child] - 1)
            text = tree.texts[child].strip()
            lines.append(f"{indent}{text}  {shown} {tree.stop(child)}")
            visit(child)

    visit(ROOT)
    return "\n".join(lines) + "\n"


def fingerprint(solution: Solution) -> tuple[Any, ...]:
    """Everything of a solution that must not depend on timing."""
    tree = solution.tree
    usage = solution.usage
    return (
        solution.problem.id,
        solution.answer,
        solution.score,
        solution.stop,
        solution.node,
        tree.parent.tolist(),
        tree.tokens.tolist(),
        tree.stop_code.tolist(),
        list(tree.texts),
        {name: [column[n] for n in range(len(tree))] for name, column in tree.scores.items()},
        (usage.policy_tokens, usage.verifier_tokens, usage.policy_calls, usage.completions),
    )


def latency(scale: float, salt: object = 0) -> Callable[[Chain, int], float]:
    """Seconds that depend on chain, seed and salt."""
    return lambda chain, seed: scale * fraction("latency", salt, chain.text, seed)
