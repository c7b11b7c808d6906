"""Scaled dot-product attention with grouped queries that never copies keys and values.

Grouped-query attention (Ainslie et al. 2023) lets several query heads share one key head. They are
laid side by side as more queries of that head, which is the same sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "stepsearch_grouped"

_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers asks for it.

    Args:
        module: the attention layer, unused.
        query: [rows, query heads, tokens, size].
        key: [rows, key heads, columns, size].
        value: [rows, key heads, columns, value size].
        attention_mask: [rows, 1, groups x tokens, columns], added to the products; see `additive`.
        dropout: unused, models are in evaluation mode.
        scaling: factor of the products.
        kwargs: what the model passes beside.

    Raises:
        NotImplementedError: the model wants something that is not plain attention.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention with {name} is not plain full attention")
    rows, heads, tokens, size = query.shape
    key_heads = key.shape[1]
    queries = query.reshape(rows, key_heads, heads // key_heads * tokens, size)
    out = torch.nn.functional.scaled_dot_product_attention(
        queries, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.reshape(rows, heads, tokens, -1).transpose(1, 2).contiguous(), None


def additive(allowed: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The mask of `grouped_attention`, built once for all layers.

    Args:
        allowed: [rows, tokens, columns] bool, what each token may look at; at least one each.
        groups: query heads per key head.
        dtype: of the queries.
    """
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    mask.masked_fill_(~allowed, float("-inf"))
    return mask.repeat(1, groups, 1)[:, None] if allowed.shape[1] > 1 else mask[:, None]


AttentionInterface.register(NAME, grouped_attention)
