"""What the commands that read a file of samples have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_reader(
    commands: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    as_json: str,
) -> argparse.ArgumentParser:
    """Define a command that reads samples and runs verifiers on them.

    Args:
        commands: what it is added to.
        name: of the command.
        run: does it; returns the exit status.
        summary: a line for the list of commands.
        description: what SAMPLES is and what happens to it.
        as_json: what `--json` does.
    """
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("samples", type=Path, metavar="SAMPLES")
    add("overrides", nargs="*", default=[], metavar="NAME.SETTING=VALUE", help="of verifiers")
    add("--link", action="append", default=[], metavar="NAME=logistic", help="scores are logits")
    add("--task", default="math", help="math, exact, multiple_choice or python")
    add(
        "--separator",
        type=_unescaped,
        default="\\n",
        help=r"ends a step of a sample's text; default: \n, a newline",
    )
    add("--json", action="store_true", help=as_json)
    parser.set_defaults(run=run)
    return parser


def _unescaped(text: str) -> str:
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
