"""Outages: a verifier that is out of reach for a moment is asked again before anything is given up.

Chains are asked for again together, so an outage costs the waits once however many wait for it. It
changes when scores arrive and not which, so the tree is what it would have been.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Chain

OUTAGES = (ConnectionError, TimeoutError)
"""What a verifier raises when asking again may help."""

WAITS = (0.5, 2.0, 8.0)
"""Seconds before a verifier is asked for the second, third and last time."""

_log = logging.getLogger(__name__)


def patient(
    verifier: Verifier,
) -> Callable[[Sequence[Chain]], Awaitable[Sequence[StepScores | Exception]]]:
    """The verifier's `score`, asked again after an outage.

    At last each chain is asked for alone; one for which the verifier stays out of reach gets a
    `VerifierError` in place of scores.
    """

    async def score(chains: Sequence[Chain]) -> Sequence[StepScores | Exception]:
        for wait in WAITS:
            try:
                return await verifier.score(chains)
            except OUTAGES as error:
                _log.warning("verifier %r: %r; asked again in %g s", _name(verifier), error, wait)
                await asyncio.sleep(wait)
        return await _last_time(verifier, chains)

    return score


async def _last_time(
    verifier: Verifier, chains: Sequence[Chain]
) -> Sequence[StepScores | Exception]:
    try:
        return await verifier.score(chains)
    except OUTAGES as error:
        if len(chains) == 1:
            return [_given_up(verifier, error)]
    # It may be one of them that breaks the connection; the others are not to suffer from it.
    return await asyncio.gather(*(_alone(verifier, chain) for chain in chains))


async def _alone(verifier: Verifier, chain: Chain) -> StepScores | Exception:
    try:
        [scores] = await verifier.score([chain])
    except OUTAGES as error:
        return _given_up(verifier, error)
    except Exception as error:
        return error
    return scores


def _given_up(verifier: Verifier, error: Exception) -> VerifierError:
    return VerifierError(
        f"verifier {_name(verifier)!r} was out of reach for {sum(WAITS):g} s "
        f"({type(error).__name__}: {error}); see that its server runs"
    )


def _name(verifier: Verifier) -> str:
    return verifier.spec.name
