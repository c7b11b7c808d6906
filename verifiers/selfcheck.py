"""Self-check of a verifier: a few probes whose right behaviour is known, whatever the model.

A wrong mark, head, template or padding rule gives plausible numbers; each of the checks below was a
silent fault of a published pipeline. They cost seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from stepsearch.search.contracts import StepScores, Verifier
from stepsearch.search.errors import VerifierError
from stepsearch.search.scores import checked
from stepsearch.verifiers.findings import Finding, agree, counts, order, template, values
from stepsearch.verifiers.probes import QUESTION, STEPS, Probe, chain_of, odd_probes, proof_probes
from stepsearch.verifiers.stepwise import ask

_log = logging.getLogger(__name__)

_BATCH = 10
"""Probes that are scored at once; attention over all of them packed together costs more."""

_ALONE = 2
"""Probes that are scored once more by themselves; more would cost seconds and show the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a self-check found, in the order of the checks."""

    verifier: str
    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        """Whether nothing failed; warnings are allowed."""
        return all(finding.status != "failed" for finding in self.findings)

    def __str__(self) -> str:
        """One line a check."""
        width = max(len(finding.check) for finding in self.findings)
        lines = [f"{f.status:8} {f.check:{width}}  {f.detail}" for f in self.findings]
        verdict = "may be used" if self.is_ok else "must not be used"
        return "\n".join([*lines, f"{self.verifier} {verdict}"])


@runtime_checkable
class HasCache(Protocol):
    """A verifier that can be used without what it remembers."""

    def uncached(self) -> AbstractContextManager[Verifier]:
        """The same verifier without its cache, until the context ends."""
        ...


async def selfcheck(verifier: Verifier) -> Report:
    """Score probes and report what came out.

    Raises:
        VerifierError: the verifier's backend failed for good.
    """
    spec = verifier.spec
    scored = partial(_scored, verifier)
    probes = odd_probes(spec)
    together = await scored([*probes, *proof_probes()])
    odd, proved = together[: len(probes)], together[len(probes) :]
    alone = [(await scored([probe]))[0] for probe in probes[:_ALONE]]
    findings = [
        counts([probe.name for probe in probes], odd),
        values(spec, together),
        agree(
            "batched, padded", "alone and in a batch of unequal lengths", spec, alone, odd[:_ALONE]
        ),
        await _grows(verifier, probes[0], odd[0]),
        await _length(verifier),
        order(spec, proved),
        template(spec),
    ]
    return Report(verifier=spec.name, findings=tuple(findings))


def check(verifier: Verifier) -> Report:
    """`selfcheck` for callers that are not asynchronous, also inside a running event loop.

    Raises:
        VerifierError: the verifier's backend failed for good.
    """
    # A cache would compare a number with itself.
    bare = verifier.uncached() if isinstance(verifier, HasCache) else nullcontext(verifier)
    with bare as probe, ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(selfcheck(probe))).result()


def require(verifier: Verifier) -> None:
    """Check a verifier that is being loaded; warnings are logged.

    Raises:
        VerifierError: a check failed; says which and what to do.
    """
    report = check(verifier)
    for finding in report.findings:
        if finding.status == "warning":
            _log.warning("%s: %s: %s", report.verifier, finding.check, finding.detail)
    failed = [f"{f.check}: {f.detail}" for f in report.findings if f.status == "failed"]
    if failed:
        raise VerifierError(
            f"{report.verifier} failed its self-check: {'; '.join(failed)}. See all of it with"
            " stepsearch check-verifier"
        )


async def _scored(verifier: Verifier, probes: Sequence[Probe]) -> list[StepScores]:
    found = []
    for start in range(0, len(probes), _BATCH):
        chains = [probe.chain() for probe in probes[start : start + _BATCH]]
        scores = await ask(verifier, chains)
        found += [
            checked(s, verifier.spec, num_steps=len(c), num_new=c.num_new)
            for s, c in zip(scores, chains, strict=True)
        ]
    return found


async def _grows(verifier: Verifier, probe: Probe, whole: StepScores) -> Finding:
    check, spec = "incremental", verifier.spec
    if not spec.incremental or spec.kind != "step":
        return Finding(check, "skipped", "scores speak of the whole chain: nothing is reused")
    grown = [
        (await ask(verifier, [probe.chain(num_steps, num_new=1)]))[0]
        for num_steps in range(1, len(probe.steps) + 1)
    ]
    if whole.failure is not None or any(score.failure is not None for score in grown):
        return Finding(check, "skipped", "no probe was scored")
    values = tuple(score.values[-1] for score in grown)
    what = "step by step and at once"
    return agree(check, what, spec, [StepScores(values=values)], [whole])


async def _length(verifier: Verifier) -> Finding:
    check, limit = "too long is a failure", verifier.spec.max_length
    if limit is None:
        return Finding(check, "skipped", "no limit is declared")
    (score,) = await ask(verifier, [chain_of(QUESTION, (*STEPS, "word " * (limit + 1)))])
    if score.failure is not None and score.failure.kind == "too_long":
        return Finding(check, "ok", f"above {limit} tokens nothing is cut and nothing is scored")
    return Finding(
        check,
        "failed",
        f"a chain above max_length={limit} was scored, so something was cut from it; fail with"
        " kind too_long instead",
    )
