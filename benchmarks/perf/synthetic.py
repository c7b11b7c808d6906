"""A synthetic world of trees with known right leaves and a verifier of adjustable noise.

A problem is a tree with four branches a node and five to seven steps a chain, drawn from its text.
A branch is wrong with the problem's own probability, between 0.1 and 0.7, and a wrong step spoils a
chain for good; the policy takes each branch equally often. A spoiled chain ends in one of five
wrong answers, the first of which is as likely as the other four together: the right answer is often
not the most frequent one.

The verifier says sigmoid(2 + noise z) of a right prefix and sigmoid(-2 + noise z) of a spoiled one,
where z is standard normal and fixed by the prefix. Without noise it is an oracle; with noise 4 it
takes a third of the spoiled prefixes for right.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist

from stepsearch.policies.scripted import ScriptedPolicy
from stepsearch.search.tree import Chain
from stepsearch.search.types import Problem, Step, Stop
from stepsearch.verifiers.scripted import ScriptedVerifier

BRANCHES = 4
RIGHT, WRONG = "42", ("6", "7", "8", "9", "10")
_NORMAL = NormalDist()


def problems(count: int) -> list[Problem]:
    """Problems with ids of their own; the answer of each is `RIGHT`."""
    return [Problem(text=f"problem {k}", id=str(k), answer=RIGHT) for k in range(count)]


def policy() -> ScriptedPolicy:
    """Takes one of the branches, all equally often."""

    def propose(chain: Chain, seed: int) -> Step:
        branch = int(_fraction(seed, len(chain)) * BRANCHES)
        path = f"{chain.text}{branch}"
        size = 10 + int(_fraction(chain.question, path, "size") * 21)
        stop: Stop = "step"
        text = f"{branch} "
        if len(chain) + 1 == depth(chain.question):
            stop, text = "eos", f"{branch}#### {_answer(chain.question, f'{path} ')}"
        return Step(text=text, token_ids=tuple(range(size)), stop=stop)

    return ScriptedPolicy(propose)


def verifier(noise: float) -> ScriptedVerifier:
    """Says how probable it is that a prefix is right; see the module."""

    def score(chain: Chain) -> Sequence[float]:
        texts = chain.texts
        ends = range(len(texts) - chain.num_new + 1, len(texts) + 1)
        return [_probability(chain.question, texts[:end], noise) for end in ends]

    return ScriptedVerifier(score_fn=score, name=f"noise {noise:g}")


def depth(question: str) -> int:
    """Steps of every chain of the problem."""
    return 5 + int(_fraction(question, "depth") * 3)


def right_leaves(question: str) -> float:
    """The share of all chains that are right: the policy's chance with one chain."""

    def below(path: str, level: int) -> float:
        if level == depth(question):
            return 1.0
        children = [f"{path}{branch} " for branch in range(BRANCHES)]
        right = [child for child in children if not _is_spoiled_by(question, child)]
        return sum(below(child, level + 1) for child in right) / BRANCHES

    return below("", 0)


def _probability(question: str, texts: Sequence[str], noise: float) -> float:
    path = "".join(text.split("#")[0].strip() + " " for text in texts)
    truth = 2.0 if is_right(question, path) else -2.0
    z = _NORMAL.inv_cdf(min(max(_fraction(question, path, "noise"), 1e-9), 1 - 1e-9))
    return 1 / (1 + math.exp(-(truth + noise * z)))


def is_right(question: str, path: str) -> bool:
    """Whether no step of a path, such as `"0 3 1 "`, is wrong."""
    ends = range(2, len(path) + 1, 2)
    return not any(_is_spoiled_by(question, path[:end]) for end in ends)


def _is_spoiled_by(question: str, path: str) -> bool:
    """Whether the last step of the path is wrong."""
    difficulty = 0.1 + 0.6 * _fraction(question, "difficulty")
    return _fraction(question, path, "wrong") < difficulty


def _answer(question: str, path: str) -> str:
    if is_right(question, path):
        return RIGHT
    drawn = _fraction(question, path, "answer")
    return WRONG[0] if drawn < 0.5 else WRONG[1 + int((drawn - 0.5) * 8)]


def _fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts only."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
