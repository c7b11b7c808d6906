"""`stepsearch report`: finished runs as tables, plots and one page."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from stepsearch.benchmarks.equal_compute import Baseline
from stepsearch.benchmarks.plots import draw
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

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

TITLES = {
    "accuracy": "Accuracy and cost per problem",
    "equal": "At equal compute against votes over independent samples",
    "samples": "Independent samples read out at every number of them",
    "verifiers": "Verifiers: discrimination, calibration and length",
    "calibration": "Calibration by score",
    "depth": "Discrimination by depth",
    "coverage": "Accuracy when the least certain problems stay unanswered",
    "difficulty": "By difficulty",
}
_NOTES = {
    "accuracy": "95% intervals over problems: Wilson's for accuracies, a bootstrap's for costs; "
    "several seeds are averaged first.",
    "equal": "As many samples of the policy's best_of_n run with the most samples as cost what the "
    "method cost on average; differences are paired over problems, their intervals a bootstrap's.",
    "samples": "Means over all subsets. A verifier that is exploited falls behind as N grows.",
    "verifiers": "AUROC within problems counts only pairs of candidates of one problem, which is "
    "what a selection can use. Correlations are with the number of characters, within problems.",
    "depth": "How well the score after so many steps tells whether that chain ends right.",
    "coverage": "Problems are answered from the highest score of the solution down.",
}


def report(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write tables, plots and a page about finished runs.

    Args:
        paths: run folders, or folders that hold some.
        out: the folder to write to; made when it does not exist.

    Returns:
        The files: CSV, PNG and `report.html`, which needs no other file.

    Raises:
        ConfigurationError: no finished runs, or the extra `report` is not installed.
    """
    try:
        import matplotlib as matplotlib
        import pandas
    except ImportError as error:
        raise ConfigurationError("reports need: pip install 'stepsearch[report]'") from error
    runs = read_runs(paths)
    sets = list(dict.fromkeys(run.problems for run in runs))
    files: list[Path] = []
    for number, problems in enumerate(sets, start=1):
        folder = out if len(sets) == 1 else out / f"problems-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        tables = tables_of(methods_of([run for run in runs if run.problems == problems]))
        frames = {name: pandas.DataFrame(table) for name, table in tables.items() if table}
        for name, frame in frames.items():
            files.append(folder / f"{name}.csv")
            frame.to_csv(files[-1], index=False, errors="backslashreplace")
        plots = draw(tables, folder)
        page = folder / "report.html"
        page.write_text(_page(frames, plots), encoding="utf-8", errors="backslashreplace")
        files += [*plots, page]
    return files


def tables_of(methods: Sequence[Method]) -> dict[str, Table]:
    """All tables about methods over the same problems."""
    tables: dict[str, Table] = {name: [] for name in TITLES}
    tables["accuracy"] = accuracy_table(methods)
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


def _page(frames: dict[str, DataFrame], plots: Sequence[Path]) -> str:
    parts = [_HEAD]
    for name, title in TITLES.items():
        if name in frames:
            parts += [f"<h2>{html.escape(title)}</h2>", f"<p>{_NOTES.get(name, '')}</p>"]
            parts += [_image(plot) for plot in plots if plot.stem.startswith(name)]
            parts.append(_table(frames[name]))
    return "\n".join([*parts, "</body></html>"])


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'


def _table(frame: DataFrame) -> str:
    shown: str = frame.to_html(index=False, na_rep="", float_format=_number, border=0)
    is_open = "open" if len(frame) <= 30 else ""
    return f"<details {is_open}><summary>{len(frame)} rows</summary>{shown}</details>"


def _number(value: Any) -> str:
    return f"{value:.4g}"


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>stepsearch report</title>
<style>
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#222}
img{max-width:38rem;width:100%;display:block;margin:.5rem 0}
details{overflow-x:auto}table{border-collapse:collapse}summary{cursor:pointer;color:#555}
th,td{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
td:first-child,th:first-child{text-align:left}
</style></head><body><h1>stepsearch report</h1>"""
