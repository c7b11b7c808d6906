"""Folders of adapters: those that come with stepsearch are found by name."""

from __future__ import annotations

from pathlib import Path

from stepsearch.search.errors import ConfigurationError

SHIPPED = ("policy", "prm", "orm")
"""What there is: one that writes steps, one that scores them, one that scores whole solutions."""

VERIFIER_FILE = "verifier.json"
"""Beside an adapter that is a verifier's: what it is, and how it is fed and read."""

_PREFIX = "embedded/"
_FOLDER = Path(__file__).parent / "smollm2"


def find_adapter(adapter: str | Path) -> Path:
    """Folder of an adapter: `embedded/NAME` is one that comes with stepsearch, all else is a path.

    Only text is a name; `./embedded/NAME`, or a `Path`, is a folder of one's own.

    Raises:
        ConfigurationError: there is no adapter of that name.
    """
    if not isinstance(adapter, str) or not adapter.startswith(_PREFIX):
        return Path(adapter).expanduser()
    name = adapter.removeprefix(_PREFIX)
    if name not in SHIPPED:
        known = ", ".join(f"{_PREFIX}{one}" for one in SHIPPED)
        raise ConfigurationError(
            f"adapter={adapter}: stepsearch comes with no such adapter; it has {known}. A folder of"
            f" that name is ./{adapter}"
        )
    return _FOLDER / name
