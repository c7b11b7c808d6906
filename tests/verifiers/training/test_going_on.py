"""The commands `sample` and `label` when they are run again on the same file."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from stepsearch.cli import main
from stepsearch.search.contracts import PolicySpec, SamplingParams
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.python_task import CodeTests
from stepsearch.verifiers.training.labelling import LabelSettings
from stepsearch.verifiers.training.labelling import label as run_label
from stepsearch.verifiers.training.lines import read_lines, write_lines
from stepsearch.verifiers.training.settings import changed, settings_of_policy

NAMED = [
    {"id": "q1", "problem": "p", "steps": ["a", word], "labels": ["good", mark]}
    for word, mark in (("b", "good"), ("c", "bad"), ("b", "good"))
]
SAMPLED: list[dict[str, Any]] = [
    {"id": name, "problem": "p", "answer": "1", "samples": [{"text": text}]}
    for name, text in (("a", "#### 1"), ("a", "#### 2"), ("b", "#### 1"))
]


WORLD = ("hydra.searchpath=[pkg://support.worldconf]", "policy=world")


def sample(folder: Path, *settings: str) -> int:
    return main(["sample", f"questions={folder}/q.jsonl", f"out={folder}/s.jsonl", *settings])


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


@pytest.mark.parametrize("method", ["both", "monte_carlo"])
def test_a_question_that_fills_the_context_ends_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    told = [{"text": "w\n", "token_ids": [1]}, {"text": "#### 1", "token_ids": [2]}]
    empty = {"text": "", "stop": "context", "tokens": 0}
    whole = {"text": "w\n#### 1", "steps": told}
    rows = [SAMPLED[i] | {"samples": samples} for i, samples in ((0, [empty] * 2), (2, [whole]))]
    write_lines(tmp_path / "s.jsonl", rows)
    assert label(tmp_path, *WORLD, f"method={method}", "k=2") == 0
    assert "s.jsonl: 2 samples without a text are left out" in caplog.text
    found = {row["id"]: row["solutions"] for row in read_lines(tmp_path / "l.jsonl")}
    assert (found["a"], [len(s["labels"]) for s in found["b"]]) == ([], [2])


CODE = {
    "answer": CodeTests(prompt="", entry_point="f", test="assert f() == 2").as_gold(),
    "samples": [
        {"text": f"```python\ndef f():\n    print('{'x' * length}')\n    return 2\n```"}
        for length in (10, 5000)
    ],
}


def test_workers_have_the_task_as_it_is_set(tmp_path: Path) -> None:
    write_lines(tmp_path / "s.jsonl", [{"id": str(i), "problem": "p"} | CODE for i in range(3)])
    settings = ("task=python", "task.allow_unsafe=true", "task.limits.output_bytes=1000")
    assert label(tmp_path, *settings, "method=outcome", "workers=2") == 0
    rows = list(read_lines(tmp_path / "l.jsonl"))
    assert [[s["outcome"] for s in row["solutions"]] for row in rows] == [[1, 0]] * 3
    assert label(tmp_path, *settings, "method=outcome", "workers=1") == 0


OWN = """
from stepsearch.search.task import ExactTask, MathTask

class Own:
    name = "own"

    def __init__(self):
        self.math, self.exact = MathTask(), ExactTask()

    def extract(self, text):
        return self.math.extract(text)

    def grade(self, text, gold):
        return self.exact.equal(self.extract(text), gold + "!")
"""


def labelled_by(task: Any, folder: Path) -> list[Any]:
    settings = LabelSettings(
        samples=str(folder / "s.jsonl"),
        out=str(folder / "l.jsonl"),
        method="outcome",
        task=task,
        workers=2,
        sampling=SamplingParams(until="end"),
    )
    rows = read_lines(run_label(settings, lambda: None, {}))
    return [solution["outcome"] for row in rows for solution in row["solutions"]]


def test_workers_take_a_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_task.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    task = importlib.import_module("own_task").Own()
    told = SAMPLED[0] | {"samples": [{"text": "#### 1"}, {"text": "#### 1!"}]}
    write_lines(tmp_path / "s.jsonl", [told])
    assert labelled_by(task, tmp_path) == [0, 1]
    (tmp_path / "l.jsonl").unlink()
    task.grade = lambda text, gold: True
    with pytest.raises(ConfigurationError, match=r"workers=2: the task 'own' cannot be sent"):
        labelled_by(task, tmp_path)
    del task.grade
    (tmp_path / "own_task.py").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be made .*own_task.*workers=1"):
        labelled_by(task, tmp_path)


HOLDING = """
from dataclasses import InitVar, dataclass, field

from stepsearch.search.equality import MathEquality
from stepsearch.search.task import ExactTask, MathTask

class Near(ExactTask):
    tolerance = 0.0

    def equal(self, a, b):
        return abs(float(a) - float(b)) <= self.tolerance

    def grade(self, text, gold):
        return self.equal(self.extract(text), gold)

@dataclass(frozen=True, kw_only=True)
class Uncompared(Near):
    tolerance: float = field(default=0.0, compare=False)

@dataclass(frozen=True, kw_only=True)
class Begun(Near):
    start: InitVar[float]

    def __post_init__(self, start):
        object.__setattr__(self, "tolerance", start)

class Plain(Near):
    def __init__(self, tolerance):
        super().__init__()
        object.__setattr__(self, "tolerance", tolerance)

class Settled(MathEquality):
    def __init__(self, equal):
        super().__init__()
        self.equal = equal

    def __call__(self, a, b):
        return self.equal

TASKS = {
    "uncompared": Uncompared(tolerance=0.5),
    "init": Begun(start=0.5),
    "plain": Plain(0.5),
    "timeout": MathTask(equality=MathEquality(timeout=1e-9)),
    "settled": MathTask(equality=Settled(True)),
}
"""


@pytest.mark.parametrize(
    ("name", "answers", "expected"),
    [
        *((name, ("1.2", "2"), [1, 0]) for name in ("uncompared", "init", "plain")),
        ("timeout", ("x+x", "1"), [None, 1]),
        ("settled", ("2", "3"), [1, 1]),
    ],
)
def test_workers_know_all_that_a_task_holds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    answers: tuple[str, str],
    expected: list[float | None],
) -> None:
    (tmp_path / "holding.py").write_text(HOLDING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "holding", raising=False)
    task = importlib.import_module("holding").TASKS[name]
    samples = [{"text": f"#### {answer}"} for answer in answers]
    write_lines(tmp_path / "s.jsonl", [SAMPLED[0] | {"answer": "1", "samples": samples}])
    assert labelled_by(task, tmp_path) == expected


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


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("policy.branching=7", "policy.branching"),
        ("+policy.num_parameters=7", "policy.num_parameters, policy.spec.num_parameters"),
        ('task.instruction="Say it."', "task.instruction"),
        ("task=exact", "task.class, task.name"),
        ("token_ids=false", "token_ids"),
        ("sampling.top_p=0.5", "sampling.top_p"),
    ],
)
def test_samples_of_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, told: str
) -> None:
    write_lines(tmp_path / "q.jsonl", [{"id": "a", "problem": "p", "answer": "1"}])
    assert sample(tmp_path, *WORLD, "n=2") == 0
    assert sample(tmp_path, *WORLD, "n=2", change) == 2
    assert f"was made with other settings ({told})" in capsys.readouterr().err
    assert sample(tmp_path, *WORLD, "n=2", "concurrency=1") == 0


def test_a_file_that_another_process_writes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "q.jsonl", [{"id": "a", "problem": "p", "answer": "1"}])
    with FileLock(tmp_path / ".s.jsonl.lock"):
        assert sample(tmp_path, *WORLD) == 2
    assert f"another process is at work on {tmp_path}/s.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "s.jsonl").exists()
    assert sample(tmp_path, *WORLD) == 0


@pytest.mark.parametrize("field", ["id", "problem", "answer", "solution"])
def test_questions_with_half_a_character_are_refused_before_any_is_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    good = {"id": "x", "problem": "\U0001f600", "answer": "1", "solution": "#### 1"}
    rows = [good, good | {field: "x \ud83d"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sample(tmp_path, *WORLD) == 2
    told = f"q.jsonl, line 2: {field!r} holds half a character ('x \\ud83d')"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "s.jsonl").exists()
    write_lines(tmp_path / "q.jsonl", rows[:1])
    assert sample(tmp_path, *WORLD) == 0


def test_half_a_character_that_a_server_sent_is_kept(tmp_path: Path) -> None:
    row = SAMPLED[0] | {"problem": "\u00e9 \ud83d \\ud83d", "id": "\ud83d"}
    row["samples"] = [{"text": "\ud83d\n#### 1"}]
    (tmp_path / "s.jsonl").write_text(json.dumps(row) + "\n")
    for _ in range(2):
        assert label(tmp_path) == 0
    (found,) = read_lines(tmp_path / "l.jsonl")
    assert (found["id"], found["problem"]) == (row["id"], row["problem"])
    assert found["solutions"][0]["steps"] == ["\ud83d", "#### 1"]
    assert "\u00e9" in (tmp_path / "l.jsonl").read_text(encoding="utf-8")


def test_policies_of_one_name_are_told_apart_and_speed_does_not_matter() -> None:
    def told(digest: str, folder: str, device: str, max_rows: int) -> dict[str, Any]:
        provenance = {"adapter_hash": digest, "device": device}
        policy: Any = SimpleNamespace(spec=PolicySpec(name="m+policy", provenance=provenance))
        config = {"adapter": f"{folder}/policy", "max_rows": max_rows}
        return settings_of_policy(policy, config)

    one = told("1", "a", "cpu", 1)
    assert changed(one, told("1", "a", "cuda:0", 32)) == []
    assert changed(one, told("1", "b", "cpu", 1)) == ["adapter"]
    assert changed(one, told("2", "a", "cpu", 1)) == ["spec.provenance.adapter_hash"]


def test_labels_of_another_policy_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [{"text": "w\n", "token_ids": [1]}, {"text": "#### 1", "token_ids": [2]}]
    one = {"text": "w\n#### 1", "steps": told}
    write_lines(tmp_path / "s.jsonl", [SAMPLED[0] | {"samples": [one]}])
    settings = (*WORLD, "method=monte_carlo", "k=2")
    assert label(tmp_path, *settings) == 0
    assert label(tmp_path, *settings, "concurrency=1") == 0
    assert label(tmp_path, *settings, "policy.branching=7") == 2
    assert "was made with other settings (policy.branching)" in capsys.readouterr().err
    assert label(tmp_path, *settings, "method=bisection") == 2


def test_labels_of_another_taxonomy_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "s.jsonl", NAMED[:1])
    taxonomy = tmp_path / "t.yaml"
    settings = ("method=hand", "layout=names", f"taxonomy={taxonomy}")
    taxonomy.write_text("good: 1\n")
    assert label(tmp_path, *settings) == 0
    taxonomy.write_text("good: 0.5\n")
    assert label(tmp_path, *settings) == 2
    assert "was made with other settings (taxonomy.good)" in capsys.readouterr().err
