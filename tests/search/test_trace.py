"""Traces: written, read, read out again, and what a crash leaves behind."""

import json
import logging
from array import array

import pytest
from support.worlds import engine, fingerprint, hash_verifier, outline, random_policy

from stepsearch import Problem, TraceError
from stepsearch.search.columns import decode_tree, encode_tree
from stepsearch.search.select import SELECTIONS
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.task import ExactTask
from stepsearch.search.trace import read
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step

TASK = ExactTask()


@pytest.fixture
def traced(tmp_path):
    path = tmp_path / "runs" / "trace.jsonl"
    search = engine(Beam(n=8, width=2), random_policy(), hash_verifier(), trace=path, seed=3)
    problems = [Problem(text=f"question {i}", id=str(i), answer="1") for i in range(4)]
    return path, {s.problem.id: s for s in search.solve_many(problems)}


def test_a_trace_holds_the_whole_search(traced) -> None:
    path, solutions = traced
    traces = list(read(path))
    assert {t.problem.id for t in traces} == {"0", "1", "2", "3"}
    for trace in traces:
        solution = solutions[trace.problem.id]
        assert outline(trace.tree) == outline(solution.tree)
        assert trace.tree.tokens == solution.tree.tokens
        assert (trace.answer, trace.score, trace.stop, trace.node, trace.usage) == (
            solution.answer,
            solution.score,
            solution.stop,
            solution.node,
            solution.usage,
        )
        assert trace.problem.answer == "1"


def test_it_says_what_made_it(traced) -> None:
    path, _ = traced
    made = next(read(path)).provenance
    assert made["seed"] == 3
    assert made["strategy"]["class"].endswith("Beam")
    assert made["strategy"]["n"] == 8
    assert made["verifier"]["name"] == "scripted"
    assert made["budget"]["policy_tokens"] == 2048
    assert made["sampling"]["temperature"] == 0.8


def test_another_selection_from_the_same_trace(traced) -> None:
    path, solutions = traced
    for trace in read(path):
        solution = solutions[trace.problem.id]
        again = trace.select("weighted", task=TASK)
        assert (again.candidate.node, again.score) == (solution.node, solution.score)
        for by in SELECTIONS:
            fresh = engine(
                Beam(n=8, width=2), random_policy(), hash_verifier(), select=by, seed=3
            ).solve(trace.problem)
            assert trace.select(by, task=TASK).candidate.node == fresh.node
    with pytest.raises(TraceError, match="no scores of verifier 'other'"):
        trace.select("best", task=TASK, verifier="other")


def test_another_aggregation_from_the_same_trace(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    engine(BestOfN(n=8), random_policy(), hash_verifier(), trace=path, select="best").solve("q")
    [trace] = read(path)
    lowest = engine(
        BestOfN(n=8), random_policy(), hash_verifier(), select="best", aggregation="min"
    ).solve("q")
    choice = trace.select("best", task=TASK, aggregation="min")
    assert (choice.candidate.node, choice.score) == (lowest.node, lowest.score)


def test_a_last_line_cut_short_is_tolerated(traced, caplog) -> None:
    path, _ = traced
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with caplog.at_level(logging.WARNING):
        assert len(list(read(path))) == 3
    assert "line 4 is cut short" in caplog.text
    search = engine(Beam(n=8, width=2), random_policy(), hash_verifier(), trace=path)
    search.solve("one more")
    assert len(list(read(path))) == 4, "the next line is not glued to the broken one"


@pytest.mark.parametrize("line", ['{"version": 99}', "[1]", "{}"])
def test_something_else_is_refused(tmp_path, line) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match="version"):
        list(read(path))
    with pytest.raises(TraceError, match="cannot read"):
        list(read(tmp_path / "missing.jsonl"))


def test_long_columns_survive_too() -> None:
    tree = Tree("q")
    column = tree.score_column("prm")
    visits = tree.column("visits", int, default=-1)
    for number in range(600):
        node = tree.add(number // 3, Step(text="", token_ids=(number, 2), logprob=None))
        visits[node] = number
        if number % 2:
            column.set(node, number / 600)
    data = json.loads(json.dumps(encode_tree(tree), allow_nan=False))
    again = decode_tree(data)
    assert again.parent == tree.parent
    assert again.tokens == tree.tokens
    assert [again.scores["prm"][n] for n in range(601)] == [column[n] for n in range(601)]
    assert again.columns["visits"].data == array("q", visits)
    assert again.add(600, Step(text="x")) == 601, "a loaded tree can grow"
    assert again.columns["visits"].data[601] == -1


def test_a_damaged_tree_is_noticed() -> None:
    data = encode_tree(Tree("q"))
    data["columns"]["depth"]["list"].append(7)
    with pytest.raises(TraceError, match="different lengths"):
        decode_tree(data)
    del data["columns"]["depth"]
    with pytest.raises(TraceError, match="readable"):
        decode_tree(data)


def test_ids_with_odd_characters(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    search = engine(Beam(n=4, width=2), random_policy(), hash_verifier(), trace=path)
    problem = Problem(text='say "hi"\n\u2028, \\n = {x}', id="\u00e4/\x00 7")
    solution = search.solve(problem)
    [trace] = read(path)
    assert trace.problem == problem
    assert fingerprint(solution)[0] == problem.id


def test_halves_of_a_character_that_meet_stay_apart() -> None:
    tree = Tree("q")
    texts = ["\ud83d", "\ude00"] * 200
    for text in texts:
        tree.add(ROOT, Step(text=text))
    back = decode_tree(json.loads(json.dumps(encode_tree(tree))))
    assert back.texts[1:] == texts
