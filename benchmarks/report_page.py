"""The page of a report: all tables and plots in one file that needs no other."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

TITLES = {
    "accuracy": "Accuracy and cost per problem",
    "pairs": "Methods against one another",
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
    "several seeds are averaged first. Samples, verifiers, calibration, depth, coverage and the "
    "votes at equal compute are of the first seed alone. A line joins methods that differ in their "
    "budget or number of samples only.",
    "pairs": "Accuracy of the first minus that of the other, paired over problems, with a "
    "bootstrap's interval; problems that only one of them solved, with McNemar's exact p-value, "
    "not corrected for the number of pairs. Methods with several seeds have no test. Everything is "
    "of the problems that both solved, costs too.",
    "equal": "As many samples of the policy's best_of_n run with the most samples as cost what the "
    "method cost on average, on the problems that both solved; differences are paired over "
    "problems, their intervals a bootstrap's.",
    "samples": "Means over all subsets. A verifier that is exploited falls behind as N grows.",
    "verifiers": "AUROC within problems counts only pairs of samples of one problem, which is "
    "what a selection can use. Correlations are with the number of characters, within problems.",
    "depth": "How well the score after so many steps tells whether that chain ends right.",
    "coverage": "Problems are answered from the highest score of the solution down; those without "
    "an answer count as unanswered.",
}
_SHARES = ("accuracy", "baseline_accuracy", "pass", "difference", "coverage", "right")
_LEFT_OUT = ("series",)
_MAX_OPEN = 30
_LETTERS = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def page_of(frames: Mapping[str, DataFrame], plots: Sequence[Path], about: str) -> str:
    """The page.

    Args:
        frames: tables by name, empty ones left out.
        plots: PNG files named after the table that they show.
        about: a sentence for the top.
    """
    parts = [_HEAD, f"<p>{html.escape(about)}</p>"]
    for name, title in TITLES.items():
        if name in frames:
            parts += [f"<h2>{html.escape(title)}</h2>", f"<p>{_NOTES.get(name, '')}</p>"]
            images = "".join(_image(plot) for plot in plots if plot.stem.startswith(name))
            parts += [f'<div class="plots">{images}</div>', _table(frames[name])]
    return "\n".join([*parts, "</body></html>"])


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem.replace("_", " "))
    return f'<img alt="{name}" src="data:image/png;base64,{data}">'


def _table(frame: DataFrame) -> str:
    shown: str = _readable(frame).to_html(index=False, na_rep="", border=0)
    is_open = "open" if len(frame) <= _MAX_OPEN else ""
    return f"<details {is_open}><summary>{len(frame)} rows</summary>{shown}</details>"


def _readable(frame: DataFrame) -> DataFrame:
    """Estimates with their intervals in one column, shares in per cent, few digits."""
    ends = {f"{name}_{end}" for name in frame for end in ("low", "high")}
    columns: dict[str, list[str]] = {}
    for name in frame:
        if name in _LEFT_OUT or name in ends:
            continue
        head = name.replace("_", " ") + (", %" if name in _SHARES else "")
        parts = [name, f"{name}_low", f"{name}_high"] if f"{name}_low" in frame else [name]
        cells = frame[parts].itertuples(index=False)
        columns[head] = [_cell(name, list(values)) for values in cells]
    return type(frame)(columns)


def _cell(name: str, values: Sequence[Any]) -> str:
    if not isinstance(values[0], float):
        return str(values[0])
    if math.isnan(values[0]):
        return ""
    texts = [f"{100 * v:.1f}" if name in _SHARES else _number(v) for v in values]
    return texts[0] if len(texts) == 1 else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _number(value: float) -> str:
    """Three digits, thousands and more by their letters."""
    for letter, size in _LETTERS.items():
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>stepsearch report</title>
<meta name="viewport" content="width=device-width">
<style>
:root{color-scheme:light dark;--line:#8884;--dim:#777}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}
h2{margin:2.2rem 0 0;font-size:1.2rem}p{margin:.3rem 0 .6rem;color:var(--dim)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:.6rem}
img{width:100%;max-width:40rem;background:#fff;border-radius:.3rem}
details{overflow-x:auto;margin:.5rem 0}summary{cursor:pointer;color:var(--dim)}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.15rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
td:first-child,th:first-child{text-align:left}
</style></head><body><h1>stepsearch report</h1>"""
