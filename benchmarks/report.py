"""`stepsearch report`: finished runs as tables, plots and one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from stepsearch.benchmarks.equal_compute import Baseline
from stepsearch.benchmarks.output import make_folder
from stepsearch.benchmarks.pairs import pairs_table
from stepsearch.benchmarks.plots import draw
from stepsearch.benchmarks.problem_sets import same_problems
from stepsearch.benchmarks.report_page import TITLES, page_of
from stepsearch.benchmarks.report_tables import (
    Samples,
    Table,
    accuracy_table,
    coverage_table,
    difficulty_table,
    equal_table,
    samples_table,
    verifier_table,
)
from stepsearch.benchmarks.run_data import Method, methods_of, read_runs
from stepsearch.benchmarks.run_folder import CONFIG
from stepsearch.conf.build import build
from stepsearch.search.errors import ConfigurationError


def report(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write tables, plots and a page about finished runs.

    Args:
        paths: run folders, or folders that hold some.
        out: the folder to write to; made when it does not exist.

    Returns:
        The files: CSV, PNG and `report.html`, which needs no other file.

    Raises:
        ConfigurationError: no finished runs, `out` cannot be made, or the extra `report` is not
            installed.
    """
    try:
        import matplotlib as matplotlib
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError("reports need: pip install 'stepsearch[report]'") from error
    runs = read_runs(paths)
    make_folder("--out", out)
    sets = same_problems(runs)
    files: list[Path] = []
    for number, problems in enumerate(sets, start=1):
        folder = out if len(sets) == 1 else out / f"problems-{number}"
        make_folder("--out", folder)
        methods = methods_of(problems)
        tables = tables_of(methods)
        frames = {name: pandas.DataFrame(table) for name, table in tables.items() if table}
        for name, frame in frames.items():
            files.append(folder / f"{name}.csv")
            frame.to_csv(files[-1], index=False, errors="backslashreplace")
        plots = draw(tables, folder)
        page = folder / "report.html"
        text = page_of(frames, plots, _about(methods))
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
        files += [*plots, page]
    return files


def tables_of(methods: Sequence[Method]) -> dict[str, Table]:
    """All tables about methods over the same problems."""
    tables: dict[str, Table] = {name: [] for name in TITLES}
    tables["accuracy"] = accuracy_table(methods)
    tables["pairs"] = pairs_table(methods)
    tables["coverage"] = coverage_table(methods)
    tables["difficulty"] = difficulty_table(methods)
    sources = {method.label: _baseline_for(method, methods) for method in methods}
    baselines: dict[str, Baseline] = {}
    for method in methods:
        samples = _samples(method)
        parts = verifier_table(samples)
        for name, part in zip(("verifiers", "calibration", "depth"), parts, strict=True):
            tables[name] += part
        if method in sources.values():
            baselines[method.label] = samples.baseline()
            tables["samples"] += samples_table(baselines[method.label])
    for method in methods:
        source = sources[method.label]
        if source is not None and source is not method:
            tables["equal"] += equal_table(method, baselines[source.label])
    return tables


def _samples(method: Method) -> Samples:
    config = OmegaConf.load(method.first.path / CONFIG)
    return Samples(method, build(OmegaConf.create({"task": config.task}), "task"))


def _baseline_for(method: Method, methods: Sequence[Method]) -> Method | None:
    """The run of independent samples by the same policy that had the most of them.

    One with the same verifier is preferred; greedy decoding, for example, has none.
    """
    independent = [
        other
        for other in methods
        if other.first.strategy == "best_of_n"
        and other.first.settings.get("settle") is None
        and _part(other, "policy") == _part(method, "policy")
    ]
    alike = [o for o in independent if _part(o, "verifier") == _part(method, "verifier")]
    return max(alike or independent, key=_num_completions, default=None)


def _part(method: Method, group: str) -> dict[str, Any]:
    settings = method.first.settings
    return {k: v for k, v in settings.items() if k == group or k.startswith(f"{group}.")}


def _num_completions(method: Method) -> float:
    return sum(float(row["completions"]) for row in method.first.rows)


def _about(methods: Sequence[Method]) -> str:
    """What was compared, in a sentence."""
    runs = [run for method in methods for run in method.runs]
    names = sorted({str(run.settings.get("benchmark.name", "?")) for run in runs})
    graders = sorted({row["grader"] for run in runs for row in run.rows})
    return (
        f"{len(methods)} methods in {len(runs)} runs over {len(runs[0].rows)} problems of "
        f"{', '.join(names)}; graded by {', '.join(graders)}."
    )
