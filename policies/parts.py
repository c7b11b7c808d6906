"""Seeds of the parts of a continuation that takes several requests."""

from __future__ import annotations

import hashlib


def later_seed(seed: int, num_tokens: int) -> int:
    """The seed of a continuation's part that begins behind so many tokens.

    Neighbouring seeds share samples on servers that count up from one, so it is a hash.
    """
    if num_tokens == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{num_tokens}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
