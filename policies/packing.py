"""Packing token sequences that share prefixes into one row: a token trie and its masks.

Each distinct token is computed once and sees its ancestors only (tree attention, Miao et al. 2024,
SpecInfer).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenTrie:
    """Distinct tokens of several sequences, in the order they were first seen.

    Attributes:
        tokens: id of each distinct token.
        depths: how many tokens lead to it.
        parents: index of the token before it, -1 for the first.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self.parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, ids: Sequence[int]) -> int:
        """Add a sequence; returns how many of its tokens were there.

        What was new stands at the end of `tokens`, in order.
        """
        node, shared = -1, 0
        for depth, token in enumerate(ids):
            child = self._children.get((node, token))
            if child is None:
                child = len(self.tokens)
                self._children[node, token] = child
                self.tokens.append(token)
                self.depths.append(depth)
                self.parents.append(node)
            else:
                shared += 1
            node = child
        return shared

    def visible(self) -> NDArray[np.bool_]:
        """[n, n]: entry (i, j) tells whether j is i or an ancestor of i."""
        n = len(self.tokens)
        if self.parents == list(range(-1, n - 1)):
            return np.tri(n, dtype=bool)
        seen = np.eye(n, dtype=bool)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                seen[i, :i] |= seen[parent, :i]
        return seen
