"""Filtering: what is kept, what is dropped and why, and that it can be read again."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.worlds import engine, hash_verifier, random_policy

from stepsearch import Problem
from stepsearch.benchmarks.filtering import FilterSettings, filter_samples
from stepsearch.benchmarks.samples import read_samples
from stepsearch.benchmarks.scorers import parse_scorer
from stepsearch.cli import main
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.task import get_task

ROWS: list[dict[str, Any]] = [
    {
        "id": "a",
        "problem": "2 + 2?",
        "answer": "4",
        "samples": [
            {"text": "2 + 2 = 4\n#### 4", "scores": {"prm": [0.9, 0.8]}},
            {"text": "2 + 2 = 5\n#### 5", "scores": {"prm": [0.9, 0.79]}},
            {"text": "hm", "scores": {"prm": [0.99]}},
            {"text": "#### 4", "scores": {"prm": None}},
        ],
    },
    {
        "id": "b",
        "problem": "1 + 1?",
        "answer": "2",
        "samples": [{"text": "1 + 1 = 3\n#### 3", "scores": {"prm": [0.1, 0.2]}}],
    },
]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def test_what_is_kept_and_counted(samples: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "kept.jsonl"
    arguments = ["filter", str(samples), "--verifier", "prm", "--min", "0.8", "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "problems": 2,
        "problems_kept": 1,
        "samples": 5,
        "kept": 1,
        "below": 2,
        "unscored": 1,
        "no_answer": 1,
    }
    [line] = out.read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert (row["id"], row["problem"], row["answer"]) == ("a", "2 + 2?", "4")
    assert row["samples"] == [
        {
            "text": "2 + 2 = 4\n#### 4",
            "answer": "4",
            "score": 0.8,
            "scores": {"prm": [0.9, 0.8]},
        }
    ]
    assert main(arguments) == 0
    assert "1 of 5 samples kept (20.0%): prm >= 0.8\n" in capsys.readouterr().out


def test_what_was_written_is_read_again(samples: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "kept.jsonl", tmp_path / "again.jsonl"
    command = ["filter", "--verifier", "prm:min", "--min", "0.1"]
    assert main([*command, str(samples), "--out", str(out)]) == 0
    assert main([*command, str(out), "--out", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()
    found = read_samples(out, get_task("math"))
    assert [len(problem.samples) for problem in found.problems] == [2, 1]


@pytest.mark.parametrize(
    "spec", [{"aggregation": "min"}, {"aggregation": "mean", "range": "unbounded"}]
)
def test_what_is_known_of_the_scores_of_a_trace_is_kept(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "kept.jsonl"
    search = engine(BestOfN(n=4), random_policy(), hash_verifier(**spec), trace=path)
    search.solve(Problem(text="q", id="q", answer="1"))
    settings = FilterSettings(
        samples=path, out=out, verifier="scripted", minimum=-1.0, task="exact"
    )
    _, counts = filter_samples(settings)
    before, after = (read_samples(file, get_task("exact")) for file in (path, out))
    assert counts.kept == 4
    assert after.sources == before.sources
    score = parse_scorer("scripted").value
    [[told, found]] = zip(before.problems, after.problems, strict=True)
    values = [score(sample, before.sources) for sample in told.samples]
    assert [score(sample, after.sources) for sample in found.samples] == values


def test_samples_that_depend_on_one_another_still_do(tmp_path: Path) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "kept.jsonl"
    search = engine(Beam(n=4, width=2), random_policy(), hash_verifier(), trace=path)
    search.solve(Problem(text="q", id="q", answer="1"))
    filter_samples(
        FilterSettings(samples=path, out=out, verifier="scripted", minimum=0.0, task="exact")
    )
    assert read_samples(out, get_task("exact")).is_dependent


def test_a_verifier_that_has_no_scores_there_is_run(samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    command = ["filter", str(samples), "--verifier", "rule", "--min", "0.9", "--out", str(out)]
    assert main(command) == 0
    [row] = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert [sample["answer"] for sample in row["samples"]] == ["4"]


def test_without_a_file_the_lines_are_printed_and_the_counts_beside(samples: Path, capsys) -> None:
    assert main(["filter", str(samples), "--verifier", "prm", "--min", "0.8"]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["id"] for line in shown.out.splitlines()] == ["a"]
    assert shown.err.startswith("1 of 5 samples kept")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--verifier", "nobody", "--min", "0.5"], "nobody"),
        (["--verifier", "prm", "--min", "nan"], "--min nan must be a finite number"),
        (["--verifier", "prm", "--min", "0.5", "--link", "orm=logistic"], "no scores 'orm'"),
    ],
)
def test_what_is_refused(
    samples: Path, tmp_path: Path, arguments: list[str], message: str, capsys
) -> None:
    out = tmp_path / "kept.jsonl"
    assert main(["filter", str(samples), "--out", str(out), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_the_samples_are_not_overwritten(samples: Path, capsys) -> None:
    before = samples.read_bytes()
    command = ["filter", str(samples), "--verifier", "prm", "--min", "0.5", "--out", str(samples)]
    assert main(command) == 2
    assert "would overwrite the samples" in capsys.readouterr().err
    assert samples.read_bytes() == before
