"""A solution as text for the terminal."""

from __future__ import annotations

from collections import Counter

from stepsearch.search.types import ScoredStep, Solution, Usage

_RESET, _BOLD, _DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
_RED, _YELLOW, _GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


def render(solution: Solution, *, colour: bool) -> str:
    """The chosen chain with its step scores, the answer and what it cost."""
    lines = [_step(step, colour) for step in solution.steps] or ["(no chain was finished)"]
    answer = solution.answer if solution.answer is not None else "none"
    lines += ["", f"answer  {_paint(answer, _BOLD, colour)}{_why(solution)}"]
    lines.append(_paint(_votes(solution), _DIM, colour))
    lines.append(_paint(cost(solution.usage), _DIM, colour))
    if solution.error:
        lines.append(_paint(f"note    {solution.error}", _YELLOW, colour))
    return "\n".join(lines)


def cost(usage: Usage) -> str:
    """What a search spent, in one line."""
    reused = usage.prompt_tokens_reused
    verifier = "?" if usage.verifier_tokens is None else f"{usage.verifier_tokens:,}"
    prompt = "?" if usage.prompt_tokens is None else f"{usage.prompt_tokens:,}"
    return (
        f"cost    {usage.policy_tokens:,} policy tokens in {usage.policy_calls} continuations "
        f"({prompt} prefix tokens computed, {'?' if reused is None else f'{reused:,}'} reused), "
        f"{verifier} verifier tokens, {usage.seconds:.1f} s"
    )


def _step(step: ScoredStep, colour: bool) -> str:
    if step.score is None:
        mark, paint = "   -  ", _DIM
    else:
        mark = f"{step.score:6.3f}"
        paint = _GREEN if step.score >= 0.7 else _YELLOW if step.score >= 0.2 else _RED
    text = step.text.strip("\n").replace("\n", "\n        ")
    note = f"  {_paint('[' + step.note + ']', _DIM, colour)}" if step.note else ""
    return f"{_paint(mark, paint, colour)}  {text}{note}"


def _why(solution: Solution) -> str:
    score = "" if solution.score is None else f"  (score {solution.score:.3f})"
    return score if solution.stop == "done" else f"{score}  [stop: {solution.stop}]"


def _votes(solution: Solution) -> str:
    finished = sum(c.stop == "eos" for c in solution.candidates)
    answers = Counter(c.answer for c in solution.candidates if c.answer is not None)
    shown = ", ".join(f"{answer} x{count}" for answer, count in answers.most_common(5))
    return f"chains  {finished} finished, answers: {shown or 'none'}"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour else text
