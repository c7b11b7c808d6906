"""Seeds: blake2b(run seed, problem id, path of child indices from the root).

Never arrival order and never a node id, so that a run is the same whatever the timing, and two
strategies share their random numbers where they share a path.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from stepsearch.search.tree import Tree

SEED_BITS = 64
_pack_index = struct.Struct("<I").pack
_unpack_seed = struct.Struct("<Q").unpack


class Seeder:
    """Seeds of one problem in one run."""

    def __init__(self, run_seed: int, problem_id: str) -> None:
        self._hash = blake2b(f"{run_seed}\x00{problem_id}\x00".encode(), digest_size=SEED_BITS // 8)

    def children(self, tree: Tree, node: int, indices: Sequence[int]) -> list[int]:
        """64-bit seeds of the node's children with the given child indices."""
        parent = self._hash.copy()
        for ancestor in tree.path(node):
            parent.update(_pack_index(tree.child_index[ancestor]))
        seeds = []
        for index in indices:
            child = parent.copy()
            child.update(_pack_index(index))
            seeds.append(_unpack_seed(child.digest())[0])
        return seeds

    def generator(self) -> np.random.Generator:
        """The strategy's own random generator, for decisions such as resampling."""
        own = self._hash.copy()
        own.update(b"strategy")
        return np.random.Generator(np.random.PCG64(int.from_bytes(own.digest(), "little")))
