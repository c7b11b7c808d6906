"""Word problems solved by a policy that errs now and then, judged by a verifier with an opinion."""

from __future__ import annotations

import re
from functools import cache

from stepsearch.benchmarks.word_problems import WordProblems
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step
from stepsearch.verifiers.scripted import ScriptedVerifier
from support.worlds import fraction


@cache
def _solutions(n: int) -> dict[str, list[str]]:
    problems = WordProblems(limit=n).problems()
    return {p.text: p.meta["solution"].splitlines(keepends=True) for p in problems}


def noisy_policy(*, n: int = 200, error: float = 0.2, num_parameters: int = 1000) -> ScriptedPolicy:
    """Writes the known solution; each step goes wrong with probability `error`, and stays so."""

    def propose(chain: Chain, seed: int) -> Step:
        lines = _solutions(n)[chain.question]
        line = lines[len(chain)]
        is_wrong = "?" in chain.text or fraction("err", chain.text, seed) < error
        if is_wrong:
            guess = int(fraction("guess", chain.text, seed) * 4)
            line = re.sub(r"\d+(?=\D*$)", lambda m: str(int(m[0]) + 1 + guess), line)
            line = line if line.startswith("####") else line.rstrip("\n") + " ?\n"
        return scripted_step(line, "eos" if line.startswith("####") else "step")

    return ScriptedPolicy(propose, num_parameters=num_parameters)


def doubtful_verifier(*, noise: float = 0.6) -> ScriptedVerifier:
    """Right steps score higher than wrong ones, with noise that depends on the text."""

    def score(chain: Chain) -> list[float]:
        texts = chain.texts
        ends = range(len(texts) - chain.num_new, len(texts))
        prefixes = ["".join(texts[: k + 1]) for k in ends]
        return [
            (1 - noise) * ("?" not in prefix) + noise * fraction("s", chain.question, prefix)
            for prefix in prefixes
        ]

    return ScriptedVerifier(score_fn=score, num_parameters=500, tokens_per_step=8)
