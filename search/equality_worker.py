"""Decides with math-verify whether two answers are equal; one process, JSON lines over its pipes.

Run as `python -m stepsearch.search.equality_worker`. The first line it writes is `{"ready": true}`
or `{"error": ...}`; then it answers `{"id", "a", "b", "seconds"}` with `{"id", "equal"}`, where
`equal` is null when an answer cannot be parsed or does not fit in memory. The caller kills a
process that takes too long: nothing that runs in it can be trusted to notice.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 2 << 30
_DECIMAL_TOLERANCE = 1e-6
_EXACT_TOLERANCE = 1e-20
_DIGITS = 40
_RADIANS = r"(\1\\cdot\\frac{\\pi}{180})"
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\^\\circ(?![A-Za-z])")


Compare = Callable[[str, str], bool | None]
"""Decides whether two answers are equal; None when they cannot be compared."""


def load() -> Compare:
    """Import math-verify and build the comparison. Raises `ImportError` when it is missing."""
    import sympy  # type: ignore[import-untyped]
    from math_verify import (  # type: ignore[import-untyped]
        LatexExtractionConfig,
        parse,
        verify,
    )

    config = (LatexExtractionConfig(),)

    def parsed(text: str) -> Any:
        # Without the fallbacks, which would take a number out of a formula that does not parse.
        found = parse(
            f"${_DEGREES.sub(_RADIANS, text)}$",
            extraction_config=config,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
        )
        return found[0] if found else None

    def constant(value: Any) -> Any:
        """The value with `i` as the imaginary unit, when no other symbol makes it a variable."""
        if not isinstance(value, sympy.Expr) or {s.name for s in value.free_symbols} != {"i"}:
            return value
        return value.subs(dict.fromkeys(value.free_symbols, sympy.I))

    def is_assignment(value: Any) -> bool:
        return isinstance(value, sympy.Eq) and (
            value.lhs.is_Symbol or isinstance(value.lhs, sympy.core.function.AppliedUndef)
        )

    def numerically(a: Any, b: Any) -> bool | None:
        """Decide between two constants; None leaves it to the symbols."""
        is_decimal = bool(a.atoms(sympy.Float) | b.atoms(sympy.Float))
        x, y = sympy.N(a, _DIGITS), sympy.N(b, _DIGITS)
        if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
            return None
        size = max(abs(x), abs(y))
        if size == 0:
            return True
        difference = abs(x - y) / size
        if is_decimal:
            return bool(difference <= _DECIMAL_TOLERANCE)
        return False if difference > _EXACT_TOLERANCE else None

    def compare(a: str, b: str) -> bool | None:
        x, y = parsed(a), parsed(b)
        if x is None or y is None:
            return None
        if isinstance(x, sympy.Eq) != isinstance(y, sympy.Eq):
            # The right side of an equation is a value only when its left side is a name.
            equation = x if isinstance(x, sympy.Eq) else y
            if not is_assignment(equation):
                return False
            x, y = (e.rhs if e is equation else e for e in (x, y))
        x, y = constant(x), constant(y)
        if all(isinstance(e, sympy.Expr) and not e.free_symbols for e in (x, y)):
            decided = numerically(x, y)
            if decided is not None:
                return decided
        options = {"timeout_seconds": None, "raise_on_error": False}
        return bool(verify(x, y, **options) or verify(y, x, **options))

    return compare


def limit_memory() -> None:
    """Cap the address space, where the system can."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def end_after(seconds: float) -> None:
    """Let the system end this process after `seconds`, should the caller be gone; 0 disarms."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def answer(compare: Compare, request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request. An error of the comparison is an undecided pair."""
    end_after(2 * request["seconds"] + 1)
    try:
        equal = compare(request["a"], request["b"])
    except Exception as error:
        return {"id": request["id"], "equal": None, "error": type(error).__name__}
    finally:
        end_after(0)
    return {"id": request["id"], "equal": equal}


def main() -> None:
    """Serve until standard input is closed."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a stray print must not enter the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        compare = load()
        compare("x+1", "1+x")  # the first comparison imports and compiles; not on a caller's time
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    limit_memory()
    reply({"ready": True})
    for line in sys.stdin:
        reply(answer(compare, json.loads(line)))


if __name__ == "__main__":
    main()
