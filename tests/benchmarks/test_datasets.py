"""Data sets: columns, ids, subsets, and errors that say what to do."""

import json
import sys
import types
from dataclasses import fields
from pathlib import Path

import pytest

from stepsearch import ConfigurationError
from stepsearch.benchmarks.datasets import Dataset, subset
from stepsearch.conf.build import build, load_config
from stepsearch.conf.options import options
from stepsearch.search.types import Problem

NAMES = options("benchmark")


def write(folder: Path, *rows: object) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def dataset(file: Path, **settings: object) -> Dataset:
    return Dataset(**({"name": "s", "question": "q", "answer": "a", "path": file} | settings))


def test_columns_numbers_lists_and_meta(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"q": "one?", "a": 27.0, "level": 3},
        {"q": "two?", "a": ["1", 2.5], "level": 4},
        {"q": "three?", "a": "<<1+1=2>>2\n#### 1,234 ", "level": 5},
        {"q": "four?", "a": None, "level": 5},
    )
    found = dataset(path, answer_after="####", keep=["level"]).problems()
    assert [p.answer for p in found] == ["27", "1, 2.5", "1,234", None]
    assert [p.meta["level"] for p in found] == [3, 4, 5, 5]
    assert [p.id for p in found] == ["s-0", "s-1", "s-2", "s-3"]


def test_the_same_question_twice_is_two_problems(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": "same?", "a": 1}, {"q": "same?", "a": 2})
    assert [(p.id, p.answer) for p in dataset(path).problems()] == [("s-0", "1"), ("s-1", "2")]


def test_subsets_are_seeded_nested_and_keep_ids() -> None:
    problems = [Problem(text=f"{i}?", id=f"p{i}") for i in range(50)]
    small, large = subset(problems, 5, seed=1), subset(problems, 20, seed=1)
    assert {p.id for p in small} < {p.id for p in large}
    assert small == [p for p in problems if p in small], "in the old order"
    assert small != subset(problems, 5, seed=2)
    assert subset(problems, None, 0) == subset(problems, 99, 0) == problems


@pytest.mark.parametrize(
    ("rows", "settings", "words"),
    [
        ([{"q": "x", "gold": 1}], {}, ["'a'", "gold", "benchmark.answer"]),
        ([], {}, ["no problems"]),
        (["x"], {}, ["line 1", "object"]),
        ([{"q": "x", "a": 1, "i": 1}] * 2, {"id": "i"}, ["'s-1'", "more than once"]),
        ([{"q": "x", "a": 1}], {"limit": 0}, ["benchmark.limit=0"]),
        ([{"q": "x", "a": 1}], {"path": None}, ["benchmark.path"]),
        ([{"q": "x", "a": 1}], {"path": "nowhere.jsonl"}, ["nowhere.jsonl", "no such file"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, rows, settings, words) -> None:
    path = write(tmp_path, *rows)
    with pytest.raises(ConfigurationError) as caught:
        dataset(path, **settings).problems()
    for word in words:
        assert word in str(caught.value)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": "x", "a": 1})
    path.write_text(path.read_text() + '{"q": "y", "a"')
    with pytest.raises(ConfigurationError, match="line 2"):
        dataset(path).problems()
    other = tmp_path / "set.csv"
    other.write_text("q,a\n")
    with pytest.raises(ConfigurationError, match="parquet"):
        dataset(other).problems()


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "set.parquet"
    parquet.write_table(pa.table({"q": ["x?"], "a": [3]}), path)
    assert [p.answer for p in dataset(path).problems()] == ["3"]


def test_the_hub_is_asked_for_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, object]]:
        asked.append((name, config, split))
        return [{"question": "x?", "answer": "so\n#### 5"}]

    module = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    problems = build(load_config(["+benchmark=gsm8k"]), "benchmark").problems()
    assert (problems[0].answer, asked) == ("5", [("openai/gsm8k", "main", "test")])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"stepsearch\[data\]"):
        build(load_config(["+benchmark=gsm8k"]), "benchmark").problems()


@pytest.mark.parametrize("name", NAMES)
def test_every_file_builds_and_shows_every_parameter(name: str, tmp_path: Path) -> None:
    overrides = [f"+benchmark={name}"]
    if name in ("file", "code_file"):
        overrides.append(f"benchmark.path={tmp_path / 'x.jsonl'}")
    config = load_config(overrides)
    built = build(config, "benchmark")
    assert built.name == name
    assert set(config.benchmark) - {"_target_"} == {f.name for f in fields(built)}


def test_the_sets_on_this_machine(data_dir: Path) -> None:
    for name, overrides, count, first in (
        ("gsm8k", [], 1319, "18"),
        ("multiarith", ["benchmark.question=input", "benchmark.answer=target"], 600, "39"),
        ("amc23", [], 40, "27"),
        ("aime24", [], 30, "204"),
    ):
        path = data_dir / "data" / name / "test.jsonl"
        config = load_config([f"+benchmark={name}", f"benchmark.path={path}", *overrides])
        problems = build(config, "benchmark").problems()
        assert (len(problems), problems[0].answer) == (count, first)
        assert len({p.id for p in problems}) == count
