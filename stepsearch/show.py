"""A solution as text for the terminal."""

from __future__ import annotations

from collections import Counter

from stepsearch.search.errors import UnjudgedError
from stepsearch.search.select import Selection
from stepsearch.search.types import ScoredStep, Solution

_RESET, _BOLD, _DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
_RED, _YELLOW, _GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"
_MEANING = {"best": "score", "weighted": "share of scores", "majority": "share of votes"}
_SURE = 0.7
"""A step with at least this probability is shown as sure."""


def render(solution: Solution, *, colour: bool, select: Selection | None = None) -> str:
    """The chosen chain with its step scores, the answer and what it cost.

    Args:
        solution: the result.
        colour: whether the terminal shows colours.
        select: how the answer was chosen, which says what its score is.
    """
    lines = [_step(step, solution, colour) for step in solution.steps]
    lines = lines or [_nothing_chosen(solution)]
    answer = solution.answer if solution.answer is not None else "none"
    if solution.stop == "abstained":
        answer = "withheld"
    lines += ["", f"answer  {_paint(answer, _BOLD, colour)}{_why(solution, select)}"]
    for line in (*_verdict(solution), _votes(solution), _cost(solution)):
        lines.append(_paint(line, _DIM, colour))
    if solution.error:
        lines.append(_paint(f"note    {solution.error}", _YELLOW, colour))
    return "\n".join(lines)


def _nothing_chosen(solution: Solution) -> str:
    if solution.candidates:
        return "(no finished chain has a score)"
    hint = " within the budget; a larger budget or a smaller search.n may do"
    return f"(no chain was finished{hint if solution.stop == 'budget' else ''})"


def _cost(solution: Solution) -> str:
    """What a search spent, in one line; what was under way at Ctrl-C never said what it cost."""
    usage = solution.usage
    reused = usage.prompt_tokens_reused
    verifier = "?" if usage.verifier_tokens is None else f"{usage.verifier_tokens:,}"
    prompt = "?" if usage.prompt_tokens is None else f"{usage.prompt_tokens:,}"
    missing = ", without what was under way" if solution.stop == "cancelled" else ""
    return (
        f"cost    {usage.policy_tokens:,} policy tokens in {usage.policy_calls} continuations "
        f"({prompt} prefix tokens computed, {'?' if reused is None else f'{reused:,}'} reused), "
        f"{verifier} verifier tokens, {usage.seconds:.1f} s{missing}"
    )


def _step(step: ScoredStep, solution: Solution, colour: bool) -> str:
    """The step behind its score and a sign that needs no colour: x wrong, ? unsure."""
    sign, paint = _judgement(step, solution)
    score = "   -  " if step.score is None else f"{step.score:6.3f}"
    text = step.text.strip("\n").replace("\n", "\n          ")
    note = f"  {_paint('[' + step.note + ']', _DIM, colour)}" if step.note else ""
    return f"{_paint(f'{score} {sign}', paint, colour)}  {text}{note}"


def _judgement(step: ScoredStep, solution: Solution) -> tuple[str, str]:
    spec = solution.verifier
    if step.score is None or spec is None:
        return " ", _DIM
    if spec.threshold is not None and step.score < spec.threshold:
        return "x", _RED
    if spec.range == "probability":
        return (" ", _GREEN) if step.score >= _SURE else ("?", _YELLOW)
    return " ", _GREEN if spec.threshold is not None else _DIM


def _verdict(solution: Solution) -> list[str]:
    """Which step is the first one judged wrong, and how many are unsure."""
    signs = [_judgement(step, solution)[0] for step in solution.steps]
    said = [f"{signs.count('?')} of {len(signs)} unsure (?)"] if "?" in signs else []
    try:
        first = solution.first_error()
        said.insert(0, "none judged wrong" if first is None else f"{first + 1} judged wrong (x)")
    except UnjudgedError:
        pass  # without a threshold the signs say what can be said
    return [f"steps   {', '.join(said)}"] if said and signs else []


def _why(solution: Solution, select: Selection | None) -> str:
    if solution.stop == "abstained":
        return _doubt(solution)
    meaning = "score" if select is None else _MEANING[select]
    score = "" if solution.score is None else f"  ({meaning} {solution.score:.3f})"
    return score if solution.stop == "done" else f"{score}  [stop: {solution.stop}]"


def _doubt(solution: Solution) -> str:
    """Why an answer was withheld; with `weighted` its share or its chain's score was too low."""
    chains = {chain.node: chain.score for chain in solution.candidates}
    score, chain = solution.score, chains.get(-1 if solution.node is None else solution.node)
    if score is None or chain is None or chain == score:
        return "" if score is None else f"  (score {score:.3f} is below abstain_below)"
    return f"  (share {score:.3f} or chain's score {chain:.3f} is below abstain_below)"


def _votes(solution: Solution) -> str:
    finished = sum(c.stop == "eos" for c in solution.candidates)
    cut = len(solution.candidates) - finished
    answers = Counter(c.answer for c in solution.candidates if c.answer is not None)
    shown = ", ".join(f"{answer} x{count}" for answer, count in answers.most_common(5))
    unread = " (none can be read: is the policy one for the task and its prompt format?)"
    told = shown or f"none{unread if finished else ''}"
    return f"chains  {finished} finished{f', {cut} cut' if cut else ''}, answers: {told}"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour else text
