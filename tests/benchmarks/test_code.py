"""Code problems through the whole path: benchmark, search, selection, tests, tables."""

import csv
import json
from pathlib import Path

import pytest
from support.coder import CODE, rows

from stepsearch.benchmarks.code_problems import CodeProblems
from stepsearch.benchmarks.samples import read_samples
from stepsearch.cli import main
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.python_task import CodeTests, PythonTask
from stepsearch.search.sandbox import Limits, isolation
from stepsearch.search.task import get_task

SOLVABLE = {f"code_file-{code.name}" for code in CODE if code.right}


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    return path


@pytest.fixture
def world(tmp_path: Path, problems: Path) -> list[str]:
    return [
        "hydra.searchpath=[pkg://support.worldconf]",
        *("policy=coder", "verifier=reviewer", "task=python", "task.limits.seconds=2"),
        *("benchmark=code_file", f"benchmark.path={problems}", f"runs={tmp_path / 'runs'}"),
    ]


@pytest.fixture
def apart() -> None:
    try:
        isolation()
    except ConfigurationError as error:
        pytest.skip(str(error))


def table(root: Path) -> dict[str, dict[str, str]]:
    [path] = (root / "runs").glob("*/results.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_ten_problems_are_solved_or_failed(apart: None, world: list[str], tmp_path: Path) -> None:
    assert main(["bench", *world, "search=best_of_n", "search.n=8"]) == 0
    found = table(tmp_path)
    assert len(found) == 10
    assert {name for name, row in found.items() if row["right"] == "1"} == SOLVABLE
    assert {name for name, row in found.items() if row["right_pass"] == "1"} == SOLVABLE
    assert all(row["right"] in "01" for row in found.values()), "all of them were decided"
    assert all("isolation: " in row["grader"] for row in found.values())
    [summary] = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["right"] == 8


def test_a_verifier_chooses_by_itself_among_programs(
    apart: None, world: list[str], tmp_path: Path
) -> None:
    assert main(["bench", *world, "search=beam", "search.n=8", "benchmark.limit=4"]) == 0
    [trace] = (tmp_path / "runs").glob("*/traces.jsonl")
    lines = trace.read_text(encoding="utf-8").splitlines()
    told = [json.loads(line)["provenance"]["select"] for line in lines]
    assert told == ["best"] * 4


def test_without_isolation_it_is_refused_before_anything_is_sampled(
    world: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    isolation.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        assert main(["bench", *world]) == 2
    finally:
        isolation.cache_clear()
    shown = capfd.readouterr().err
    assert "programs cannot be run apart" in shown
    assert "task.allow_unsafe=true" in shown
    assert not list((tmp_path / "runs").glob("*/traces.jsonl"))


def test_who_allows_it_runs_unprotected(
    world: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}")
    (tmp_path / "env").symlink_to("/usr/bin/env")
    try:
        task = PythonTask(allow_unsafe=True)
        code = CODE[0]
        gold = CodeTests(prompt=code.prompt, entry_point=code.name, test=code.test).as_gold()
        assert task.grade(code.right, gold) is True
        assert task.grade(code.wrong[0], gold) is False
        assert task.grader.endswith("isolation: nothing")
        with pytest.raises(ConfigurationError, match="task=python: programs cannot be run apart"):
            PythonTask().grade(code.right, gold)
    finally:
        isolation.cache_clear()


def test_why_a_program_failed_is_told(apart: None) -> None:
    task = PythonTask(limits=Limits(seconds=1))
    told = {}
    for code in CODE:
        gold = CodeTests(prompt=code.prompt, entry_point=code.name, test=code.test).as_gold()
        for body in code.wrong:
            outcome = task.outcome(body, gold)
            assert outcome is not None
            told[code.name] = (outcome.status, outcome.detail)
            assert task.outcome(body, gold) is outcome, "run once"
    assert told["fib"] == ("time", "more than 1 seconds")
    assert told["second"] == ("ended", "the program ended itself: SystemExit(0)")
    assert told["count_words"][1].startswith("KeyError: 'a' (program.py, line 5)")
    assert {status for status, _ in told.values()} == {"failed", "time", "ended"}


def test_a_gold_answer_must_hold_what_it_promises(apart: None, problems: Path) -> None:
    task = get_task("python")
    assert isinstance(task, PythonTask)
    for problem in CodeProblems(name="code", path=problems).problems():
        assert task.can_grade(problem.answer or "")
    code = CODE[0]
    liar = CodeTests(
        prompt=code.prompt, entry_point=code.name, test=code.test, canonical_solution="    pass"
    )
    assert not task.can_grade(liar.as_gold())
    for broken in ("42", "[]", "no JSON", '{"prompt": ""}'):
        assert not task.can_grade(broken)
    assert task.grade("    return 2 * x", "  ") is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task_id": "a"}, "no text in column 'prompt'"),
        (rows()[0] | {"test": 3}, "no text in column 'test'"),
    ],
)
def test_broken_rows(tmp_path: Path, row: dict[str, object], message: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigurationError, match=message):
        CodeProblems(name="code", path=path).problems()
    path.write_text((json.dumps(rows()[0]) + "\n") * 2)
    with pytest.raises(ConfigurationError, match="'code-double' occurs more than once"):
        CodeProblems(name="code", path=path).problems()


def test_samples_of_code_are_cut_into_blocks(tmp_path: Path) -> None:
    path, text = tmp_path / "samples.jsonl", CODE[3].right
    row = {"id": "a", "problem": "p", "answer": "{}", "samples": [{"text": text}]}
    path.write_text(json.dumps(row) + "\n")
    [problem] = read_samples(path, PythonTask()).problems
    assert problem.samples[0].steps == (
        "    a, b = 0, 1\n",
        "    for _ in range(n):\n        a, b = b, a + b\n",
        "    return a\n",
    )
