"""Philox against the published vectors, and the Gumbel noise made of it."""

import math

import pytest
import torch

from stepsearch.policies.noise import gumbel, philox, signed

# Known-answer vectors of Random123 (kat_vectors): counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[torch.Tensor]:
    return [torch.tensor(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_vectors(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    result = philox((c0, c1, c2, c3), (k0, k1))
    assert [f"{int(w):08x}" for w in result] == expected.split()


def test_noise_depends_on_its_name_only() -> None:
    tokens = torch.arange(1000)
    whole = gumbel(torch.full((1000,), 7), torch.full((1000,), 3), tokens)
    part = gumbel(torch.full((2,), 7), torch.full((2,), 3), torch.tensor([641, 5]))
    assert part.tolist() == [whole[641].item(), whole[5].item()]
    for seed, position in ((8, 3), (7, 4), (7 + (1 << 32), 3)):
        other = gumbel(torch.full((1000,), seed), torch.full((1000,), position), tokens)
        assert int((other == whole).sum()) == 0


def test_noise_is_gumbel() -> None:
    n = 200_000
    noise = gumbel(
        torch.full((n,), signed(2**64 - 3)), torch.zeros(n, dtype=torch.long), torch.arange(n)
    )
    assert abs(float(noise.mean()) - 0.57722) < 0.012
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03
    for quantile in (0.01, 0.5, 0.99):
        place = -math.log(-math.log(quantile))
        assert abs(float((noise < place).double().mean()) - quantile) < 0.005


def test_blocks_have_noise_of_their_own() -> None:
    names = (torch.full((1000,), 7), torch.full((1000,), 3), torch.arange(1000))
    assert int((gumbel(*names) == gumbel(*names, of_blocks=True)).sum()) == 0


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, -1])
def test_seeds_keep_their_64_bits(seed: int) -> None:
    assert signed(seed) % 2**64 == seed % 2**64
    torch.tensor([signed(seed)], dtype=torch.int64)
