"""Reports: figures against the runs they are about."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.worlds import engine

from stepsearch import ConfigurationError, Problem
from stepsearch.benchmarks import report as module
from stepsearch.benchmarks.equal_compute import Baseline, compare
from stepsearch.benchmarks.pairs import pairs_table
from stepsearch.benchmarks.problem_sets import same_problems
from stepsearch.benchmarks.readout import Row
from stepsearch.benchmarks.report_tables import (
    Samples,
    accuracy_table,
    coverage_table,
    difficulty_table,
    samples_table,
)
from stepsearch.benchmarks.run_data import Method, RunData, methods_of, read_runs
from stepsearch.benchmarks.run_folder import TRACES
from stepsearch.benchmarks.statistics import Outcomes
from stepsearch.cli import main
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.task import MathTask
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step

WORLD = [
    "hydra.searchpath=[pkg://support.worldconf]",
    *("policy=noisy", "benchmark.limit=30", "budget=unlimited"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for settings in (
        ["verifier=doubtful", "search=best_of_n", "search.n=16"],
        ["verifier=doubtful", "search=best_of_n", "search.n=4"],
        ["verifier=doubtful", "search=beam", "seed=0,1", "-m"],
        ["search=greedy", "verifier=none"],
    ):
        assert main(["bench", *WORLD, *settings, f"runs={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    assert main(["report", str(runs), "--out", str(out)]) == 0
    return out


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_accuracy_and_cost(runs: Path, written: Path) -> None:
    found = {row["method"]: row for row in table(written, "accuracy")}
    assert len(found) == 4
    for method in methods_of(read_runs([runs])):
        row = found[method.label]
        told = [r for run in method.runs for r in run.rows]
        assert float(row["accuracy"]) == pytest.approx(np.mean([r["right"] == "1" for r in told]))
        tokens = np.mean([float(r["policy_tokens"]) for r in told])
        assert float(row["policy_tokens"]) == pytest.approx(tokens)
        assert float(row["accuracy_low"]) <= float(row["accuracy"]) <= float(row["accuracy_high"])
    assert {row["seeds"] for label, row in found.items() if label.startswith("beam")} == {"2"}


@pytest.mark.slow
def test_labels_tell_methods_apart(runs: Path) -> None:
    doubtful, nothing = "verifier=doubtful_verifier", "verifier=nothing"
    assert sorted(method.label for method in methods_of(read_runs([runs]))) == [
        f"beam {doubtful}",
        f"best_of_n n=16 {doubtful}",
        f"best_of_n n=4 {doubtful}",
        f"greedy {nothing}",
    ]


@pytest.mark.slow
def test_equal_compute(written: Path) -> None:
    rows = table(written, "equal")
    assert {row["equal"] for row in rows} == {"flops"}
    small = [row for row in rows if row["method"].startswith("best_of_n n=4")]
    assert {row["baseline"] for row in small} == {
        "pass", "majority", "best scripted", "weighted scripted",
    }  # fmt: skip
    for row in small:
        assert float(row["samples"]) == pytest.approx(4, abs=0.3)
    [weighted] = [row for row in small if row["baseline"] == "weighted scripted"]
    assert abs(float(weighted["difference"])) < 0.2, "the same method at the same cost"
    assert float(weighted["difference_low"]) <= 0 <= float(weighted["difference_high"])


@pytest.mark.slow
def test_methods_against_one_another(runs: Path, written: Path) -> None:
    methods = {method.label: method for method in methods_of(read_runs([runs]))}
    rows = table(written, "pairs")
    assert len(rows) == 4 * 3 // 2
    for row in rows:
        a, b = methods[row["method"]], methods[row["other"]]
        gap = a.outcomes().accuracy() - b.outcomes().accuracy()
        assert float(row["difference"]) == pytest.approx(float(gap[0]))
        assert float(row["difference_low"]) <= float(gap[0]) <= float(row["difference_high"])
        assert (row["p"] == "") == ("beam" in row["method"] + row["other"]), "two seeds, no test"
        if row["p"]:
            more = float(row["only_method"]) - float(row["only_other"])
            assert more / int(row["problems"]) == pytest.approx(float(gap[0]))


@pytest.mark.slow
def test_diagnostics(written: Path) -> None:
    rows = table(written, "verifiers")
    assert all(0.5 < float(row["auroc"]) <= 1 for row in rows if "greedy" not in row["method"])
    samples = table(written, "samples")
    best = [float(r["accuracy"]) for r in samples if r["readout"] == "best scripted"]
    assert len(best) == 16
    assert max(best) > best[-1] + 0.05, "an exploited verifier falls behind"
    depths = table(written, "depth")
    assert {row["depth"] for row in depths} >= {"1", "2", "3"}
    assert {row["by"] for row in table(written, "difficulty")} >= {"steps", "difficulty"}
    shares = [float(row["coverage"]) for row in table(written, "coverage")]
    assert max(shares) == 1


@pytest.mark.slow
def test_the_page_needs_no_other_file(written: Path) -> None:
    page = (written / "report.html").read_text()
    plots = list(written.glob("*.png"))
    assert len(plots) == len(re.findall(r'src="data:image/png;base64,', page)) >= 6
    assert not re.search(r"""(?:src|href)=["'](?!data:)|url\(|@import|<script""", page)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots)


def test_other_problems_get_a_report_of_their_own(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "draw", lambda tables, folder: [])
    for name in ("a", "b"):
        run = shutil.copytree(whole, tmp_path / "runs" / name)
        [identity] = run.glob("*/run.json")
        identity.write_text(json.dumps(json.loads(identity.read_text()) | {"problems": name}))
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    pages = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("out/*/report.html"))
    assert pages == ["out/problems-1/report.html", "out/problems-2/report.html"]


def run_of(problems: str, golds: str, limit: int | None = None, **settings: object) -> RunData:
    told = {"search._target_": "a.beam.Beam", "benchmark.limit": limit, "seed": 0, **settings}
    rows = [{"id": str(n), "gold": gold, "policy_tokens": "1"} for n, gold in enumerate(golds)]
    return RunData(path=Path(problems), settings=told, problems=problems, rows=rows)


def test_a_run_over_more_problems_is_cut_to_those_of_a_smaller_one() -> None:
    small = run_of("small", "abc", 3, **{"search._target_": "a.mcts.Mcts"})
    large, other = run_of("large", "abcde"), run_of("other", "abcde", **{"benchmark.path": "x"})
    cut, whole, apart = same_problems([small, large, other])
    assert [(run.path, len(run.rows)) for run in cut] == [(Path("small"), 3), (Path("large"), 3)]
    assert (whole, apart) == ([large], [other])
    assert {method.label for method in methods_of(cut)} == {"mcts", "beam"}, "no word of the limit"


def test_runs_are_not_cut_where_that_says_nothing_or_something_wrong() -> None:
    small, twin, again = run_of("small", "abc", 3), run_of("twin", "abcde"), run_of("b", "abcd", 4)
    assert same_problems([small, twin, again])[0] == [small], "the same search is there already"
    [seeds, _] = same_problems([small, run_of("seed", "abcde", seed=1)])
    assert [len(method.runs) for method in methods_of(seeds)] == [2]
    broken = replace(run_of("broken", "abcde", **{"search._target_": "a.mcts.Mcts"}), failed=("1",))
    broken = replace(broken, rows=[row for row in broken.rows if row["id"] != "1"])
    [[_, cut], _] = same_problems([small, broken])
    assert ([row["id"] for row in cut.rows], cut.failed) == (["0", "2"], ("1",))
    changed = run_of("changed", "aXcde", **{"search._target_": "a.mcts.Mcts"})
    assert same_problems([small, changed]) == [[small], [changed]], "another file of that name"


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="stepsearch bench"):
        read_runs([tmp_path])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    world = ["hydra.searchpath=[pkg://support.worldconf]", "policy=world"]
    world += ["verifier=rule", "search=greedy"]
    assert main(["bench", *world, "benchmark.limit=2", f"runs={root}"]) == 0
    return root


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("results.csv", None, "has no results.csv"),
        ("results.csv", "", "without rows"),
        ("results.csv", "id,right\n1,1\n", "columns that a report needs"),
        ("run.json", None, "has no run.json"),
        ("run.json", "{}", "broken run.json"),
        ("run.json", "{", "broken run.json"),
        ("config.yaml", "5", "broken run.json or config.yaml"),
        ("config.yaml", "a: [", "broken run.json or config.yaml"),
        ("config.yaml", "a: 1", "without search._target_"),
        ("traces.jsonl", None, "has no traces.jsonl"),
    ],
)
def test_half_a_run_is_named(
    whole: Path, tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    [file] = folder.glob(f"*/{name}")
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_runs([folder])
    assert words in str(caught.value)
    assert str(file.parent) in str(caught.value)


def test_a_file_where_the_report_should_go_is_named(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("mine")
    assert main(["report", str(whole), "--out", str(tmp_path / "out")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert main(["report", str(whole), "--out", str(tmp_path / "out" / "deeper")]) == 2
    assert "cannot be made (Not a directory)" in capsys.readouterr().err


def test_an_unfinished_run_is_left_out_and_said_so(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    [run] = [path.parent for path in folder.glob("*/summary.json")]
    other = shutil.copytree(run, folder / "other")
    (other / "summary.json").unlink()
    assert [found.path for found in read_runs([folder])] == [run]
    assert "other is not finished and left out" in caplog.text
    shutil.rmtree(run)
    with pytest.raises(ConfigurationError, match="1 that are not; start the same `stepsearch"):
        read_runs([folder])


def test_a_run_that_is_there_twice_is_no_second_seed(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        shutil.copytree(whole, tmp_path / name)
    found = read_runs([tmp_path / "a", tmp_path / "a", tmp_path])
    assert len(found) == 1
    assert caplog.text.count("once more and left out") == 1, "the same folder is the same run"


def test_problems_that_failed_were_not_measured(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    [file] = folder.glob("*/results.csv")
    head, first, *rest = file.read_text().splitlines()
    failed = first.replace(",done,", ",policy_failed,")
    assert failed != first
    file.write_text("\n".join([head, failed, *rest]) + "\n")
    [run] = read_runs([folder])
    assert run.failed == (first.partition(",")[0],)
    assert len(run.rows) == len(rest)
    assert "1 problems failed and are left out" in caplog.text
    [row] = accuracy_table(methods_of([run]))
    assert (row["problems"], row["failed"]) == (1, 1)


def method(label: str, right: list[int], cost: float) -> Method:
    rows = [
        {"id": str(i), "right": str(r), "flops": str(cost), "policy_tokens": "1"}
        for i, r in enumerate(right)
    ]
    run = RunData(path=Path(), settings={}, problems="", rows=rows)
    return Method(label=label, series=label, runs=(run,))


def test_pairs_by_hand() -> None:
    a, b = method("a", [1, 1, 0, 1], 1), method("b", [0, 1, 1, 0], 1)
    [row] = pairs_table([a, b])
    assert (row["method"], row["other"], row["problems"]) == ("a", "b", 4)
    assert (row["only_method"], row["only_other"], row["p"]) == (2, 1, 1.0)
    assert (row["difference"], row["policy_tokens_ratio"]) == (0.25, 1.0)
    assert row["difference_low"] < 0 < row["difference_high"]


def test_pairs_are_of_the_problems_that_both_have() -> None:
    b = method("b", [0, 0], 1)
    rows = [*method("a", [1, 1, 1], 1).first.rows[1:], {**b.first.rows[0], "id": "9"}]
    a = replace(b, label="a", runs=(replace(b.first, rows=rows),))
    [row] = pairs_table([a, b])
    assert (row["problems"], row["difference"]) == (1, 1.0)
    strangers = replace(b, runs=(replace(b.first, rows=rows[-1:]),))
    assert pairs_table([b, strangers]) == []


@pytest.mark.parametrize(
    ("cost", "samples", "accuracy"),
    [(10, 1, 0.0), (20, 2, 0.5), (25, 2.5, 0.75), (30, 3, 1.0), (2, 0.2, 0.0), (40, 4, None)],
)
def test_a_baseline_at_the_same_cost(cost: float, samples: float, accuracy: float | None) -> None:
    right = np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    outcomes = Outcomes(right=right, undecided=np.zeros((2, 3)))
    row = Row(selection="best", scorer="v", is_exact=True, outcomes=outcomes, in_order=right)
    baseline = Baseline(
        method=method("best_of_n", [1, 1], 30), ids=["0", "1"], rows=[row], num_samples=[3, 3]
    )
    [found] = compare(method("mine", [1, 0], cost), baseline)
    assert (found.axis, found.samples) == ("flops", pytest.approx(samples))
    if accuracy is None:
        assert found.baseline is found.difference is None
    else:
        assert found.baseline is not None
        assert found.difference is not None
        assert found.baseline.value == pytest.approx(accuracy)
        assert found.difference.value == pytest.approx(0.5 - accuracy)


def test_costs_are_of_the_problems_that_both_have() -> None:
    """`a` failed on the two dear problems, and the second seed of `b` on one of them."""
    rows = [
        {"id": str(i), "right": "1", "flops": str(cost), "policy_tokens": str(cost)}
        for i, cost in enumerate([100, 300, 5000, 7000])
    ]
    run = RunData(path=Path(), settings={}, problems="", rows=rows)
    a = Method(label="a", series="a", runs=(replace(run, rows=rows[:2]),))
    b = Method(label="b", series="b", runs=(run, replace(run, rows=rows[:3])))
    [row] = pairs_table([a, b])
    assert row["policy_tokens_ratio"] == 1
    right = np.eye(4)
    outcomes = Outcomes(right=right, undecided=np.zeros((4, 4)))
    readout = Row(selection="best", scorer="v", is_exact=True, outcomes=outcomes, in_order=right)
    baseline = Baseline(method=b, ids=list("0123"), rows=[readout], num_samples=[4, 4, 1, 1])
    [found] = compare(a, baseline)
    assert (found.cost, found.samples) == (200, 4)
    again = Method(label="b", series="b", runs=(run,))
    assert compare(again, baseline)[0].samples == 2.5
    strangers = Method(label="c", series="c", runs=(replace(run, rows=rows[2:]),))
    assert compare(strangers, replace(baseline, ids=list("01"))) == []


def test_a_chain_that_was_cut_is_a_sample_that_was_paid_for(tmp_path: Path) -> None:
    def propose(chain: Chain, seed: int) -> Step:
        return scripted_step("#### 1", "eos") if seed % 2 else scripted_step("let me see", "length")

    search = engine(
        BestOfN(n=20), ScriptedPolicy(propose), task=MathTask(), trace=tmp_path / TRACES
    )
    solution = search.solve(Problem(text="q", id="0", answer="1"))
    own = replace(method("best_of_n", [1], 1).first, path=tmp_path)
    baseline = Samples(Method(label="a", series="a", runs=(own,)), MathTask()).baseline()
    assert baseline.num_samples == [20]
    rows = [row for row in samples_table(baseline) if row["readout"] == "majority"]
    assert len(rows) == 20
    assert rows[0]["accuracy"] == len(solution.candidates) / 20 < rows[-1]["accuracy"] == 1


def test_difficulty_needs_groups_of_several_problems() -> None:
    given = method("a", [1, 0, 1, 1], 1)
    metas = [{"steps": i % 2, "solution": f"so {i}", "set": "x"} for i in range(4)]
    rows = [row | {"meta": json.dumps(m)} for row, m in zip(given.first.rows, metas, strict=True)]
    found = difficulty_table([replace(given, runs=(replace(given.first, rows=rows),))])
    assert [(row["by"], row["value"], row["problems"]) for row in found] == [
        ("steps", "0", 2),
        ("steps", "1", 2),
    ]


def test_coverage_is_a_share_of_all_problems() -> None:
    def method(label: str, *rows: tuple[str, str, str]) -> Method:
        told = [{"answer": a, "score": score, "right": right} for a, score, right in rows]
        run = RunData(path=Path(), settings={}, problems="", rows=told)
        return Method(label=label, series=label, runs=(run,))

    some = method("some", ("8", "0.9", "1"), ("", "", "0"), ("", "", "0"), ("9", "", ""))
    none = method("none", ("", "", "0"))
    first, last = coverage_table([some, none])
    assert first == {"method": "some", "coverage": pytest.approx(1 / 3), "accuracy": 1.0}
    assert (last["coverage"], np.isnan(last["accuracy"])) == (0.0, True)
