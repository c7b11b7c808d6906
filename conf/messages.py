"""Hydra's errors as one sentence that names the setting and says what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from stepsearch.conf.options import options

_QUOTES = (
    "text with any of , = : ( [ { or a space goes in quotes of its own: "
    "'task.instruction=\"first, think\"'"
)
_LAUNCHERS = "Others come with pip install 'stepsearch[scale]', Ray's as docs/scale.md says"


def explain(
    error: Exception, overrides: Sequence[str], known: Callable[[str], Sequence[str]]
) -> str:
    """What is wrong with the overrides.

    Args:
        error: Hydra's.
        overrides: all of them, as they were typed.
        known: all settings there are, as dotted keys, given one that is not there.
    """
    text = str(error)
    if unreadable := next((o for o in overrides if not _is_readable(o)), None):
        hint = f"; {_QUOTES}" if "=" in unreadable[1:] else ""
        return f"{unreadable!r} is not of the form SETTING=VALUE{hint}"
    if missing := re.search(r"Could not find '([\w/]+)/([\w.-]*)'", text):
        group, option = missing.groups()
        there = re.findall(r"^\t([\w./-]+)$", text, re.MULTILINE)
        extra = f". {_LAUNCHERS}" if group == "hydra/launcher" else ""
        return f"{group}={option}: there is no such option. {nearest(option, there)}{extra}"
    if unknown := re.search(r"Could not (?:override|delete from config\.) '([\w/@.-]+)'", text):
        return _no_such_setting(unknown[1], known(unknown[1]))
    if twice := re.search(r"An item is already at '([\w/@.]+)'", text):
        return f"+{twice[1]}: there is such a setting already; write {twice[1]}=... without the +"
    if several := re.search(r"Ambiguous value for argument '(.*)'", text):
        return (
            f"{several[1]}: several values are swept over with `stepsearch bench -m`; "
            f"write a list as [a,b]; {_QUOTES}"
        )
    if "group override must be a string" in text:
        return _no_option(overrides, known(""))
    reason = text.splitlines()[0] if text else repr(error)
    return f"cannot read the settings {' '.join(overrides)}: {reason}"


def nearest(name: str, known: Iterable[str], shown: Iterable[str] | None = None) -> str:
    """Names like this one, and all that are to be shown; None shows all that are known."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}Known: {', '.join(known if shown is None else shown)}"


def _is_readable(override: str) -> bool:
    try:
        return bool(OverridesParser.create().parse_override(override).key_or_group)
    except HydraException:
        return False


def _no_such_setting(key: str, known: Sequence[str]) -> str:
    """Of a part, its settings are shown, of the whole the names at the top."""
    group = key.split(".", 1)[0]
    if key in known:
        return (
            f"{key}: not every {group} that is asked for has it; sweep those that do on their own"
        )
    of_group = [name for name in known if name.startswith(f"{group}.")]
    if not of_group:
        top = [name for name in known if "." not in name]
        return f"{key}: there is no such setting. {nearest(key, known, top)}"
    also = f" (they depend on {group}=...)" if options(group) else ""
    return f"{key}: there is no such setting. {nearest(key, of_group)}{also}"


def _no_option(overrides: Sequence[str], known: Sequence[str]) -> str:
    """A number or null where an option of a group belongs."""
    for override in map(OverridesParser.create().parse_override, overrides):
        group = override.key_or_group
        if options(group) and not isinstance(override.value(), str | list):
            own = [name for name in known if name.startswith(f"{group}.")]
            return (
                f"{override.input_line}: {group} is one of {', '.join(options(group))}; "
                f"its settings are {', '.join(own)}"
            )
    return f"cannot read the settings {' '.join(overrides)}"
