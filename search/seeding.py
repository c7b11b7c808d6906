"""Seeds: blake2b(run seed, problem id, path of child indices from the root).

Never arrival order and never a node id, so that a run is the same whatever the timing, and two
strategies share their random numbers where they share a path.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np

from stepsearch.search.tree import ROOT, Tree

_pack = struct.Struct("<I").pack
_SEEDS_PER_DIGEST = 8
_unpack = struct.Struct(f"<{_SEEDS_PER_DIGEST}Q").unpack


class Seeder:
    """Seeds of one problem in one run."""

    def __init__(self, run_seed: int, problem_id: str) -> None:
        name = f"{run_seed}\x00{problem_id}\x00".encode(errors="surrogatepass")
        self._root = blake2b(name, digest_size=64)
        self._paths = {ROOT: self._root}

    def children(self, tree: Tree, node: int, first: int, count: int) -> list[int]:
        """64-bit seeds of the node's children with indices `first` to `first + count - 1`.

        One digest serves eight neighbouring children: child `i` takes word `i % 8` of the digest
        of the parent's path and `i // 8`.
        """
        path = self._path(tree, node)
        start = first // _SEEDS_PER_DIGEST
        stop = (first + count - 1) // _SEEDS_PER_DIGEST + 1
        seeds: list[int] = []
        for block in range(start, stop):
            child = path.copy()
            child.update(b"children" + _pack(block))
            seeds.extend(_unpack(child.digest()))
        offset = first - start * _SEEDS_PER_DIGEST
        return seeds[offset : offset + count]

    def _path(self, tree: Tree, node: int) -> blake2b:
        """The hash of a node's path, kept so that going one step deeper costs one update."""
        missing = []
        while node not in self._paths:
            missing.append(node)
            node = tree.parent[node]
        path = self._paths[node]
        for node in reversed(missing):
            path = path.copy()
            path.update(_pack(tree.child_index[node]))
            self._paths[node] = path
        return path

    def generator(self) -> np.random.Generator:
        """The strategy's own random generator, for decisions such as resampling."""
        own = self._root.copy()
        own.update(b"strategy")
        return np.random.Generator(np.random.PCG64(int.from_bytes(own.digest(), "little")))
