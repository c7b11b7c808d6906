"""What there is to choose from; Hydra is not needed to know it."""

from __future__ import annotations

from pathlib import Path


def options(group: str) -> list[str]:
    """The options of a configuration group that ship with stepsearch."""
    return sorted(path.stem for path in (Path(__file__).parent / group).glob("*.yaml"))
