"""The tree: columns, chains, and what a node costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.steps import StepColumns
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step

steps = st.builds(
    Step,
    text=st.text(max_size=5),
    token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    stop=st.sampled_from(["step", "eos", "length"]),
    logprob=st.none() | st.floats(-50, 0, width=32),
)


@given(st.lists(st.tuples(steps, st.integers(0, 1 << 30)), max_size=30))
def test_a_tree_gives_back_what_was_put_in(entries) -> None:
    tree = Tree("q")
    parents = []
    for number, (step, pick) in enumerate(entries):
        parents.append(pick % (number + 1))
        assert tree.add(parents[-1], step) == number + 1
    for number, (step, _) in enumerate(entries, start=1):
        parent = parents[number - 1]
        assert tree.step(number).token_ids == step.token_ids
        assert tree.step(number).text == step.text
        assert tree.step(number).stop == step.stop
        assert tree.step(number).logprob == step.logprob
        assert tree.children(parent)[tree.child_index[number]] == number
        assert tree.depth[number] == tree.depth[parent] + 1 == len(tree.path(number))
        chain = tree.chain(number)
        assert chain.token_ids == [i for n in tree.path(number) for i in tree.token_ids(n)]
        assert chain.text == "".join(s.text for s in chain.steps)
        assert chain.newest.token_ids == step.token_ids
    assert sum(tree.num_children(n) for n in range(len(tree))) == len(entries)
    assert set(tree.leaves()) == {n for n in range(1, len(tree)) if not tree.children(n)}


@given(st.lists(steps, min_size=1, max_size=8))
def test_many_at_once_is_one_after_the_other(new) -> None:
    one, many = Tree("q"), Tree("q")
    for column in (one, many):
        column.score_column("prm")
        column.column("visits", int, default=3)
    for number, step in enumerate(new):
        one.add(number // 2, step)
    many.extend([number // 2 for number in range(len(new))], StepColumns.of(new))
    for name in ("parent", "depth", "child_index", "last_child", "prev_sibling", "tokens"):
        assert getattr(one, name) == getattr(many, name)
    assert many.columns["visits"].data.tolist() == [3] * len(many)
    assert len(many.scores["prm"].values) == len(many.scores["prm"].status) == len(many)


def test_a_chain_may_be_longer_than_the_tree() -> None:
    tree = Tree("q", prompt="worded q")
    node = tree.add(ROOT, Step(text="a\n", token_ids=(1, 2)))
    chain = tree.chain(node, (Step(text="b", token_ids=(3,)),))
    assert (chain.text, chain.token_ids, len(chain), chain.num_new) == ("a\nb", [1, 2, 3], 2, 1)
    assert (chain.question, chain.prompt) == ("q", "worded q")
    with pytest.raises(IndexError, match="no steps"):
        _ = tree.chain(ROOT).newest


def test_columns_grow_with_the_tree() -> None:
    tree = Tree("q")
    visits = tree.column("visits", int)
    value = tree.column("value", float, default=0.5)
    tree.add(ROOT, Step(text="a"))
    visits[1] += 7
    assert tree.column("visits", int) is visits
    assert (visits.tolist(), value.tolist()) == ([0, 7], [0.5, 0.5])


def test_an_unscored_node_has_no_number() -> None:
    tree = Tree("q")
    tree.add(ROOT, Step(text="a"))
    column = tree.score_column("prm")
    assert column[1] is None
    column.set(1, 0.25, "fine")
    assert (column[1], column.note(1)) == (0.25, "fine")


def test_memory_per_node() -> None:
    """Bytes per node without text, and per token, as the arrays hold them."""
    tree = Tree("q")
    tree.score_column("prm")
    step = Step(text="", token_ids=tuple(range(30)))
    for _ in range(100):
        tree.extend([ROOT] * 100, StepColumns.of([step] * 100))
    names = (*vars(tree), *StepColumns.__slots__)
    arrays = [a for a in (getattr(tree, n) for n in names) if hasattr(a, "itemsize")]
    fixed = sum(a.itemsize for a in arrays) - tree.tokens.itemsize + 8  # the texts' references
    scores = tree.scores["prm"].values.itemsize + tree.scores["prm"].status.itemsize
    assert fixed + scores <= 100
    assert tree.tokens.itemsize == 4
    assert len(tree.tokens) == 30 * (len(tree) - 1)
