"""Seeds depend on the run, the problem and the path, and on nothing else."""

from stepsearch.search.seeding import Seeder
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step


def grown(order: list[int]) -> tuple[Tree, list[int]]:
    """Two children of the root, and one more below the child that `order` names first."""
    tree = Tree("q")
    nodes = [tree.add(ROOT, Step(text="a")), tree.add(ROOT, Step(text="b"))]
    below = {parent: tree.add(nodes[parent], Step(text="c")) for parent in order}
    return tree, [below[0], below[1]]


def test_node_ids_do_not_matter() -> None:
    (one, nodes), (other, others) = grown([0, 1]), grown([1, 0])
    assert nodes != others
    seeder = Seeder(0, "p")
    for a, b in zip(nodes, others, strict=True):
        assert seeder.children(one, a, 0, 3) == seeder.children(other, b, 0, 3)


def test_asking_in_parts_gives_the_same() -> None:
    tree = Tree("q")
    seeder = Seeder(0, "p")
    together = seeder.children(tree, ROOT, 0, 40)
    parts = [s for first in range(0, 40, 5) for s in seeder.children(tree, ROOT, first, 5)]
    assert together == parts


def test_everything_else_makes_them_different() -> None:
    tree, (left, right) = grown([0, 1])
    seeds: list[int] = []
    for run in (0, 1):
        for problem in ("p", "q"):
            for node in (ROOT, 1, 2, left, right):
                seeds += Seeder(run, problem).children(tree, node, 0, 20)
    assert len(set(seeds)) == len(seeds) == 400
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_neighbouring_runs_share_no_samples() -> None:
    tree = Tree("q")
    near = [set(Seeder(run, "p").children(tree, ROOT, 0, 64)) for run in range(8)]
    assert len(set.union(*near)) == 8 * 64


def test_the_strategys_generator_is_its_own() -> None:
    a, b = Seeder(0, "p").generator(), Seeder(0, "p").generator()
    assert a.random() == b.random()
    assert Seeder(1, "p").generator().random() != Seeder(0, "p").generator().random()
