"""Choosing tokens: against noise over the whole vocabulary, and against exact probabilities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsearch.policies.noise import gumbel, signed
from stepsearch.policies.sampling import BLOCK, Draw, sample


def expected(logits: torch.Tensor, draw: Draw, offset: int) -> tuple[int, float]:
    """The winner and its gap, block by block and token by token."""
    scaled = [float(x) / draw.temperature for x in logits]
    blocks = [range(a, min(a + BLOCK, len(scaled))) for a in range(0, len(scaled), BLOCK)]

    def noise(number: int, of_blocks: bool) -> float:
        name = (signed(draw.seed), draw.start + offset, number)
        return float(gumbel(*(torch.tensor([x]) for x in name), of_blocks=of_blocks))

    def best(scores: list[float]) -> tuple[int, float]:
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        lead = scores[order[0]] - scores[order[1]] if len(order) > 1 else math.inf
        return order[0], lead

    masses = [math.log(sum(math.exp(scaled[i]) for i in block)) for block in blocks]
    block, first = best([m + noise(b, True) for b, m in enumerate(masses)])
    inside, second = best([scaled[i] + noise(i, False) for i in blocks[block]])
    return blocks[block][inside], min(first, second) * draw.temperature


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    size=st.sampled_from([1, 2, 5, 63, 64, 65, 400]),
    spread=st.sampled_from([0.01, 1.0, 4.0]),
    temperature=st.sampled_from([0.2, 0.8, 1.0, 3.0]),
    offset=st.integers(0, 1000),
)
def test_the_winner_and_gap_are_those_of_the_definition(
    seed: int, size: int, spread: float, temperature: float, offset: int
) -> None:
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed % 2**31)) * spread
    draw = Draw(seed=seed, start=11, temperature=temperature)
    token = sample(logits, [draw], [offset])[0]
    assert token is not None
    winner, gap = expected(logits[0], draw, offset)
    assert token.gap == pytest.approx(gap, abs=1e-4)
    if gap > 1e-4:
        assert token.id == winner
    assert token.logprob == pytest.approx(float(logits[0].log_softmax(-1)[token.id]), abs=1e-4)


def test_frequencies_are_the_probabilities() -> None:
    # Five tokens in three blocks, all others out of the question.
    logits = torch.full((1, 3 * BLOCK), -math.inf)
    places = [0, 1, BLOCK, BLOCK + 7, 3 * BLOCK - 1]
    logits[0, places] = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    n = 4000
    draws = [Draw(seed=i * 2654435761, temperature=0.7) for i in range(n)]
    tokens = sample(logits.expand(n, -1), draws, [0] * n)
    counts = torch.zeros(3 * BLOCK)
    for token in tokens:
        assert token is not None
        counts[token.id] += 1
    likely = (logits[0] / 0.7).softmax(-1)[places] * n
    chi_square = float(((counts[places] - likely) ** 2 / likely).sum())
    assert counts[places].sum() == n
    assert chi_square < 18.47  # 99.9th percentile with 4 degrees of freedom; seeds are fixed


def test_a_row_does_not_depend_on_its_company() -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, 500) * 3
    draws = [Draw(seed=i, temperature=0.5 + i / 4, top_k=i % 3 * 20) for i in range(9)]
    together = sample(logits, draws, list(range(9)))
    for i in range(9):
        assert sample(logits[i : i + 1], [draws[i]], [i])[0] == together[i]


def test_temperature_zero_takes_the_best() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.5], [9.0, 1.0, 2.0]])
    first, second = sample(logits, [Draw(seed=5, temperature=0.0)] * 2, [0, 7])
    assert first is not None
    assert second is not None
    assert (first.id, second.id) == (1, 0)
    assert (first.gap, second.gap) == (0.5, 7.0)


def kept(logits: torch.Tensor, **filters: float) -> set[int]:
    """Tokens that are ever chosen at a temperature where all kept ones are likely."""
    draws = [Draw(seed=i, temperature=1.0, **filters) for i in range(600)]  # type: ignore[arg-type]
    tokens = sample(logits.expand(600, -1), draws, [0] * 600)
    return {t.id for t in tokens if t is not None}


def test_top_k_and_top_p_keep_the_smallest_sets() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.25, 0.05]])
    logits = probabilities.log()
    assert kept(logits, top_k=2) == {1, 3}
    assert kept(logits, top_p=0.39) == {1}
    assert kept(logits, top_p=0.41) == {1, 3}
    assert kept(logits, top_p=0.84) == {1, 2, 3}
    # Top-p works on what top-k left: 0.4 / 0.65 alone reaches 0.6.
    assert kept(logits, top_k=2, top_p=0.6) == {1}
    assert kept(logits, top_k=99) == {0, 1, 2, 3, 4}


def test_top_p_reaches_beyond_the_first_thousand_tokens() -> None:
    draw = Draw(seed=3, temperature=1.0, top_p=0.9)
    logits = torch.zeros(1, 5000)
    ids = {t.id for i in range(50) if (t := sample(logits, [draw], [i])[0]) is not None}
    assert len(ids) > 40


def test_the_gap_knows_how_close_truncation_was() -> None:
    logits = torch.tensor([[5.0, 1.0, 0.9999]])
    token = sample(logits, [Draw(seed=0, temperature=1.0, top_k=2)], [0])[0]
    assert token is not None
    assert token.gap == pytest.approx(1e-4, rel=0.05)


def test_rows_that_are_not_numbers_fail_alone() -> None:
    logits = torch.zeros(4, 10)
    logits[1, 3] = math.nan
    logits[2, 0] = math.inf
    logits[3, :5] = -math.inf
    tokens = sample(logits, [Draw(seed=i) for i in range(4)], [0] * 4)
    assert [t is None for t in tokens] == [False, True, True, False]
    assert tokens[3] is not None
    assert tokens[3].id >= 5
