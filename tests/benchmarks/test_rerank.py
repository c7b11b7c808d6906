"""Reranking: rows against counting by hand, sources of scores, and what is refused."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.worlds import engine, hash_verifier, random_policy

from stepsearch import ConfigurationError, Problem
from stepsearch.benchmarks.readout import group_answers
from stepsearch.benchmarks.rerank import RerankSettings, as_json, rerank
from stepsearch.benchmarks.samples import as_scores, read_samples, split_steps
from stepsearch.cli import main
from stepsearch.search.select import choose
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.task import ExactTask, MathTask
from stepsearch.search.types import Candidate

NAN = math.nan
QUICK = {"num_resamples": 100, "num_orders": 400}


def write(path: Path, problems: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(p) + "\n" for p in problems), encoding="utf-8")
    return path


def problem(name: str, gold: object, *samples: tuple[str, dict[str, object]]) -> dict[str, object]:
    told = [{"text": text, "scores": scores} for text, scores in samples]
    return {"id": name, "problem": f"{name}?", "answer": gold, "samples": told}


def said(answer: object, **scores: object) -> tuple[str, dict[str, object]]:
    return f"so it is\n#### {answer}", scores


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return write(
        tmp_path / "samples.jsonl",
        [
            problem(
                "a", 7,
                said(5, prm=[0.9, 0.2], orm=0.3),
                said(7, prm=[0.1, 0.8], orm=0.9),
                said("7.0", prm=[0.5, 0.1], orm=0.2),
                said(5, prm=[0.4, 0.3], orm=0.1),
            ),
            problem(
                "b", "1/2",
                said("0.5", prm=[0.6], orm=0.4),
                ("no answer here", {"prm": [1.0], "orm": 1.0}),
                said(3, prm=[0.7, 0.65], orm=0.5),
                said(r"\\frac{1}{2}".replace("\\\\", "\\"), prm=[0.3, 0.2], orm=0.3),
            ),
        ],
    )  # fmt: skip


def rows(samples: Path, *verifiers: str, **settings: object) -> dict[str, dict[str, object]]:
    result = as_json(
        rerank(RerankSettings(samples=samples, verifiers=verifiers, **QUICK | settings))
    )
    return {row["label"]: row for row in result["rows"]}


def accuracy(row: dict[str, object]) -> list[float]:
    return row["accuracy"]["value"]


def by_hand(by: str, value, golds: list[str], groups: list[list[tuple[str | None, float]]]):
    """Mean over all subsets with `search.select.choose`, for N = 1 to 4."""
    task = MathTask()
    means = []
    for n in range(1, 5):
        hits = []
        for gold, group in zip(golds, groups, strict=True):
            found = [
                Candidate(node=i, answer=a, score=s, stop="eos") for i, (a, s) in enumerate(group)
            ]
            for chosen in itertools.combinations(found, n):
                answer = choose(chosen, by, task.equal).candidate
                won = answer is not None and answer.answer is not None
                hits.append(won and task.equal(answer.answer, gold) is True)
        means.append(float(np.mean(hits)))
    return means


PRM = [
    [("5", 0.2), ("7", 0.8), ("7.0", 0.1), ("5", 0.3)],
    [("0.5", 0.6), (None, 1.0), ("3", 0.65), (r"\frac{1}{2}", 0.2)],
]


def test_rows_agree_with_the_selections_of_a_search(samples: Path) -> None:
    found = rows(samples, "prm", num_orders=4000)
    golds = ["7", "1/2"]
    for label, by in (("best prm", "best"), ("weighted prm", "weighted")):
        expected = by_hand(by, None, golds, PRM)
        tolerance = 1e-12 if by == "best" else 0.02
        assert accuracy(found[label]) == pytest.approx(expected, abs=tolerance), label
    expected = by_hand("majority", None, golds, PRM)
    assert accuracy(found["majority, ties by prm"]) == pytest.approx(expected, abs=0.02)
    assert [found[label]["exact"] for label in ("pass", "majority", "best prm")] == [True] * 3
    assert not found["weighted prm"]["exact"]


def test_pass_and_majority_are_always_there(samples: Path) -> None:
    found = rows(samples)
    assert set(found) == {"pass", "majority"}
    assert accuracy(found["pass"]) == pytest.approx([0.5, 5 / 6, 1, 1])
    assert accuracy(found["majority"])[-1] == pytest.approx((0.5 + 1) / 2), "a tie is shared"
    assert found["majority"]["mcnemar"] is None
    assert found["pass"]["mcnemar"] == {"only_a": 1, "only_b": 0, "p": 1.0}


def test_disjoint_groups(samples: Path) -> None:
    found = rows(samples, "prm", is_disjoint=True)
    # a: {5, 7}, {7, 5}; b: {1/2}, {3, 1/2}
    assert accuracy(found["best prm"])[1] == pytest.approx((1 + 0 + 1 + 0) / 4)
    assert accuracy(found["majority"])[1] == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert accuracy(found["pass"])[:2] == pytest.approx([0.5, 1])


@pytest.mark.parametrize(
    ("verifier", "winners"),
    [
        ("prm", ["7", "3"]),
        ("prm:min", ["5", "3"]),
        ("prm:mean", ["5", "3"]),
        ("prm*orm", ["7", "3"]),
        ("prm:min*orm^3", ["7", "3"]),
        ("prm + orm", ["7", "3"]),
    ],
)
def test_expressions(samples: Path, verifier: str, winners: list[str]) -> None:
    [_, _, best] = as_json(
        rerank(RerankSettings(samples=samples, verifiers=[verifier], selections=["best"], **QUICK))
    )["rows"]
    assert best["label"] == f"best {verifier.replace(' ', '')}"
    assert accuracy(best)[-1] == pytest.approx(
        np.mean([w == g for w, g in zip(winners, ["7", "1/2"], strict=True)])
    )


def test_aggregations_cross_all_verifiers(samples: Path) -> None:
    found = rows(samples, "prm", "orm", aggregations=["min", "last"], selections=["best"])
    assert {"best prm (min)", "best prm (last)", "best orm (min)", "best orm (last)"} <= set(found)
    assert accuracy(found["best orm (min)"]) == accuracy(found["best orm (last)"])
    assert accuracy(found["best prm (min)"]) != accuracy(found["best prm (last)"])


def test_a_configured_verifier_is_run_without_a_policy(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", 12, ("3 * 4 = 11\n#### 11", {}), ("3 * 4 = 12\n#### 12", {}), said(11))],
    )
    found = rows(path, "rule")
    assert accuracy(found["best rule"]) == pytest.approx([1 / 3, 2 / 3, 1])
    assert accuracy(found["weighted rule"])[-1] == 1
    assert accuracy(found["majority"])[-1] == 0
    kind = rows(path, "rule", overrides=["rule.wrong=0.3", "rule.correct=0.3"])
    assert accuracy(kind["best rule"])[-1] == 0, "all alike: the earliest wins"


def test_failed_and_missing_scores_are_counted_and_never_chosen(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", 1, said(2, prm=math.nan), said(2), said(2, prm=None), said(1, prm=0.1))],
    )
    result = rerank(RerankSettings(samples=path, verifiers=["prm"], **QUICK))
    assert dict(result.unscored) == {"prm": 3}
    found = {line.row.label: line for line in result.lines}
    assert found["best prm"].accuracy[-1].value == found["weighted prm"].accuracy[-1].value == 1
    assert found["majority, ties by prm"].accuracy[-1].value == 0, "all vote"


def test_scores_that_are_no_probabilities(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl", [problem("a", 1, said(1, rm=-3.0), said(2, rm=-9.5), said(2, rm=-9))]
    )
    result = rerank(RerankSettings(samples=path, verifiers=["rm"], **QUICK))
    assert [line.row.label for line in result.lines][2:] == ["best rm", "majority, ties by rm"]
    assert any("--link rm=logistic" in note for note in result.notes)
    with pytest.raises(ConfigurationError, match="--link rm=logistic"):
        rows(path, "rm^2")
    found = rows(path, "rm", links=["rm=logistic"])
    assert accuracy(found["weighted rm"])[-1] == 1


def test_unknown_is_neither_right_nor_wrong(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", "x+1", said("9^{9^{9^9}}")), problem("b", 2, said(2))],
    )
    row = rows(path)["majority"]
    assert (accuracy(row), row["undecided"]) == ([1.0], [1.0])


def test_unreadable_gold_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [problem("a", "", said(1)), problem("b", 2, said(2))])
    result = rerank(RerankSettings(samples=path, **QUICK))
    assert (result.excluded, result.num_problems) == (("a",), 1)
    assert result.lines[0].accuracy[0].value == 1


def test_problems_with_fewer_samples_count_with_all_they_have(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        [problem("a", 1, said(1, v=1)), problem("b", 1, said(2, v=0.5), said(1, v=0.6))],
    )
    found = rows(path, "v")
    for label in ("pass", "best v"):
        assert accuracy(found[label]) == pytest.approx([0.75, 1.0])
    assert accuracy(found["weighted v"]) == pytest.approx([0.75, 1.0], abs=0.05)


def test_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    problems = [Problem(text=f"q{i}", id=str(i), answer=str(i % 4)) for i in range(12)]
    search = engine(BestOfN(n=6), random_policy(), hash_verifier(), trace=path)
    solutions = {s.problem.id: s for s in search.solve_many(problems)}
    with path.open("a") as file:
        file.write('{"version":1,"tree"')
    settings = {"task": "exact", "selections": ["weighted"]}
    result = rerank(RerankSettings(samples=path, verifiers=["scripted"], **QUICK | settings))
    expected = np.mean([s.answer == s.problem.answer for s in solutions.values()])
    assert result.lines[-1].accuracy[-1].value == pytest.approx(expected)
    assert result.notes == []


@pytest.mark.parametrize(
    ("strategy", "settings"), [(Beam(n=4, width=2), {}), (BestOfN(n=4), {"settle": "certain"})]
)
def test_dependent_samples_come_with_a_warning(tmp_path: Path, strategy, settings) -> None:
    path = tmp_path / "trace.jsonl"
    search = engine(strategy, random_policy(), hash_verifier(), trace=path, **settings)
    search.solve(Problem(text="q", id="q", answer="1"))
    result = rerank(RerankSettings(samples=path, task="exact", **QUICK))
    assert any("tree search" in note for note in result.notes)


def test_an_alarm_when_few_answers_can_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [problem("a", 1, *[("it is 1", {})] * 9, said(1))])
    result = rerank(RerankSettings(samples=path, **QUICK))
    assert (result.num_samples, result.num_answers) == (10, 1)
    assert any("1 of 10 samples (10%)" in note for note in result.notes)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("a\nb\n#### 1", ("a\n", "b\n", "#### 1")),
        ("a\n\nb\n", ("a\n\n", "b\n")),
        ("\na", ("\n", "a")),
        ("", ()),
    ],
)
def test_steps_of_a_text(text: str, steps: tuple[str, ...]) -> None:
    assert split_steps(text, "\n") == steps
    assert "".join(steps) == text


def test_scores_as_they_stand_in_files() -> None:
    assert as_scores(1) == (1.0,)
    assert as_scores([0.5, 2]) == (0.5, 2.0)
    assert as_scores(None) is as_scores([]) is as_scores([1.0, None]) is as_scores(math.inf) is None
    for wrong in ("0.5", True, {"a": 1}):
        with pytest.raises(ValueError, match="a number or a list"):
            as_scores(wrong)


def test_groups_follow_the_task() -> None:
    answers = ["7", "007", None, "7.0", "8"]
    assert group_answers(answers, MathTask()) == ([0, 0, -1, 0, 1], ["7", "8"])
    assert group_answers(answers, ExactTask())[0] == [0, 1, -1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"verifiers": ["nothing"]}, ["verifier=nothing", "rule"]),
        ({"verifiers": ["prm:max"]}, ["'max'", "last, min"]),
        ({"verifiers": ["prm**orm"]}, ["cannot read"]),
        ({"verifiers": ["none"]}, ["verifier=none"]),
        ({"selections": ["first"]}, ["'first'", "weighted"]),
        ({"links": ["orm=tanh"]}, ["NAME=logistic"]),
        ({"links": ["rm=logistic"]}, ["'rm'", "prm"]),
        ({"against": "best orm"}, ["'best orm'", "majority"]),
        ({"overrides": ["rule.wrong=0.1"]}, ["'rule.wrong=0.1'"]),
        ({"samples": Path("nowhere.jsonl")}, ["nowhere.jsonl", "no such file"]),
        ({"num_orders": 0}, ["num_orders=0"]),
    ],
)
def test_mistakes_are_named(samples: Path, settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rerank(RerankSettings(**{"samples": samples} | QUICK | settings))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"id": "a", "problem": "?", "samples": []}], ["line 1", "'answer' is missing"]),
        ([problem("a", 1, said(1, prm="high"))], ["line 1", "a number or a list", "'high'"]),
        ([problem("a", 1, said(1)), problem("a", 2, said(1))], ["'a' occurs on two lines"]),
        ([], ["holds no samples"]),
        ([[1]], ["line 1", "not a JSON object"]),
        ([problem("a", 1, said(1, prm=10**400))], ["line 1", "too large"]),
        ([problem("a", 1, said(1, prm=[0.5, -(10**400)]))], ["line 1", "too large"]),
    ],
)
def test_broken_files_are_named(tmp_path: Path, lines: list, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_samples(write(tmp_path / "s.jsonl", lines), MathTask())
    for word in words:
        assert word in str(caught.value)


def test_lines_nested_too_deeply_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(ConfigurationError, match="line 1: nested too deeply"):
        read_samples(path, MathTask())


def test_gold_that_is_not_a_number_is_no_gold(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", [problem(n, g, said(1)) for n, g in (("a", 1), ("b", NAN))])
    assert rerank(RerankSettings(samples=path, **QUICK)).excluded == ("b",)


def test_traces_without_gold_answers_do_not_blame_a_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    engine(BestOfN(n=2), random_policy(), trace=path).solve("q")
    with pytest.raises(ConfigurationError) as caught:
        rerank(RerankSettings(samples=path, **QUICK))
    assert "none of the 1 problems has a gold answer" in str(caught.value)
    assert "Problem(answer=...)" in str(caught.value)
    assert "benchmark.answer" not in str(caught.value)


@pytest.mark.parametrize("change", [{"aggregation": 3}, {"verifier": {"name": "v", "range": 1}}])
def test_odd_provenance_of_a_trace_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "traces.jsonl"
    engine(BestOfN(n=2), random_policy(), hash_verifier(), trace=path).solve("q")
    trace = json.loads(path.read_text())
    trace["provenance"] |= change
    with pytest.raises(ConfigurationError, match="line 1: the trace has scores of range"):
        read_samples(write(path, [trace]), ExactTask())


def test_a_reader_that_goes_away_is_no_error(samples: Path) -> None:
    script = "import sys; from stepsearch.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "rerank", str(samples), "--resamples", "10", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 0


def test_the_command(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "rerank",
        str(samples),
        "--verifier",
        "prm",
        "--verifier",
        "rule*prm",
        "--n",
        "2,4",
    ]
    arguments += ["rule.wrong=0.01", "--resamples", "100"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for part in ("2 problems, up to 4 samples", "N=2", "weighted rule*prm", "minus majority", "p="):
        assert part in text
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 8
    assert main(["rerank", str(samples), "--n", "four"]) == 2
    assert "--n 'four'" in capsys.readouterr().err


TABLE = {
    "gsm8k": {
        "majority": (10.5, 16.2, 20.8),
        "weighted rule": (12.0, 16.9, 21.0),
        "weighted orm": (14.1, 17.9, 21.2),
        "weighted prm": (14.3, 17.9, 22.0),
        "weighted rule*prm": (14.5, 18.7, 22.2),
        "weighted rule*prm*orm": (14.8, 19.3, 23.8),
        "best prm": (14.0, 16.4, 19.2),
        "pass": (21.4, 40.8, 62.7),
    },
    "multiarith": {
        "majority": (28.7, 46.4, 58.0),
        "weighted rule": (34.3, 54.8, 65.7),
        "weighted orm": (36.9, 50.6, 57.7),
        "weighted prm": (37.1, 51.4, 61.7),
        "weighted rule*prm": (39.8, 59.2, 68.7),
        "weighted rule*prm*orm": (40.0, 59.1, 67.0),
        "best prm": (35.6, 44.2, 43.0),
        "pass": (51.9, 82.7, 93.7),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_a_published_table_comes_out_again(data_dir: Path, name: str) -> None:
    """Our rule reads equations between words, which the table's did not: up to 2.1 points."""
    verifiers = ["rule", "orm", "prm", "rule*prm", "rule*prm*orm"]
    path = data_dir / "data" / "samples" / f"{name}.jsonl"
    found = rows(path, *verifiers, is_disjoint=True, num_resamples=100)
    for label, expected in TABLE[name].items():
        values = [100 * accuracy(found[label])[n - 1] for n in (4, 16, 64)]
        tolerance = [2.1] * 3 if "rule" in label else [0.1] * 3
        if (name, label) == ("gsm8k", "majority"):
            tolerance[2] = 0.3  # "1,0000" is no number to us, which turns one tie of 400 problems
        for value, target, allowed in zip(values, expected, tolerance, strict=True):
            assert abs(value - target) <= allowed + 1e-9, (label, values, expected)
