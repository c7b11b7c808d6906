"""What the rows of a stage depend on, as plain data that stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from stepsearch.search.contracts import Policy
from stepsearch.search.plain import plain
from stepsearch.search.task import Task

_CHANGE_NO_ROW = frozenset(
    {"device", "cache_bytes", "max_rows", "server", "api_key_variable", "versions"}
)


def settings_of_policy(policy: Policy, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy was built from, and what it tells of itself.

    Both are needed: the weights in a folder may change, and not all policies tell their settings.

    Args:
        policy: the policy.
        config: its settings by name; those that change its speed only are left out.
    """
    spec = asdict(policy.spec)
    spec["provenance"] = _telling(spec["provenance"])
    found: dict[str, Any] = plain({**_telling(config), "spec": spec})
    return found


def settings_of_task(task: Task) -> dict[str, Any]:
    """A task's name, class and settings."""
    own: dict[str, Any] = {}
    if is_dataclass(task):
        own = {f.name: getattr(task, f.name) for f in fields(task) if f.compare}
    kind = f"{type(task).__module__}.{type(task).__qualname__}"
    found: dict[str, Any] = plain({"name": task.name, "class": kind, **own})
    return found


def changed(before: Any, now: Any, name: str = "") -> list[str]:
    """Names of the settings that differ, such as `sampling.top_p`."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [] if before == now else [name]
    found = []
    for key in sorted({*before, *now}):
        inner = f"{name}.{key}" if name else key
        found += changed(before.get(key), now.get(key), inner)
    return found


def _telling(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _CHANGE_NO_ROW}
