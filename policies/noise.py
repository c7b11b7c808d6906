"""Counter-based noise: the Gumbel variable of a token depends on nothing but what names it.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in integer
arithmetic, so that every device gives the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Philox4x32-10.

    Args:
        counter: four int64 tensors of one shape, each entry in [0, 2^32).
        key: two such tensors.

    Returns:
        [..., 4] int64, entries in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product of two 32-bit words fills 64 bits; the shift's sign bits are masked away.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor, *, of_blocks: bool = False) -> Tensor:
    """Standard Gumbel noise for tokens of the vocabulary, or for blocks of them.

    Args:
        seeds: [n] int64, all 64 bits are used.
        positions: [n] int64, place of the token in its chain, below 2^32.
        tokens: [n] int64, ids, or numbers of blocks.
        of_blocks: which of the two; they have streams of their own.

    Returns:
        [n] float64.
    """
    zero = torch.zeros_like(tokens)
    counter = (tokens >> 2, positions, zero + of_blocks, zero)
    words = philox(counter, (seeds & _MASK, (seeds >> 32) & _MASK))
    word = words.gather(-1, (tokens & 3)[:, None])[:, 0]
    uniform = (word.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def signed(seed: int) -> int:
    """The 64 low bits of a seed as a signed integer, which is what an int64 tensor holds."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >> 63 else seed
