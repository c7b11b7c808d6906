"""What a search asked its policy for, to be asked of a raw engine again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepsearch.policies.vllm import VllmPolicy
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Solution


class Replay(NamedTuple):
    """What a raw run is asked for: prefixes, and tokens to write behind each.

    Prefixes are tuples: lists that stay would be walked over by the collector in later rounds.
    """

    prompts: list[tuple[int, ...]]
    tokens: list[int]


def replay_of(policy: VllmPolicy, name: str, solutions: Sequence[Solution]) -> Replay:
    """What a search asked for: whole chains, or a step behind every prefix."""
    replay = Replay([], [])
    for solution in solutions:
        record = _record_chains if name == "best_of_n" else _record_steps
        record(solution.tree, tuple(policy.prompt_ids(solution.tree.prompt)), replay)
    return replay


def _record_chains(tree: Tree, prompt: tuple[int, ...], replay: Replay) -> None:
    for leaf in tree.leaves():
        replay.prompts.append(prompt)
        replay.tokens.append(len(tree.chain(leaf).token_ids))


def _record_steps(tree: Tree, prompt: tuple[int, ...], replay: Replay) -> None:
    prefixes = {ROOT: prompt}
    for node in range(1, len(tree.num_tokens)):
        if tree.num_tokens[node]:
            parent = tree.parent[node]
            if parent not in prefixes:
                prefixes[parent] = prompt + tuple(tree.chain(parent).token_ids)
            replay.prompts.append(prefixes[parent])
            replay.tokens.append(tree.num_tokens[node])


def longest_path(solutions: Sequence[Solution]) -> int:
    """Tokens that had to be written one after the other, waits for siblings included."""
    return max((_path(solution.tree) for solution in solutions), default=0)


def _path(tree: Tree) -> int:
    slowest: dict[int, int] = {}
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        slowest[parent] = max(slowest.get(parent, 0), tree.num_tokens[node])
    ends = {ROOT: 0}
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        ends[node] = ends[parent] + slowest[parent]
    return max(ends.values())
