"""Finished runs as a report reads them: settings, verdicts and costs per problem, samples."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from stepsearch.benchmarks.run_folder import (
    CONFIG,
    FAILED_STOPS,
    IDENTITY,
    RESULTS,
    SUMMARY,
    TRACES,
)
from stepsearch.benchmarks.statistics import Outcomes
from stepsearch.search.errors import ConfigurationError

Floats = NDArray[np.float64]
COSTS = ("policy_tokens", "flops", "seconds")
_COLUMNS = ("id", "gold", "right", "right_pass", "score", "completions", "meta", "stop", *COSTS)
_SPENDING = ("budget.", "search.n", "search.simulations", "search.rounds", "search.iterations")
_SETTINGS = ("search._target_", "task._target_")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One finished run.

    Attributes:
        path: its folder.
        settings: the configuration as dotted keys.
        problems: fingerprint of its problems.
        rows: its table, as text, without problems that failed: these were not measured.
        failed: ids of the problems that failed.
    """

    path: Path
    settings: dict[str, Any]
    problems: str
    rows: list[dict[str, str]]
    failed: tuple[str, ...] = ()

    @property
    def strategy(self) -> str:
        """The strategy's name: the module of its class."""
        return str(self.settings["search._target_"]).rsplit(".", 2)[-2]

    @property
    def traces(self) -> Path:
        """Its traces."""
        return self.path / TRACES


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Runs that differ in their seed only, over the same problems.

    Attributes:
        label: what sets it apart from the other methods of the report.
        series: the same without how much it may spend; a curve of a plot.
        runs: one per seed.
    """

    label: str
    series: str
    runs: tuple[RunData, ...]

    @property
    def first(self) -> RunData:
        """A run, for what all of them share."""
        return self.runs[0]

    def ids(self) -> list[str]:
        """The problems that every seed has a result of."""
        others = [{row["id"] for row in run.rows} for run in self.runs]
        return [row["id"] for row in self.first.rows if all(row["id"] in ids for ids in others)]

    def outcomes(self, column: str = "right") -> Outcomes:
        """Verdicts per problem, the mean over the seeds; shape (problems, 1)."""
        told = self._table(column)
        return Outcomes(
            right=np.mean([[float(v == "1") for v in row] for row in told], axis=1)[:, None],
            undecided=np.mean([[float(v == "") for v in row] for row in told], axis=1)[:, None],
        )

    def cost(self, column: str, ids: Sequence[str] | None = None) -> Floats | None:
        """What a problem cost, the mean over the seeds; None where a backend could not tell.

        Args:
            column: one of `COSTS`.
            ids: the problems, in their order; None for all of `ids()`.
        """
        told = self._table(column, ids)
        if any(value == "" for row in told for value in row):
            return None
        costs: Floats = np.array([[float(value) for value in row] for row in told])
        mean: Floats = costs.mean(axis=1)
        return mean

    def _table(self, column: str, ids: Sequence[str] | None = None) -> list[list[str]]:
        tables = [{row["id"]: row[column] for row in run.rows} for run in self.runs]
        return [[table[name] for table in tables] for name in (self.ids() if ids is None else ids)]


def read_runs(paths: Iterable[Path]) -> list[RunData]:
    """All finished runs in some folders, each setting and seed once.

    Raises:
        ConfigurationError: a folder does not exist, a run is broken, or there is no finished one.
    """
    found: dict[str, RunData] = {}
    unfinished = 0
    for folder in _folders(paths):
        if not (folder / SUMMARY).exists():
            unfinished += 1
            _log.warning("%s is not finished and left out", folder)
            continue
        run = _read_run(folder)
        key = json.dumps([run.problems, run.settings], sort_keys=True, default=str)
        if key in found:
            _log.warning("%s is %s once more and left out", folder, found[key].path)
        elif run.rows:
            found[key] = run
    if not found:
        what = (
            f"{unfinished} that are not; start the same `stepsearch bench` again, it goes on "
            "where they ended"
            if unfinished
            else "no others; make some with `stepsearch bench`"
        )
        raise ConfigurationError(f"no finished runs in {', '.join(map(str, paths))}, and {what}")
    return list(found.values())


def _folders(paths: Iterable[Path]) -> list[Path]:
    """Folders of runs, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigurationError(f"{str(path)!r} is no folder; give folders of runs")
        for config in sorted(path.rglob(CONFIG)):
            if any((config.parent / name).exists() for name in (SUMMARY, IDENTITY)):
                found.setdefault(config.parent.resolve(), config.parent)
    return list(found.values())


def _read_run(path: Path) -> RunData:
    for name in (RESULTS, IDENTITY, TRACES):
        if not (path / name).is_file():
            raise _broken(path, f"has no {name}")
    with (path / RESULTS).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))  # it alone knows which line ends stand in a cell
    if not rows or any(row.get(name) is None for row in rows for name in _COLUMNS):
        raise _broken(path, f"has {RESULTS} without rows or columns that a report needs")
    try:
        identity = json.loads((path / IDENTITY).read_text(encoding="utf-8"))
        settings = flatten(OmegaConf.to_container(OmegaConf.load(path / CONFIG)))
        problems = str(identity["problems"])
    except (KeyError, TypeError, ValueError, OSError, YAMLError, OmegaConfBaseException) as error:
        raise _broken(path, f"has a broken {IDENTITY} or {CONFIG} ({error!r:.100})") from error
    if missing := [key for key in _SETTINGS if key not in settings]:
        raise _broken(path, f"has a {CONFIG} without {missing[0]}")
    failed = tuple(row["id"] for row in rows if row["stop"] in FAILED_STOPS)
    if failed:
        _log.warning("%s: %d problems failed and are left out; run it again", path, len(failed))
    rows = [row for row in rows if row["stop"] not in FAILED_STOPS]
    return RunData(path=path, settings=settings, problems=problems, rows=rows, failed=failed)


def _broken(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the run in {path} {what}; move it away, or make it again with `stepsearch bench`"
    )


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists are values."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        key: value
        for name, child in node.items()
        for key, value in flatten(child, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def methods_of(runs: Sequence[RunData]) -> list[Method]:
    """Runs grouped over seeds and labelled by the settings in which they differ.

    They are in the order of their series, and in each in that of the tokens they took.
    """
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        key = json.dumps([run.problems, _without_seed(run)], sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
    firsts = [group[0] for group in groups.values()]
    methods = [
        Method(
            label=_label(group[0], firsts),
            series=_label(group[0], firsts, without=_SPENDING),
            runs=tuple(group),
        )
        for group in groups.values()
    ]
    return sorted(methods, key=lambda method: (method.series, _tokens(method)))


def _tokens(method: Method) -> float:
    return sum(float(row["policy_tokens"]) for row in method.first.rows)


def _without_seed(run: RunData) -> dict[str, Any]:
    return {key: value for key, value in run.settings.items() if key != "seed"}


def _label(run: RunData, others: Sequence[RunData], without: tuple[str, ...] = ()) -> str:
    """The strategy, and the settings that are not the same in all methods that have them."""
    parts = {}
    for key, value in _without_seed(run).items():
        if without and key.startswith(without):
            continue
        group = key.partition(".")[0]
        kind = f"{group}._target_"
        rivals = [r for r in others if key == kind or _same(r, run, kind)]
        if key != "search._target_" and any(r.settings.get(key) != value for r in rivals):
            name = group if key == kind else key.removeprefix("search.")
            parts[name] = f"{name}={_short(value, [r.settings.get(key) for r in rivals])}"
    ordered = sorted(parts, key=lambda name: f"search.{name}" not in run.settings)
    return " ".join([run.strategy, *(parts[name] for name in ordered)])


def _same(a: RunData, b: RunData, key: str) -> bool:
    return bool(a.settings.get(key) == b.settings.get(key))


def _short(value: Any, others: Sequence[Any]) -> str:
    """The value; of a class its last name, where that tells it from the others."""
    if value is None:
        return "null"
    text, last = str(value), str(value).rpartition(".")[2]
    is_class = all(part.isidentifier() for part in text.split("."))
    alike = {str(other) for other in others if str(other).rpartition(".")[2] == last}
    return last if is_class and alike == {text} else text
