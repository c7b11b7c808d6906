"""Ten small code problems, and a policy that solves some of them in some of its samples."""

from __future__ import annotations

from typing import Any, NamedTuple

from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.programs import blocks
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step
from stepsearch.verifiers.scripted import ScriptedVerifier


class Code(NamedTuple):
    """A problem: what is asked, what decides, a right body, and bodies that fail, each its way."""

    name: str
    prompt: str
    test: str
    right: str
    wrong: tuple[str, ...]


def _code(signature: str, doc: str, checks: str, right: str, *wrong: str) -> Code:
    name = signature.partition("(")[0]
    test = "def check(candidate):\n" + "".join(f"    assert {c}\n" for c in checks.split("; "))
    prompt = f'def {signature}:\n    """{doc}"""\n'
    return Code(name, prompt, test, right, wrong)


CODE = (
    _code(
        "double(x)", "Twice x.", "candidate(3) == 6; candidate(-1) == -2", "    return 2 * x\n",
        "    return x ** 2\n",
    ),
    _code(
        "largest(xs)", "The largest number of a list, None of an empty one.",
        "candidate([1, 5, 2]) == 5; candidate([]) is None; candidate([-3]) == -3",
        "    if not xs:\n        return None\n    return max(xs)\n",
        "    best = 0\n    for x in xs:\n        best = max(best, x)\n    return best\n",
    ),
    _code(
        "is_palindrome(text)", "Whether a text reads the same backwards.",
        "candidate('abba'); not candidate('abc'); candidate('')",
        "    back = text[::-1]\n    return text == back\n", "    return text[0] == text[-1]\n",
    ),
    _code(
        "fib(n)", "The n-th Fibonacci number; fib(0) is 0.",
        "candidate(0) == 0; candidate(1) == 1; candidate(30) == 832040",
        "    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
        "    a, b = 0, 1\n    while True:\n        a, b = b, a + b\n    return a\n",
    ),
    _code(
        "count_words(text)", "How often each word occurs.",
        "candidate('a b a') == {'a': 2, 'b': 1}; candidate('') == {}",
        "    found = {}\n    for word in text.split():\n"
        "        found[word] = found.get(word, 0) + 1\n    return found\n",
        "    found = {}\n    for word in text.split():\n"
        "        found[word] += 1\n    return found\n",
    ),
    _code(
        "flatten(xs)", "A list of lists as one list.",
        "candidate([[1], [2, 3], []]) == [1, 2, 3]; candidate([]) == []",
        "    return [x for part in xs for x in part]\n", "    return sum(xs)\n",
    ),
    _code(
        "gcd(a, b)", "The greatest common divisor.",
        "candidate(12, 18) == 6; candidate(7, 3) == 1; candidate(5, 0) == 5",
        "    while b:\n        a, b = b, a % b\n    return a\n",
        "    return min(a, b) or max(a, b)\n",
    ),
    _code(
        "second(xs)", "The second largest number of a list.",
        "candidate([3, 1, 2]) == 2; candidate([5, 5, 4]) == 5",
        "    ordered = sorted(xs)\n    return ordered[-2]\n",
        "    import sys\n    sys.exit(0)\n",
    ),
    _code(
        "primes(n)", "The primes below n.",
        "candidate(10) == [2, 3, 5, 7]; candidate(2) == []",
        "", "    table = [True] * (n << 40)\n    return table\n", "    return [2, 3, 5, 7]\n",
    ),
    _code(
        "roman(n)", "A number from 1 to 3 in Roman numerals.", "candidate(3) == 'III'",
        "", "    return 'I' * n +\n", "    return str(n)\n",
    ),
)  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """The problems in the format of HumanEval; the last two are beyond the policy."""
    return [
        {"task_id": c.name, "prompt": c.prompt, "entry_point": c.name, "test": c.test}
        | ({"canonical_solution": c.right} if c.right else {})
        for c in CODE
    ]


def _bodies(prompt: str) -> tuple[str, ...]:
    code = next(c for c in CODE if c.prompt in prompt)
    return (*code.wrong, *([code.right] if code.right else []))


def coder() -> ScriptedPolicy:
    """Writes one of the bodies it knows, block by block; the seed of its first step chooses."""

    def propose(chain: Chain, seed: int) -> Step:
        bodies = _bodies(chain.prompt)
        fitting = [body for body in bodies if body.startswith(chain.text) and body != chain.text]
        steps = blocks(fitting[seed % len(fitting)])
        text = steps[len(chain)]
        return scripted_step(text, "eos" if len(chain) + 1 == len(steps) else "step")

    return ScriptedPolicy(propose)


def reviewer() -> ScriptedVerifier:
    """Prefers beginnings of right programs; it runs nothing."""

    def score(chain: Chain) -> list[float]:
        texts = chain.texts
        told = [_liking(chain.prompt, "".join(texts[: k + 1])) for k in range(len(texts))]
        return told[-chain.num_new :]

    return ScriptedVerifier(score_fn=score, name="reviewer")


def _liking(prompt: str, text: str) -> float:
    right = next(c for c in CODE if c.prompt in prompt).right
    return 0.9 if right.startswith(text) else 0.2
