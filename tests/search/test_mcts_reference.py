"""Monte Carlo tree search against a naive one that keeps nothing but its history.

The reference knows a node by its path of child indices and works everything out afresh from the
list of past simulations. What a node is worth it reads from the tree of the search it checks, so
that a single other choice makes it ask for a node that is not there, or leaves one over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds import engine, fraction, hash_verifier, random_policy

from stepsearch import Budget, Chain, Step
from stepsearch.policies.scripted import ScriptedPolicy
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.tree import Tree

Path = tuple[int, ...]


@dataclass
class Reference:
    """A search by its history. `found` is the tree of the search that is checked."""

    config: Mcts
    found: Tree
    children: dict[Path, int] = field(default_factory=lambda: {(): 0})
    backed_up: list[tuple[Path, float]] = field(default_factory=list)
    flying: list[tuple[Path, int]] = field(default_factory=list)
    expansions: list[tuple[Path, int]] = field(default_factory=list)

    def node(self, path: Path) -> int:
        node = 0
        for index in path:
            node = self.found.children(node)[index]
        return node

    def verdict(self, path: Path) -> float | None:
        node = self.node(path)
        scored = self.found.scores["scripted"][node]
        return scored if self.found.stop(node) in ("step", "eos") else None

    def below(self, path: Path) -> list[Path]:
        return [(*path, index) for index in range(self.children[path])]

    def visits(self, path: Path) -> int:
        return sum(end[: len(path)] == path for end, _ in self.backed_up)

    def num_flying(self, path: Path) -> int:
        return sum(end[: len(path)] == path for end, _ in self.flying)

    def q(self, path: Path) -> float | None:
        values = [value for end, value in self.backed_up if end[: len(path)] == path]
        children = self.below(path)
        if children and self.config.backup == "max" and self.was_expanded(path):
            values = [(q, self.is_live(c)) for c in children if (q := self.q(c)) is not None]
            live = [q for q, is_live in values if is_live]
            return max(live or [q for q, _ in values], default=None)
        if not values:
            return self.verdict(path) if path else None
        mean = values[0]
        for count, value in enumerate(values[1:], start=2):
            mean += (value - mean) / count
        return mean

    def is_live(self, path: Path) -> bool:
        return self.is_open(path) or self.num_flying(path) > 0 or self.is_finished(path)

    def was_expanded(self, path: Path) -> bool:
        """Whether something landed here, or passed through."""
        return path in {p for p, _ in self.landed()} or bool(self.visits(path))

    def landed(self) -> list[tuple[Path, int]]:
        return self.expansions[: len(self.expansions) - sum(count > 0 for _, count in self.flying)]

    def allowed(self, path: Path) -> int:
        if not self.config.widening:
            return self.config.width
        grown = int(self.config.width * self.visits(path) ** self.config.widening)
        return max(self.config.width, grown)

    def is_finished(self, path: Path) -> bool:
        return path != () and self.found.stop(self.node(path)) == "eos" and bool(self.verdict(path))

    def is_ready(self, path: Path) -> bool:
        if path and (self.found.stop(self.node(path)) != "step" or self.verdict(path) is None):
            return False
        expanding = path in [end for end, count in self.flying if count]
        room = self.children[path] < self.allowed(path)
        return room and not expanding and len(path) < self.config.max_steps

    def is_open(self, path: Path) -> bool:
        return self.is_ready(path) or any(map(self.is_open, self.below(path)))

    def score(self, parent: Path, path: Path) -> float:
        config, visits, flying = self.config, self.visits(path), self.num_flying(path)
        value = self.q(path)
        if not visits and config.first_play is not None:
            value = (self.q(parent) or 0.0) - config.first_play
        assert value is not None
        if flying:
            value -= config.virtual_loss * flying / (visits + flying)
        root = math.sqrt(self.visits(parent) + self.num_flying(parent))
        prior = self.prior(parent, path)
        return value + config.exploration * root * prior / (1 + (visits + flying))

    def prior(self, parent: Path, path: Path) -> float:
        siblings = self.below(parent)
        if self.config.prior == "uniform":
            return 1.0 / len(siblings)
        means = {}
        for sibling in siblings:
            step = self.found.step(self.node(sibling))
            assert step.logprob is not None
            means[sibling] = step.logprob / step.num_tokens
        highest = max(means.values())
        weights = {sibling: math.exp(mean - highest) for sibling, mean in means.items()}
        return weights[path] / math.fsum(weights.values())

    def select(self) -> Path | None:
        path: Path = ()
        if not self.is_open(path):
            return None
        while not self.is_ready(path) and not self.is_finished(path):
            choices = [c for c in self.below(path) if self.is_open(c) or self.is_finished(c)]
            parent = path
            path = max(choices, key=lambda choice: self.score(parent, choice))
        return path

    def run(self) -> None:
        left, window = self.config.simulations, 3 * self.config.parallel - 2
        while True:
            path = self.select() if left and len(self.flying) < window else None
            if path is not None:
                left -= 1
                room = min(self.config.width, self.allowed(path) - self.children[path])
                count = 0 if self.is_finished(path) else room
                if count:
                    self.expansions.append((path, count))
                self.flying.append((path, count))
            elif self.flying:
                self.land(*self.flying[0])
            else:
                return

    def land(self, path: Path, count: int) -> None:
        if not count:
            self.flying.pop(0)
            self.backed_up.append((path, self.verdict(path) or 0.0))
            return
        first = self.children[path]
        self.children[path] = first + count
        self.flying.pop(0)
        chains = [self.continuation((*path, first + k)) for k in range(count)]
        for chain in chains:
            for node in chain:
                self.children.setdefault(node, 0)
            for node in chain[:-1]:
                self.children[node] = 1
        ends = [chain[-1] for chain in chains]
        if self.config.rollout:
            for end in ends:
                if self.is_finished(end):
                    self.backed_up.append((end, self.verdict(end) or 0.0))
            return
        values = [value for value in map(self.verdict, ends) if value is not None]
        if values:
            self.backed_up.append((path, math.fsum(values) / len(values)))

    def continuation(self, path: Path) -> list[Path]:
        found = [path]
        while self.config.rollout and not self.found.is_terminal(self.node(found[-1])):
            if len(found[-1]) >= self.config.max_steps:
                break
            found.append((*found[-1], 0))
        return found


def indices(tree: Tree, node: int) -> Path:
    return tuple(tree.child_index[step] for step in tree.path(node))


def asked(tree: Tree, *, rollout: bool) -> Iterator[Path]:
    """The parent of every continuation, in the order in which they entered."""
    end = 0
    for node in range(1, len(tree)):
        goes_on = rollout and tree.parent[node] == end and node == end + 1 and end > 0
        if not (goes_on and not tree.is_terminal(end)):
            yield indices(tree, tree.parent[node])
        end = node


def propose(chain: Chain, seed: int) -> Step:
    """Steps with log-probabilities; every chain ends by the sixth."""
    kind = fraction("kind", chain.text, seed)
    length = 1 + seed % 4
    ends = len(chain) >= 5 or kind < 0.25
    return Step(
        text=f"{seed % 1000} #### {seed % 7}" if ends else f"{seed % 1000}\n",
        token_ids=tuple(range(length)),
        stop="eos" if ends else "step",
        logprob=-length * fraction("logprob", chain.text, seed),
    )


CONFIGS = st.builds(
    Mcts,
    simulations=st.integers(1, 24),
    width=st.integers(2, 4),
    exploration=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    prior=st.sampled_from(["uniform", "policy"]),
    backup=st.sampled_from(["mean", "max"]),
    first_play=st.sampled_from([None, 0.0, 0.2]),
    widening=st.sampled_from([0.0, 0.5]),
    virtual_loss=st.sampled_from([0.0, 0.5]),
    parallel=st.sampled_from([1, 1, 2, 4]),
    max_steps=st.sampled_from([3, 40]),
)


@settings(max_examples=60, deadline=None)
@given(config=CONFIGS, seed=st.integers(0, 10**6))
def test_equals_the_naive_search(config: Mcts, seed: int) -> None:
    check(config, ScriptedPolicy(propose), seed)


@settings(max_examples=30, deadline=None)
@given(
    config=st.builds(
        Mcts,
        simulations=st.integers(1, 12),
        width=st.integers(2, 3),
        backup=st.sampled_from(["mean", "max"]),
        widening=st.sampled_from([0.0, 0.5]),
        parallel=st.sampled_from([1, 3]),
        rollout=st.just(True),
    ),
    seed=st.integers(0, 10**6),
)
def test_equals_the_naive_search_with_rollouts(config: Mcts, seed: int) -> None:
    check(config, random_policy(eos=0.3), seed)


def check(config: Mcts, policy: ScriptedPolicy, seed: int) -> None:
    budget = Budget(policy_tokens=None)
    tree = engine(config, policy, hash_verifier(), seed=seed, budget=budget).solve("q").tree
    reference = Reference(config, tree)
    reference.run()
    parents = [path for path, count in reference.expansions for _ in range(count)]
    assert list(asked(tree, rollout=config.rollout)) == parents
    paths = [indices(tree, node) for node in range(len(tree))]
    visits = tree.column("visits", int)
    assert [visits[node] for node in range(len(tree))] == list(map(reference.visits, paths))
    value = tree.column("value", float)
    for node, path in enumerate(paths):
        expected = reference.q(path)
        assert value[node] == pytest.approx(math.nan if expected is None else expected, nan_ok=True)
    assert not any(tree.column("in_flight", int)), "nothing is left in flight"
    opened = tree.column("open", int)
    assert bool(opened[0]) == reference.is_open(())
