"""Provenance: what a result was made with, as plain data for traces and reports."""

from __future__ import annotations

import platform
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from importlib import metadata
from typing import Any

from stepsearch.search.plain import plain
from stepsearch.search.run import RunSettings


def describe(settings: RunSettings) -> dict[str, Any]:
    """Versions, models, parameters and seeds of an engine."""
    policy, verifier = settings.policy, settings.verifier
    described: dict[str, Any] = plain(
        {
            "stepsearch": version(),
            "python": platform.python_version(),
            "policy": {"class": _path(policy), **asdict(policy.spec)},
            "verifier": None
            if verifier is None
            else {"class": _path(verifier), **asdict(verifier.spec)},
            "strategy": _component(settings.strategy),
            "task": _component(settings.task),
            "select": settings.select,
            "vote_weight": settings.vote_weight,
            "aggregation": settings.aggregation,
            "budget": asdict(settings.budget),
            "sampling": asdict(settings.sampling),
            "seed": settings.seed,
            "abstain_below": settings.abstain_below,
            "settle": settings.settle,
            "confidence": settings.confidence,
        }
    )
    return described


@cache
def version() -> str:
    """The installed version of stepsearch."""
    try:
        return metadata.version("stepsearch")
    except metadata.PackageNotFoundError:
        return "unknown"


def _component(value: Any) -> dict[str, Any]:
    known = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else {}
    return {"class": _path(value), **known}


def _path(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
