"""Choosing tokens: temperature, top-k, top-p, and the Gumbel-max trick over keyed noise.

argmax of logits / T + Gumbel noise is a sample of softmax(logits / T) (Maddison et al. 2014). It is
taken twice: over blocks of the vocabulary, whose logit is the log of their summed mass, and inside
the winning block. That is the same distribution, and needs a fiftieth of the noise. The noise is
keyed by seed, place and token, so a choice does not depend on what else is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stepsearch.policies.noise import gumbel, signed

BLOCK = 64
"""Tokens of one block; part of what a seed means."""

_MANY = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How to sample a continuation.

    Attributes:
        seed: names the noise; its 64 low bits count.
        start: tokens of the chain before the continuation, the prompt excluded.
        temperature: 0 means greedy.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep this many tokens; 0 keeps all.
    """

    seed: int
    start: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class Token(NamedTuple):
    """A sampled token.

    Attributes:
        id: the token.
        logprob: its log-probability at temperature 1 before truncation, in nats.
        gap: how far ahead the choice was, in logits: two runs whose logits differ by less than half
            of it choose the same. With top-k or top-p, also how far truncation was from keeping one
            token more or less.
    """

    id: int
    logprob: float
    gap: float


def sample(logits: Tensor, draws: Sequence[Draw], offsets: Sequence[int]) -> list[Token | None]:
    """Choose one token per row.

    Args:
        logits: [rows, vocabulary] float32.
        draws: how, per row.
        offsets: tokens sampled before this one in the same continuation, per row.

    Returns:
        One token per row; None where the logits are not numbers.
    """
    log_norm = logits.logsumexp(-1)
    fine = torch.isfinite(log_norm).tolist()
    rows = [i for i in range(len(draws)) if fine[i]]
    noisy = [i for i in rows if draws[i].temperature > 0]
    greedy = [i for i in rows if draws[i].temperature == 0]
    winners = _sample_rows(logits, noisy, draws, offsets) | _best_rows(logits, greedy)
    ids = torch.tensor([winners[i][0] for i in rows], device=logits.device, dtype=torch.long)
    logprobs = (logits[rows, ids] - log_norm[rows]).tolist() if rows else []
    found = {i: Token(winners[i][0], p, winners[i][1]) for i, p in zip(rows, logprobs, strict=True)}
    return [found.get(i) for i in range(len(draws))]


def _best_rows(logits: Tensor, rows: list[int]) -> dict[int, tuple[int, float]]:
    """Most likely token and its lead, per row."""
    if not rows:
        return {}
    ids, leads = _lead(logits[rows])
    return dict(zip(rows, zip(ids.tolist(), leads.tolist(), strict=True), strict=True))


def _lead(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the best entry of each row, and how far it is ahead of the next."""
    top = scores.topk(min(2, scores.shape[-1]))
    lead = top.values[:, 0] - top.values[:, -1]
    return top.indices[:, 0], lead if scores.shape[-1] > 1 else torch.full_like(lead, math.inf)


def _sample_rows(
    logits: Tensor, rows: list[int], draws: Sequence[Draw], offsets: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """Token and gap of every row of positive temperature."""
    if not rows:
        return {}
    device = logits.device
    temperatures = torch.tensor([draws[i].temperature for i in rows], device=device)
    scaled = logits[rows] / temperatures[:, None]
    margins = [math.inf] * len(rows)
    for k, i in enumerate(rows):
        if draws[i].top_k or draws[i].top_p < 1:
            scaled[k], margins[k] = _truncate(scaled[k], draws[i])
    blocks = torch.nn.functional.pad(scaled, (0, -scaled.shape[1] % BLOCK), value=-math.inf)
    blocks = blocks.view(len(rows), -1, BLOCK)
    seeds = torch.tensor([signed(draws[i].seed) for i in rows], device=device)
    places = torch.tensor([draws[i].start + offsets[i] for i in rows], device=device)
    mass = blocks.logsumexp(-1).double()
    numbers = torch.arange(mass.shape[1], device=device).expand_as(mass)
    block, first_lead = _lead(mass + _noise(seeds, places, numbers, of_blocks=True))
    tokens = block[:, None] * BLOCK + torch.arange(BLOCK, device=device)
    inside = blocks[torch.arange(len(rows), device=device), block].double()
    place, second_lead = _lead(inside + _noise(seeds, places, tokens, of_blocks=False))
    ids = (block * BLOCK + place).tolist()
    gaps = (torch.minimum(first_lead, second_lead) * temperatures).tolist()
    return {i: (ids[k], min(gaps[k], margins[k])) for k, i in enumerate(rows)}


def _noise(seeds: Tensor, places: Tensor, numbers: Tensor, *, of_blocks: bool) -> Tensor:
    """Noise for `numbers` [rows, n], keyed by each row's seed and place."""
    count = numbers.shape[1]
    return gumbel(
        seeds.repeat_interleave(count),
        places.repeat_interleave(count),
        numbers.reshape(-1),
        of_blocks=of_blocks,
    ).view(numbers.shape)


def _truncate(scaled: Tensor, draw: Draw) -> tuple[Tensor, float]:
    """Top-k, then top-p over what is left; what is not kept becomes -inf.

    Also returns the distance of truncation from another outcome.
    """
    size = len(scaled)
    keep = min(draw.top_k or size, size)
    log_norm = scaled.logsumexp(-1)
    looked_at = min(max(_MANY, keep + 1 if draw.top_k else 0), size)
    top = scaled.topk(looked_at)
    if draw.top_k == 0 and float(top.values.logsumexp(-1) - log_norm) < math.log(draw.top_p):
        top = scaled.topk(size)
    margin = math.inf
    if keep < size:
        margin = float(top.values[keep - 1] - top.values[keep]) * draw.temperature
        log_norm = top.values[:keep].logsumexp(-1)
    kept = top.values[:keep]
    if draw.top_p < 1:
        mass = (kept - log_norm).double().exp().cumsum(-1)
        count = min(int((mass < draw.top_p).sum()) + 1, len(kept))
        edges = (mass[max(count - 2, 0) : count] - draw.top_p).abs()
        margin = min(margin, float(edges.min()))
        kept = kept[:count]
    truncated = torch.full_like(scaled, -math.inf)
    truncated[top.indices[: len(kept)]] = kept
    return truncated, margin
