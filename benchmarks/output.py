"""Where results are written, checked before any work is done for them."""

from __future__ import annotations

import os
from pathlib import Path

from stepsearch.search.errors import ConfigurationError


def require_file(option: str, path: Path) -> None:
    """Raise `ConfigurationError` unless a file can be written there.

    Args:
        option: as it is named in the message, such as `--out`.
        path: the file; one that exists will be replaced.
    """
    place = path.expanduser()
    if place.is_dir():
        raise ConfigurationError(f"{option} {str(path)!r} is a folder; name a file in it")
    if not place.parent.is_dir():
        raise ConfigurationError(
            f"{option} {str(path)!r}: there is no folder {str(place.parent)!r}; make it first"
        )
    if not os.access(place.parent, os.W_OK):
        raise ConfigurationError(
            f"{option} {str(path)!r}: nothing may be written to {str(place.parent)!r}"
        )


def make_folder(option: str, path: Path) -> None:
    """Make a folder unless it is there.

    Raises:
        ConfigurationError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "is a file" if path.is_file() else f"cannot be made ({error.strerror})"
        raise ConfigurationError(f"{option} {str(path)!r} {why}; name a folder") from error
