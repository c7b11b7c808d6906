"""A damaged trace is a `TraceError`, whatever is wrong with it; odd solutions are written."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds import engine, hash_verifier, random_policy

from stepsearch import Budget, Engine, Problem, StepsearchError, TraceError
from stepsearch.search.columns import decode_tree, encode_tree
from stepsearch.search.provenance import describe
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.task import ExactTask
from stepsearch.search.trace import decode, encode, read

Path = tuple[str | int, ...]
UNLIMITED = Budget(policy_tokens=None)
ODD = [None, "x", "", -1, 0, 3, 10**30, 0.5, math.nan, math.inf, True, [], [[]], {}, {"type": "q"}]


@cache
def made() -> tuple[Engine, str]:
    strategy = Mcts(simulations=12, rollout=True)
    search = engine(strategy, random_policy(), hash_verifier(tokens_per_step=2), seed=3)
    solution = search.solve(Problem(text="q", answer="1", meta={"level": 3}))
    return search, encode(solution, describe(search.settings))


def paths(node: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value; of long lists only some."""
    yield path
    if isinstance(node, dict):
        for name, child in node.items():
            yield from paths(child, (*path, name))
    elif isinstance(node, list):
        for index in {0, 1, len(node) // 2, len(node) - 1} & set(range(len(node))):
            yield from paths(node[index], (*path, index))


def changed(path: Sequence[str | int], value: Any) -> Any:
    """The trace with another value in a place; Ellipsis takes it out."""
    data = json.loads(made()[1])
    if not path:
        return None if value is ... else value
    node = data
    for step in path[:-1]:
        node = node[step]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return data


def use(data: Any) -> None:
    """Everything that reads a trace."""
    trace = decode(json.dumps(data))
    tree = trace.tree
    for node in range(len(tree)):
        tree.path(node)
        assert all(tree.parent[child] == node for child in tree.children(node))
        assert tree.step(node).text == tree.texts[node]
    for by in ("best", "weighted", "majority"):
        with contextlib.suppress(StepsearchError):
            trace.select(by, task=ExactTask())
    made()[0].resume(trace)


ALL = list(paths(json.loads(made()[1])))


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(ALL), value=st.sampled_from([..., *ODD]))
def test_any_damage_is_a_typed_error_or_does_no_harm(path: Path, value: Any) -> None:
    with contextlib.suppress(StepsearchError):
        use(changed(path, value))


@pytest.mark.slow
@pytest.mark.parametrize("value", [..., *ODD], ids=repr)
def test_any_damage_everywhere(value: Any) -> None:
    for path in ALL:
        with contextlib.suppress(StepsearchError):
            use(changed(path, value))


TREE = ("tree", "columns")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("problem",), ..., "problem is missing"),
        (("score",), math.nan, "score is nan"),
        (("stop",), "tired", "stop is 'tired'"),
        (("node",), 10**6, "node is 1000000"),
        (("usage", "seconds"), "3", "seconds is '3'"),
        (("usage", "policy_tokens"), None, "policy_tokens is None"),
        (("usage", "flops"), -1, "flops is -1"),
        (("provenance",), [], "provenance is []"),
        (("tree",), ..., "tree is missing"),
        (("tree", "num_whole"), 10**6, "num_whole is 1000000"),
        ((*TREE, "parent", "list", 2), 5, "parent does not stand before"),
        ((*TREE, "parent", "list", 0), 3, "not the root"),
        ((*TREE, "depth", "list", 1), 7, "depth of a node"),
        ((*TREE, "prev_sibling", "list", 1), 9, "out of order"),
        ((*TREE, "child_index", "list", 1), 9, "do not fit"),
        ((*TREE, "last_child", "list", 0), -1, "no last child"),
        ((*TREE, "last_child", "list", 0), 1, "not its last"),
        ((*TREE, "stop_code", "list", 1), 6, "unknown stop"),
        ((*TREE, "num_tokens", "list", 1), -4, "less than no tokens"),
        ((*TREE, "offset", "list", 1), 10**6, "overlap"),
        ((*TREE, "tokens", "type"), "d", "where 'i' belongs"),
        (("tree", "texts", 1), 5, "text of a step"),
        (("tree", "scores", "scripted", "status", "list", 1), 7, "unknown status"),
        (("tree", "scores", "scripted", "status", "list", 1), 2, "failure without a reason"),
        (("tree", "scores", "scripted", "values", "list", 1), None, "not a number"),
        (("tree", "scores", "scripted", "values", "list"), [], "different lengths"),
        (("tree", "scores", "scripted", "notes"), [[-1, "x"]], "note on node -1"),
        (("tree", "scores", "scripted", "per_leaf"), [[1, ["x"]]], "chain to node 1"),
    ],
)
def test_damage_is_named(path: Path, value: Any, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        decode(json.dumps(changed(path, value)))
    assert words in str(caught.value)


def test_a_cycle_does_not_hang() -> None:
    data = json.loads(made()[1])["tree"]
    data["columns"]["parent"]["list"][1:3] = [2, 1]
    with pytest.raises(TraceError, match="parent does not stand before"):
        decode_tree(data)


def test_what_is_long_is_checked_too() -> None:
    search = engine(BestOfN(n=300), random_policy(), hash_verifier(), budget=UNLIMITED)
    data = encode_tree(search.solve("q").tree)
    assert "base64" in data["columns"]["parent"]
    decode_tree(data)
    for stored in ("d", "q", "Z"):
        damaged = json.loads(json.dumps(data))
        damaged["columns"]["parent"]["stored"] = stored
        with pytest.raises(TraceError):
            decode_tree(damaged)
    damaged = json.loads(json.dumps(data))
    damaged["texts"]["joined"] += "x"
    with pytest.raises(TraceError, match="add up"):
        decode_tree(damaged)


def test_json_nested_too_deeply(tmp_path: Any) -> None:
    deep = "[" * 100_000
    with pytest.raises(TraceError):
        decode(deep)
    (tmp_path / "deep.jsonl").write_text(deep + "]" * 100_000 + "\n")
    with pytest.raises(TraceError, match="nested too deeply"):
        list(read(tmp_path / "deep.jsonl"))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("strategy",), ..., "does not say with what strategy"),
        (("strategy",), [], "does not say with what strategy"),
        (("budget",), 7, "does not say with what budget"),
        (("budget", "policy_tokens"), "2048", "policy_tokens='2048', which is no number"),
        (("strategy", "simulations"), "many", "simulations='many', which is no number"),
        (("aggregation",), 3, "aggregation differs"),
        (("seed",), ..., "seed differs"),
    ],
)
def test_resuming_from_odd_provenance(path: Path, value: Any, words: str) -> None:
    with pytest.raises(StepsearchError) as caught:
        made()[0].resume(decode(json.dumps(changed(("provenance", *path), value))))
    assert words in str(caught.value)


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_odd_meta_is_written_as_text(tmp_path: Any) -> None:
    circle: list[Any] = []
    circle.append(circle)
    meta = {
        "none": None,
        "nan": math.nan,
        ("a", 1): b"bytes",
        "set": {3},
        "decimal": Decimal("0.5"),
        "numbers": [np.int64(3), np.float32(0.5), True, 10**20],
        "huge": 10**5000,
        "silent": Silent(),
        "circle": circle,
    }
    trace = tmp_path / "trace.jsonl"
    search = engine(Mcts(simulations=4), random_policy(), hash_verifier(), trace=trace)
    solution = search.solve(Problem(text="q", meta=meta))
    [found] = read(trace)
    assert found.answer == solution.answer
    told = dict(found.problem.meta)
    assert told.pop("huge") == hex(10**5000)
    assert "..." in str(told.pop("circle"))
    assert told == {
        "none": None,
        "nan": "nan",
        "('a', 1)": "b'bytes'",
        "set": "{3}",
        "decimal": "0.5",
        "numbers": [3, 0.5, True, 10**20],
        "silent": "<Silent>",
    }


def test_counts_of_other_libraries_are_written_as_numbers() -> None:
    search, _ = made()
    solution = search.solve("q")
    usage = replace(
        solution.usage, prompt_tokens=np.int64(7), flops=np.float32(1.5), verifier_tokens=None
    )
    found = decode(encode(replace(solution, usage=usage), describe(search.settings)))
    assert found.usage == replace(usage, prompt_tokens=7, flops=1.5)
    assert type(found.usage.prompt_tokens) is int


def test_a_search_without_limits_can_be_written(tmp_path: Any) -> None:
    trace = tmp_path / "trace.jsonl"
    search = engine(BestOfN(n=2), random_policy(), budget=UNLIMITED, trace=trace)
    search.solve("q")
    [found] = read(trace)
    assert found.provenance["budget"]["policy_tokens"] is None
