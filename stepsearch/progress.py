"""What a command tells on standard error while it works."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told(logger: str, form: str) -> Iterator[None]:
    """Lines of a logger go to standard error for as long as this lasts.

    Args:
        logger: its name; those below it are told too.
        form: of a line, as `logging.Formatter` has it.
    """
    handler, log = logging.StreamHandler(sys.stderr), logging.getLogger(logger)
    handler.setFormatter(logging.Formatter(form, "%H:%M:%S"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
