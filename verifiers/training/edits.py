"""Edits of right solutions: some should not matter to a verifier, some make a step wrong.

An edit takes the steps of a solution and a random generator, and returns other steps, or None where
it does not apply. The step that states the final answer is left alone, since its form is read by
programs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

Edit = Callable[[Sequence[str], random.Random], list[str] | None]

_FINAL = re.compile(r"^\s*####|\\boxed")
_PADDING = " Let us note this carefully before we go on to the next part of the solution."
_SYNONYMS = {
    "additionally": "also",
    "also": "additionally",
    "altogether": "in all",
    "buys": "purchases",
    "find": "determine",
    "first": "at first",
    "gets": "receives",
    "hence": "so",
    "kids": "children",
    "money": "cash",
    "needs": "requires",
    "so": "thus",
    "spends": "pays",
    "therefore": "hence",
    "thus": "so",
    "total": "overall",
}
_WORD = re.compile(rf"\b({'|'.join(_SYNONYMS)})\b", re.IGNORECASE)
_OPERATOR = re.compile(r"(?<=[\d)%])(\s*)([-+*/\u00d7\u00f7])(\s*)(?=[$(]?\d)")
_FLIPPED = {"+": "-", "-": "+", "*": "/", "/": "*", "\u00d7": "\u00f7", "\u00f7": "\u00d7"}
_RESULT = re.compile(r"=\s*\$?\s*(\d[\d,]*)(?![\d,]*\s*[-+*/=\u00d7\u00f7])")


def bullets(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """Every step becomes a bullet point."""
    return _each(steps, lambda number, step: f"- {step}")


def first_person(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """Every step is said by somebody."""
    return _each(steps, lambda number, step: f"I find that {step}")


def numbering(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """Every step gets its number."""
    return _each(steps, lambda number, step: f"Step {number}: {step}")


def synonyms(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """Words are replaced by others that say the same."""

    def swap(match: re.Match[str]) -> str:
        word = _SYNONYMS[match[0].lower()]
        return word.capitalize() if match[0][0].isupper() else word

    return _each(steps, lambda number, step: _WORD.sub(swap, step))


def merging(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """Two neighbouring steps become one."""
    places = [k for k in range(len(steps) - 1) if not _is_final(steps[k + 1])]
    if not places:
        return None
    k = rng.choice(places)
    return [*steps[:k], f"{_sentence(steps[k])} {steps[k + 1].lstrip()}", *steps[k + 2 :]]


def padding(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """Every step gets longer and says no more."""
    return _each(steps, lambda number, step: _sentence(step) + _PADDING)


def sign_flip(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """One operator before an equals sign is replaced by its opposite."""
    return _at_one(
        steps,
        rng,
        lambda step: [m for m in _OPERATOR.finditer(step) if "=" in step[m.end() :]],
        lambda match: match[1] + _FLIPPED[match[2]] + match[3],
    )


def number_change(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """One result behind an equals sign is replaced by a number nearby."""

    def change(match: re.Match[str]) -> str:
        value = int(match[1].replace(",", "")) + rng.randint(1, 9)
        return match[0][: match.start(1) - match.start()] + str(value)

    return _at_one(steps, rng, lambda step: list(_RESULT.finditer(step)), change)


def step_drop(steps: Sequence[str], rng: random.Random) -> list[str] | None:
    """One step with a result is left out, and what follows still uses it."""
    places = [k for k, step in enumerate(steps) if "=" in step and not _is_final(step)]
    if len(places) < 2:
        return None
    k = rng.choice(places)
    return [*steps[:k], *steps[k + 1 :]]


NEUTRAL: Mapping[str, Edit] = {
    edit.__name__: edit for edit in (bullets, first_person, numbering, synonyms, merging, padding)
}
HARMFUL: Mapping[str, Edit] = {
    edit.__name__: edit for edit in (sign_flip, number_change, step_drop)
}


def _sentence(step: str) -> str:
    """The step with an end, so that something can follow it."""
    text = step.rstrip()
    return text if text.endswith((".", "!", "?", ":")) else text + "."


def _is_final(step: str) -> bool:
    return _FINAL.search(step) is not None


def _each(steps: Sequence[str], change: Callable[[int, str], str]) -> list[str] | None:
    """All steps but the final one changed; None when that changes nothing."""
    changed = [
        step if _is_final(step) else change(number, step) for number, step in enumerate(steps, 1)
    ]
    return None if changed == list(steps) else changed


def _at_one(
    steps: Sequence[str],
    rng: random.Random,
    find: Callable[[str], list[re.Match[str]]],
    change: Callable[[re.Match[str]], str],
) -> list[str] | None:
    """One place of one step changed; None when there is no place."""
    places = [(k, m) for k, step in enumerate(steps) if not _is_final(step) for m in find(step)]
    if not places:
        return None
    k, match = rng.choice(places)
    step = steps[k]
    return [
        *steps[:k],
        step[: match.start()] + change(match) + step[match.end() :],
        *steps[k + 1 :],
    ]
