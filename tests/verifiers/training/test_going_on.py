"""The commands `sample` and `label` when they are run again on the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepsearch.cli import main
from stepsearch.verifiers.training.lines import read_lines, write_lines

NAMED = [
    {"id": "q1", "problem": "p", "steps": ["a", word], "labels": ["good", mark]}
    for word, mark in (("b", "good"), ("c", "bad"), ("b", "good"))
]
SAMPLED: list[dict[str, Any]] = [
    {"id": name, "problem": "p", "answer": "1", "samples": [{"text": text}]}
    for name, text in (("a", "#### 1"), ("a", "#### 2"), ("b", "#### 1"))
]


def label(folder: Path, *settings: str) -> int:
    return main(["label", f"samples={folder}/s.jsonl", f"out={folder}/l.jsonl", *settings])


@pytest.mark.parametrize("method", ["hand", "both"])
@pytest.mark.parametrize("stopped_after", [0, 1, 2, 3])
def test_rows_of_one_id_are_all_labelled(tmp_path: Path, method: str, stopped_after: int) -> None:
    settings = (f"method={method}", "layout=names")
    write_lines(tmp_path / "s.jsonl", NAMED if method == "hand" else SAMPLED)
    assert label(tmp_path, *settings) == 0
    out = tmp_path / "l.jsonl"
    whole = out.read_text()
    rows = list(read_lines(out))
    assert [row["id"] for row in rows] == (["q1"] * 3 if method == "hand" else ["a", "a", "b"])
    write_lines(out, rows[:stopped_after])
    assert label(tmp_path, *settings) == 0
    assert out.read_text() == whole


def test_labels_go_on_where_more_was_sampled(tmp_path: Path) -> None:
    write_lines(tmp_path / "s.jsonl", SAMPLED[:1])
    assert label(tmp_path) == 0
    write_lines(tmp_path / "s.jsonl", reversed(SAMPLED))
    assert label(tmp_path) == 0
    rows = list(read_lines(tmp_path / "l.jsonl"))
    assert [row["solutions"][0]["answer"] for row in rows] == ["1", "1", "2"]


@pytest.mark.parametrize("changes", [{"samples": [{"text": "#### 7"}]}, {"answer": "7"}])
def test_labels_of_other_samples_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    write_lines(tmp_path / "s.jsonl", SAMPLED)
    assert label(tmp_path) == 0
    write_lines(tmp_path / "s.jsonl", [*SAMPLED[:2], SAMPLED[2] | changes])
    assert label(tmp_path) == 2
    assert "what is there of 'b' was made of another row" in capsys.readouterr().err
    assert len(list(read_lines(tmp_path / "l.jsonl"))) == 3
