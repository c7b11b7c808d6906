"""Choosing tokens: temperature, top-k, top-p, and the Gumbel-max trick over keyed noise.

argmax of logits / T + Gumbel noise is a sample of softmax(logits / T) (Maddison et al. 2014). The
noise is keyed by seed, place and token, so a choice does not depend on what else is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stepsearch.policies.noise import MAX_GUMBEL, gumbel, signed

_FEW = 64
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


class _Candidates(NamedTuple):
    """Tokens of one row that may win.

    Attributes:
        ids: [m].
        scaled: [m] float64, logits divided by the temperature.
        margin: distance of truncation from another outcome.
    """

    ids: Tensor
    scaled: Tensor
    margin: float


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
    noise_rows = [i for i, d in enumerate(draws) if fine[i] and d.temperature > 0]
    winners = _sample_rows(logits, noise_rows, draws, offsets)
    greedy = [i for i, d in enumerate(draws) if fine[i] and d.temperature == 0]
    if greedy:
        top = logits[greedy].topk(min(2, logits.shape[-1]))
        gaps = (top.values[:, 0] - top.values[:, -1]).tolist()
        winners.update(zip(greedy, zip(top.indices[:, 0].tolist(), gaps, strict=True), strict=True))
    rows = sorted(winners)
    ids = torch.tensor([winners[i][0] for i in rows], device=logits.device, dtype=torch.long)
    logprobs = (logits[rows, ids] - log_norm[rows]).tolist() if rows else []
    found = {
        i: Token(winners[i][0], logprob, winners[i][1])
        for i, logprob in zip(rows, logprobs, strict=True)
    }
    return [found.get(i) for i in range(len(draws))]


def _sample_rows(
    logits: Tensor, rows: list[int], draws: Sequence[Draw], offsets: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """Token and gap of every row of positive temperature."""
    if not rows:
        return {}
    plain = [i for i in rows if draws[i].top_k == 0 and draws[i].top_p == 1.0]
    candidates = _all_that_may_win(logits, plain, draws, offsets)
    for i in rows:
        if i not in candidates:
            candidates[i] = _truncate(logits[i], draws[i])
    noisy = _add_noise([candidates[i] for i in rows], [(draws[i], offsets[i]) for i in rows])
    result = {}
    for i, scores in zip(rows, noisy, strict=True):
        top = scores.topk(min(2, len(scores)))
        best = [float(x) for x in top.values]
        gap = (best[0] - best[1]) * draws[i].temperature if len(best) > 1 else float("inf")
        token = int(candidates[i].ids[top.indices[0]])
        result[i] = (token, min(gap, candidates[i].margin))
    return result


def _add_noise(
    candidates: Sequence[_Candidates], keys: Sequence[tuple[Draw, int]]
) -> Sequence[Tensor]:
    """Noisy scores of every row's candidates, computed together."""
    sizes = [len(c.ids) for c in candidates]
    device = candidates[0].ids.device
    repeats = torch.tensor(sizes, device=device)
    seeds = torch.tensor([signed(d.seed) for d, _ in keys], device=device)
    places = torch.tensor([d.start + offset for d, offset in keys], device=device)
    noise = gumbel(
        seeds.repeat_interleave(repeats),
        places.repeat_interleave(repeats),
        torch.cat([c.ids for c in candidates]),
    )
    return torch.split(torch.cat([c.scaled for c in candidates]) + noise, sizes)


def _all_that_may_win(
    logits: Tensor, rows: list[int], draws: Sequence[Draw], offsets: Sequence[int]
) -> dict[int, _Candidates]:
    """Without truncation: every token that could still be among the best two.

    The noise is bounded, so once a few likely tokens have theirs, most others are out of reach.
    """
    if not rows:
        return {}
    chosen = logits[rows]
    temperatures = torch.tensor(
        [draws[i].temperature for i in rows], device=logits.device, dtype=torch.float64
    )
    few = chosen.topk(min(_FEW, logits.shape[-1]))
    scaled = few.values.double() / temperatures[:, None]
    noisy = _add_noise(
        [_Candidates(ids, s, 0.0) for ids, s in zip(few.indices, scaled, strict=True)],
        [(draws[i], offsets[i]) for i in rows],
    )
    second = torch.stack(list(noisy)).topk(min(2, few.values.shape[-1])).values[:, -1]
    # Rounded down in float32, so that the bound never excludes a token wrongly.
    floor = ((second - MAX_GUMBEL) * temperatures).float() - 1e-4
    row, token = (chosen >= floor[:, None]).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(rows)).tolist()
    values = torch.split(chosen[row, token].double() / temperatures[row], counts)
    return {
        i: _Candidates(ids, s, float("inf"))
        for i, ids, s in zip(rows, torch.split(token, counts), values, strict=True)
    }


def _truncate(logits: Tensor, draw: Draw) -> _Candidates:
    """Top-k, then top-p over what is left, both after the temperature."""
    size = len(logits)
    keep = min(draw.top_k or size, size)
    scaled = logits.double() / draw.temperature
    log_norm = scaled.logsumexp(-1)
    looked_at = min(max(_MANY, keep + 1 if draw.top_k else 0), size)
    top = scaled.topk(looked_at)
    if draw.top_k == 0 and float(top.values.logsumexp(-1) - log_norm) < math.log(draw.top_p):
        top = scaled.topk(size)
    margin = float("inf")
    if keep < size and draw.top_k:
        margin = float(top.values[keep - 1] - top.values[keep]) * draw.temperature
        log_norm = top.values[:keep].logsumexp(-1)
    kept = top.values[:keep]
    if draw.top_p < 1:
        mass = (kept - log_norm).exp().cumsum(-1)
        count = min(int((mass < draw.top_p).sum()) + 1, len(kept))
        edges = (mass[max(count - 2, 0) : count] - draw.top_p).abs()
        margin = min(margin, float(edges.min()))
        kept = kept[:count]
    return _Candidates(top.indices[: len(kept)], kept, margin)
