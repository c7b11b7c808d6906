"""Samples and traces as they are read, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.samples import QUICK, problem, said, write
from support.worlds import engine, hash_verifier, random_policy

from stepsearch import ConfigurationError, Problem
from stepsearch.benchmarks.readout import group_answers
from stepsearch.benchmarks.rerank import RerankSettings, rerank
from stepsearch.benchmarks.samples import as_scores, read_samples, split_steps
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.task import ExactTask, MathTask
from stepsearch.search.tree import Chain
from stepsearch.search.types import Step
from stepsearch.verifiers.ensemble import EnsembleVerifier


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


def test_steps_that_no_member_judged_are_not_aggregated(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    members = {name: hash_verifier(name=name) for name in ("first", "second")}
    ensemble = EnsembleVerifier(members, guides=["first"])
    engine(Beam(n=4, width=2), random_policy(), ensemble, trace=path).solve(
        Problem(text="q", id="q", answer="1")
    )
    settings = RerankSettings(samples=path, task="exact", verifiers=["first:min", "second"])
    assert rerank(replace(settings, **QUICK)).lines
    for wrong in ({"verifiers": ["second:min"]}, {"aggregations": ["mean"]}):
        with pytest.raises(ConfigurationError, match=r"second did not guide.*read it out without"):
            rerank(replace(settings, **wrong))


def half_cut(chain: Chain, seed: int) -> Step:
    """Ends with an answer, or writes on and is cut, with none or with one that it had."""
    if seed % 2:
        return scripted_step("so it is #### 1", "eos")
    return scripted_step("it is #### 1" if seed % 4 else "let me see", "length")


def test_chains_that_were_cut_are_samples_of_independent_sampling(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    solution = engine(BestOfN(n=40), ScriptedPolicy(half_cut), trace=path, task=MathTask()).solve(
        Problem(text="q", id="q", answer="1")
    )
    ends = [solution.tree.chain(node) for node in solution.tree.leaves()]
    plain = problem("q", 1, *[(chain.text, {}) for chain in ends])
    [expected] = read_samples(write(tmp_path / "s.jsonl", [plain]), MathTask()).problems
    [found] = read_samples(path, MathTask()).problems
    assert [sample.answer for sample in found.samples] == [s.answer for s in expected.samples]
    assert len(found.samples) == 40 > len(solution.candidates) > 20
    [voted, *_] = rerank(RerankSettings(samples=path, **QUICK)).lines
    assert voted.accuracy[0].value == len(solution.candidates) / 40


def test_a_chain_left_open_is_a_sample_without_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    search = engine(BestOfN(n=20, max_steps=2), random_policy(eos=0.5), trace=path)
    solution = search.solve(Problem(text="q", id="q", answer="1"))
    [found] = read_samples(path, ExactTask()).problems
    answers = [sample.answer for sample in found.samples]
    assert len(answers) == 20
    assert [a for a in answers if a is not None] == [c.answer for c in solution.candidates]
    assert None in answers


def test_of_a_tree_search_only_candidates_are_samples(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    solution = engine(
        Beam(n=8, width=2), ScriptedPolicy(half_cut), hash_verifier(), trace=path, task=MathTask()
    ).solve(Problem(text="q", id="q", answer="1"))
    [found] = read_samples(path, MathTask()).problems
    assert len(found.samples) == len(solution.candidates) < len(list(solution.tree.leaves()))


@pytest.mark.parametrize(
    ("strategy", "settings"), [(Beam(n=4, width=2), {}), (BestOfN(n=4), {"settle": "certain"})]
)
def test_dependent_samples_come_with_a_warning(tmp_path: Path, strategy, settings) -> None:
    path = tmp_path / "trace.jsonl"
    search = engine(strategy, random_policy(), hash_verifier(), trace=path, **settings)
    search.solve(Problem(text="q", id="q", answer="1"))
    result = rerank(RerankSettings(samples=path, task="exact", **QUICK))
    assert any("tree search" in note for note in result.notes)


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


def with_range(name: str, range_: object, fold: str = "last", **scores: object) -> dict[str, Any]:
    told = {"range": range_, "aggregation": fold}
    return problem(name, 1, said(1, **scores)) | {"verifiers": dict.fromkeys(scores, told)}


@pytest.mark.parametrize("other", [None, 3, "prm", ["prm"], {"prm": "a", "orm": {"by": "me"}}])
def test_a_field_of_the_files_own_is_no_word_on_scores(tmp_path: Path, other: object) -> None:
    lines = [problem("a", 1, said(1, prm=0.5))]
    expected = read_samples(write(tmp_path / "s.jsonl", lines), MathTask())
    lines[0]["verifiers"] = other
    assert read_samples(write(tmp_path / "s.jsonl", lines), MathTask()) == expected


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"id": "a", "problem": "?", "samples": []}], ["line 1", "'answer' is missing"]),
        ([problem("a", 1, said(1, prm="high"))], ["line 1", "a number or a list", "'high'"]),
        ([problem("a", 1, said(1)), problem("a", 2, said(1))], ["'a' occurs on two lines"]),
        ([], ["holds no samples"]),
        ([[1]], ["line 1", "not a JSON object"]),
        (
            [problem("a", 1, said(1, prm=1)) | {"verifiers": {"prm": {"range": "signed"}}}],
            ["line 1", "'aggregation' is missing"],
        ),
        ([with_range("a", 3, prm=0.5)], ["line 1", "there are scores of range 3"]),
        (
            [with_range("a", "unbounded", prm=-2.0), with_range("b", "probability", prm=0.5)],
            ["s.jsonl, line 2: the scores of 'prm' are of range 'probability'", "files of their"],
        ),
        (
            [with_range("a", "signed", prm=0.5), with_range("b", "signed", "min", prm=0.5)],
            ["s.jsonl, line 2", "'prm'", "aggregation 'min'", "earlier line", "'last'"],
        ),
        ([with_range("a", "probability", prm=3.5)], ["s.jsonl: 3.5 of 'prm' (id 'a') is outside"]),
        ([with_range("a", "signed", prm=[0.0, -2.0])], ["-2.0 of 'prm'", "range 'signed'"]),
        (
            [problem("b", 1, said(1, prm=2.0)), with_range("a", "probability", prm=1.0)],
            ["s.jsonl: 2.0 of 'prm' (id 'b')"],
        ),
        ([problem("a", 1, said(1, prm=10**400))], ["line 1", "too large"]),
        ([problem("a", 1, said(1, prm=[0.5, -(10**400)]))], ["line 1", "too large"]),
    ],
)
def test_broken_files_are_named(tmp_path: Path, lines: list, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_samples(write(tmp_path / "s.jsonl", lines), MathTask())
    for word in words:
        assert word in str(caught.value)


def test_traces_that_differ_in_what_their_scores_are_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    for name, fold in (("a", "last"), ("b", "min")):
        search = engine(BestOfN(n=2), random_policy(), hash_verifier(aggregation=fold), trace=path)
        search.solve(Problem(text="q", id=name))
    with pytest.raises(ConfigurationError, match=r"line 2: the scores of 'scripted' .*'min'"):
        read_samples(path, ExactTask())


def test_the_ends_of_a_range_belong_to_it(tmp_path: Path) -> None:
    lines = [with_range("a", "signed", prm=[-1, 1]), with_range("b", "probability", orm=[0, 1])]
    found = read_samples(write(tmp_path / "s.jsonl", lines), MathTask())
    assert {n: s.range for n, s in found.sources.items()} == {"prm": "signed", "orm": "probability"}


def test_only_a_problem_that_failed_may_have_another_trace(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    search = engine(BestOfN(n=2), random_policy(), trace=path)
    search.solve(Problem(text="q", id="q", answer="1"))
    good = json.loads(path.read_text())
    search.solve(Problem(text="q", id="q", answer="2"))
    failed = json.loads(path.read_text().splitlines()[1]) | {"stop": "verifier_failed"}
    expected = read_samples(write(path, [good]), ExactTask())
    for lines in ([failed, good], [failed, failed, good]):
        assert read_samples(write(path, lines), ExactTask()) == expected
    for lines in ([good, good], [good, failed], [failed, good, good]):
        with pytest.raises(ConfigurationError, match="'q' occurs on two lines"):
            read_samples(write(path, lines), ExactTask())


def test_problems_that_failed_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "traces.jsonl"
    problems = [Problem(text=f"q{i}", id=str(i), answer="1") for i in range(3)]
    list(engine(BestOfN(n=2), random_policy(), trace=path).solve_many(problems))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["stop"] = "policy_failed"
    found = read_samples(write(path, lines), ExactTask())
    assert sorted(p.problem.id for p in found.problems) == sorted(lines[i]["id"] for i in (0, 2))
    assert "1 problems failed and are left out" in caplog.text
    with pytest.raises(ConfigurationError, match="all problems failed"):
        read_samples(write(path, lines[1:2]), ExactTask())


def test_the_order_in_which_problems_ended_changes_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    problems = [Problem(text=f"q{i}", id=str(i), answer=str(i % 4)) for i in range(8)]
    list(engine(BestOfN(n=6), random_policy(), hash_verifier(), trace=path).solve_many(problems))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    settings = RerankSettings(
        samples=path, verifiers=["scripted"], **QUICK | {"task": "exact", "num_orders": 3}
    )
    before = [line.accuracy for line in rerank(settings).lines]
    write(path, lines[::-1])
    assert [line.accuracy for line in rerank(settings).lines] == before


def test_a_line_that_is_not_json_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(problem("a", 1, said(1))) + '\n{"id" 1}\n')
    with pytest.raises(ConfigurationError) as caught:
        read_samples(path, MathTask())
    assert str(caught.value) == f"{path}, line 2 is not JSON: Expecting ':' delimiter, column 7"


def test_lines_nested_too_deeply_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(ConfigurationError, match="line 1: nested too deeply"):
        read_samples(path, MathTask())


def test_gold_that_is_not_a_number_is_no_gold(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl", [problem(n, g, said(1)) for n, g in (("a", 1), ("b", math.nan))]
    )
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
    with pytest.raises(ConfigurationError, match="line 1: there are scores of range"):
        read_samples(write(path, [trace]), ExactTask())


def test_zero_bytes_that_a_crash_left_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "s.jsonl", [problem("a", 1, said(1))])
    path.write_bytes(b"\0" * 40 + b"\n" + path.read_bytes())
    assert [found.problem.id for found in read_samples(path, MathTask()).problems] == ["a"]
    assert "line 1 is cut short" in caplog.text
