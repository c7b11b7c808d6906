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
from typing import NamedTuple, Protocol, runtime_checkable

from stepsearch.search.contracts import StepScores, Verifier, VerifierSpec
from stepsearch.search.errors import VerifierError
from stepsearch.search.scores import checked
from stepsearch.search.tree import Chain, Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.findings import Finding, agree, counts, order, template, values

_log = logging.getLogger(__name__)

_ALONE = 2
"""Probes that are scored once more by themselves; more would cost seconds and show the same."""

_QUESTION = "Tom has 3 boxes of 4 pens and gives 5 pens away. How many pens has he left?"
_GOOD = ("There are 3 * 4 = 12 pens in the boxes.", "He keeps 12 - 5 = 7 pens.", "The answer is 7.")
_ODD = {
    "a newline inside a step": ("There are 3 boxes.\nEach holds 4 pens.", "3 * 4 = 12"),
    "an empty step": ("There are 3 boxes.", "", "3 * 4 = 12"),
    "one step": ("The answer is 7.",),
}
_PROOFS = (
    (_QUESTION, _GOOD, (_GOOD[0], "He keeps 12 - 5 = 9 pens.", "The answer is 9.")),
    (
        "Solve 2x + 6 = 10 for x.",
        ("Subtract 6 on both sides: 2x = 4.", "Divide by 2: x = 2.", "The answer is 2."),
        ("Subtract 6 on both sides: 2x = 16.", "Divide by 2: x = 8.", "The answer is 8."),
    ),
    (
        "What is 15 % of 80?",
        ("15 % is 0.15.", "0.15 * 80 = 12.", "The answer is 12."),
        ("15 % is 0.15.", "0.15 * 80 = 120.", "The answer is 120."),
    ),
)


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


class _Probe(NamedTuple):
    name: str
    question: str
    steps: tuple[str, ...]


async def selfcheck(verifier: Verifier) -> Report:
    """Score probes and report what came out.

    Raises:
        VerifierError: the verifier's backend failed for good.
    """
    spec = verifier.spec
    ask = partial(_ask, verifier)
    probes, proofs = _odd_probes(spec), _proof_probes()
    together = await ask([*probes, *proofs])
    odd, proved = together[: len(probes)], together[len(probes) :]
    alone = [(await ask([probe]))[0] for probe in probes[:_ALONE]]
    findings = [
        counts([probe.name for probe in probes], odd),
        values(spec, together),
        agree(
            "batched, padded", "alone and in a batch of unequal lengths", spec, alone, odd[:_ALONE]
        ),
        await _grows(verifier, proved[0]),
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


async def _ask(verifier: Verifier, probes: Sequence[_Probe]) -> list[StepScores]:
    chains = [_chain(probe.question, probe.steps) for probe in probes]
    scores = await verifier.score(chains)
    if len(scores) != len(chains):
        raise VerifierError(f"{len(scores)} results for {len(chains)} chains; return one for each")
    return [
        checked(s, verifier.spec, num_steps=len(c), num_new=c.num_new)
        for s, c in zip(scores, chains, strict=True)
    ]


def _chain(question: str, steps: Sequence[str], num_new: int = -1) -> Chain:
    return Tree(question).chain(0, tuple(Step(text=f"{s}\n\n") for s in steps), num_new=num_new)


def _odd_probes(spec: VerifierSpec) -> list[_Probe]:
    probes = [_Probe(name, _QUESTION, steps) for name, steps in _ODD.items()]
    mark = spec.provenance.get("format", {}).get("mark")
    if mark and mark not in spec.reserved:
        quoted = f"{_QUESTION} ({mark}{mark})"
        probes.append(_Probe("the mark in the question and in a step", quoted, (mark, *_GOOD)))
    return probes


def _proof_probes() -> list[_Probe]:
    return [
        _Probe("proof", question, steps) for question, good, bad in _PROOFS for steps in (good, bad)
    ]


async def _grows(verifier: Verifier, whole: StepScores) -> Finding:
    check, spec = "incremental", verifier.spec
    if not spec.incremental or spec.kind != "step":
        return Finding(check, "skipped", "scores speak of the whole chain: nothing is reused")
    grown = [
        (await verifier.score([_chain(_QUESTION, _GOOD[: i + 1], num_new=1)]))[0]
        for i in range(len(_GOOD))
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
    (score,) = await verifier.score([_chain(_QUESTION, (*_GOOD, "word " * (limit + 1)))])
    if score.failure is not None and score.failure.kind == "too_long":
        return Finding(check, "ok", f"above {limit} tokens nothing is cut and nothing is scored")
    return Finding(
        check,
        "failed",
        f"a chain above max_length={limit} was scored, so something was cut from it; fail with"
        " kind too_long instead",
    )
