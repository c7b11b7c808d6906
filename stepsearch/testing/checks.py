"""Running checks one after the other, and telling all that failed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from stepsearch.search.background import background
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.requirements import require_part

Check = Callable[[], Coroutine[Any, Any, None]]


class ConformanceError(AssertionError):
    """A plug-in does not keep the contract.

    Attributes:
        failures: by check, what is wrong and what to do.
    """

    def __init__(self, name: str, failures: Mapping[str, str]) -> None:
        self.failures = dict(failures)
        listed = "\n".join(f"- {check}: {message}" for check, message in failures.items())
        super().__init__(f"{name} fails {len(failures)} checks:\n{listed}")


class BrokenContractError(Exception):
    """One check failed; the message says what to do."""


def require(condition: object, message: str) -> None:
    """Raise `BrokenContractError` unless the condition holds."""
    if not condition:
        raise BrokenContractError(message)


def require_object(kind: str, given: object) -> None:
    """Raise `ConfigurationError` unless it is an object that can be one at all, and no class."""
    if isinstance(given, type):
        raise ConfigurationError(
            f"check_{kind} takes an object, not the class {given.__name__}; "
            f"give check_{kind}({given.__name__}(...))"
        )
    require_part("search" if kind == "strategy" else kind, given)


_NO_COROUTINE = "can't be used in 'await' expression"
"""What Python says where a method is no coroutine."""


def run_checks(name: str, checks: Mapping[str, Check], timeout: float) -> list[str]:
    """Run all checks, each within `timeout` seconds; the names of all.

    Raises:
        ConformanceError: some failed.
    """
    failures = {}
    for check, run in checks.items():
        future = background.submit(asyncio.wait_for(run(), timeout))
        try:
            future.result(timeout + 1)
        except BrokenContractError as error:
            failures[check] = str(error)
        except TimeoutError:
            if not future.done():
                failures[check] = (
                    f"blocked the event loop for {timeout:g} s; await, or use a thread"
                )
                break  # nothing else can run there
            failures[check] = f"did not come back within {timeout:g} s; see what it waits for"
        except BaseException as error:
            if not future.done():  # somebody's Ctrl-C
                raise
            advice = "; write `async def`" if _NO_COROUTINE in str(error) else ""
            failures[check] = f"raised {type(error).__name__}: {error}{advice}"
    if failures:
        raise ConformanceError(name, failures)
    return list(checks)
