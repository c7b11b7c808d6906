"""The folder of one benchmark run: named by its configuration, filled once, never overwritten."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from stepsearch.search.errors import ConfigurationError, TraceError
from stepsearch.search.provenance import version
from stepsearch.search.types import FAILURES, Problem

CONFIG, IDENTITY, TRACES = "config.yaml", "run.json", "traces.jsonl"
RESULTS, SUMMARY, LOG = "results.csv", "summary.json", "log.txt"
_NOT_IN_HASH = (
    "runs",
    "concurrency",
    "trace",
    "devices",
    "workers",
    "ray",
)  # they change no result
FAILED_STOPS = (*FAILURES, "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A problem that a run has solved."""

    answer: str | None
    policy_tokens: int


class BusyError(ConfigurationError):
    """Another process does this run."""


class RunFolder:
    """One run.

    Args:
        config: its configuration; what cannot change a result is left out of the hash.

    Attributes:
        path: the folder.
    """

    def __init__(self, config: DictConfig) -> None:
        plain = OmegaConf.to_container(config, resolve=True)
        assert isinstance(plain, dict)
        self._config = {k: v for k, v in plain.items() if k not in _NOT_IN_HASH}
        text = json.dumps(self._config, sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        self.path = Path(config.runs).expanduser() / digest

    @contextmanager
    def claim(self, problems: Sequence[Problem]) -> Iterator[None]:
        """Make the folder or go on in it, alone.

        Raises:
            BusyError: another process has it.
            ConfigurationError: what it holds was made otherwise.
        """
        from filelock import FileLock, Timeout

        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"runs={self.path.parent}: no folder can be made there ({error.strerror})"
            ) from error
        try:
            with FileLock(self.path / ".lock", timeout=0):
                self._identify(problems)
                yield
        except Timeout as error:
            raise BusyError(f"another process is at work in {self.path}") from error

    def _identify(self, problems: Sequence[Problem]) -> None:
        mine = {
            CONFIG: printable(OmegaConf.to_yaml(OmegaConf.create(self._config))),
            IDENTITY: json.dumps({"stepsearch": version(), "problems": fingerprint(problems)}),
        }
        for name, text in mine.items():
            file = self.path / name
            if not file.exists():
                if (self.path / TRACES).exists():
                    raise ConfigurationError(
                        f"{self.path} holds traces but no {name}; move it away"
                    )
                replace_file(file, text)
            elif file.read_text(encoding="utf-8") != text:
                raise ConfigurationError(
                    f"{self.path} was made with another {_WHAT[name]}; "
                    "nothing is overwritten: move the folder away, or give runs=OTHER_FOLDER"
                )

    def done(self) -> dict[str, Done]:
        """What is solved already, by problem id. Failed problems are not, and are tried again."""
        found = {}
        for data in _complete_lines(self.path / TRACES):
            if "stop" not in data:
                raise TraceError(f"{self.path / TRACES}: a line is no trace; move the folder away")
            if data["stop"] not in FAILED_STOPS:
                tokens = data["usage"]["policy_tokens"]
                found[data["id"]] = Done(answer=data["answer"], policy_tokens=tokens)
        return found


_WHAT = {CONFIG: "configuration", IDENTITY: "version of stepsearch or other problems"}


def _complete_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a file of traces, without what a crash cut short."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                data = json.loads(line)
            except ValueError:
                continue
            if not isinstance(data, dict) or "tree" not in data:
                raise TraceError(f"{path}, line {number} is not a trace")
            yield data


def fingerprint(problems: Iterable[Problem]) -> str:
    """A hash of the problems with their ids and gold answers."""
    digest = hashlib.blake2b(digest_size=8)
    for problem in problems:
        digest.update(repr((problem.id, problem.text, problem.answer)).encode())
    return digest.hexdigest()


def printable(text: str) -> str:
    """The text with halves of characters, which UTF-8 cannot hold, as backslash escapes."""
    return text.encode(errors="backslashreplace").decode()


def replace_file(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(printable(text), encoding="utf-8")
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
