"""Trees as plain data: columns become JSON lists, or base64 of their bytes when they are long.

A long column of whole numbers is stored in the narrowest type that holds it, and long trees have
their texts in one string: a trace costs time by the byte.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import TraceError
from stepsearch.search.soundness import require_whole
from stepsearch.search.tree import Column, ScoreColumn, Tree

_PLAIN_LENGTH = 256
_NARROWER = {"b": "b", "h": "bh", "i": "bhi", "q": "bhiq"}
_ARRAYS = (
    "parent",
    "child_index",
    "depth",
    "last_child",
    "prev_sibling",
    "offset",
    "num_tokens",
    "stop_code",
    "logprob",
    "tokens",
)


def encode_tree(tree: Tree) -> dict[str, Any]:
    """The whole tree as JSON values."""
    return {
        "question": tree.question,
        "num_whole": tree.num_whole,
        "prompt": tree.prompt,
        "columns": {name: _encode(getattr(tree, name)) for name in _ARRAYS},
        "texts": _encode_texts(tree.texts),
        "scores": {name: _encode_scores(column) for name, column in tree.scores.items()},
        "own_columns": {
            name: {"default": str(column.default), "data": _encode(column.data)}
            for name, column in tree.columns.items()
        },
    }


def decode_tree(data: Mapping[str, Any]) -> Tree:
    """The inverse of `encode_tree`.

    Raises:
        TraceError: the data is not a tree, or a damaged one.
    """
    try:
        tree = _decode_tree(data)
    except (AttributeError, KeyError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"the trace holds no readable tree: {error!r}") from error
    require_whole(tree)
    return tree


def _decode_tree(data: Mapping[str, Any]) -> Tree:
    tree = Tree(data["question"], data["prompt"])
    tree.num_whole = data["num_whole"]
    for name in _ARRAYS:
        kind = getattr(tree, name).typecode
        setattr(tree, name, _decode(data["columns"][name], kind))
    tree.texts = _decode_texts(data["texts"], len(tree.parent))
    tree.scores = {name: _decode_scores(c) for name, c in data["scores"].items()}
    for name, column in data["own_columns"].items():
        own = _decode(column["data"], "q" if column["data"]["type"] == "q" else "d")
        kind = int if own.typecode == "q" else float
        tree.columns[name] = Column(own, kind(column["default"]))
    return tree


def _encode(column: array[Any]) -> dict[str, Any]:
    code = column.typecode
    if len(column) > _PLAIN_LENGTH or (code in "fd" and any(map(math.isinf, column))):
        stored = column if code in "fd" else _narrowed(column)
        if sys.byteorder == "big":
            stored = array(stored.typecode, stored)
            stored.byteswap()
        text = base64.b64encode(stored).decode()
        return {"type": code, "stored": stored.typecode, "base64": text}
    if code in "fd":
        return {"type": code, "list": [None if math.isnan(value) else value for value in column]}
    return {"type": code, "list": column.tolist()}


def _narrowed(column: array[int]) -> array[int]:
    """The column in the narrowest signed type that holds its values."""
    values = np.frombuffer(column, column.typecode)
    low, high = int(values.min()), int(values.max())
    for code in "bhi":
        limits = np.iinfo(code)
        if limits.min <= low and high <= limits.max:
            return array(code, values.astype(code).tobytes())
    return column


def _decode(data: Mapping[str, Any], kind: str) -> array[Any]:
    """A column, which must be of a kind."""
    if data["type"] != kind:
        raise ValueError(f"a column of type {data['type']!r} where {kind!r} belongs")
    column: array[Any] = array(kind)
    if "list" in data:
        column.extend(math.nan if value is None else value for value in data["list"])
        return column
    if data["stored"] not in (kind if kind in "fd" else _NARROWER[kind]):
        raise ValueError(f"a column of type {kind!r} stored as {data['stored']!r}")
    stored: array[Any] = array(data["stored"], base64.b64decode(data["base64"]))
    if sys.byteorder == "big":
        stored.byteswap()
    column.frombytes(np.frombuffer(stored, stored.typecode).astype(kind).tobytes())
    return column


def _encode_texts(texts: list[str]) -> dict[str, Any] | list[str] | None:
    if not any(texts):
        return None
    joined = "".join(texts)
    if len(texts) <= _PLAIN_LENGTH or _has_surrogates(joined):
        return texts  # JSON would read two halves of a character that meet as one
    return {"joined": joined, "lengths": _encode(array("i", map(len, texts)))}


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _decode_texts(data: dict[str, Any] | list[str] | None, size: int) -> list[str]:
    if data is None:
        return [""] * size
    if isinstance(data, list):
        return data
    joined, lengths = data["joined"], _decode(data["lengths"], "i")
    if min(lengths) < 0 or sum(lengths) != len(joined):
        raise ValueError("the lengths of the texts do not add up")
    return [joined[a:b] for a, b in pairwise(accumulate(lengths, initial=0))]


def _encode_scores(column: ScoreColumn) -> dict[str, Any]:
    return {
        "values": _encode(column.values),
        "status": _encode(column.status),
        "failures": [[node, *failure] for node, failure in column.failures.items()],
        "notes": [[node, note] for node, note in column.notes.items()],
        "per_leaf": [[node, list(scores)] for node, scores in column.per_leaf.items()],
    }


def _decode_scores(data: Mapping[str, Any]) -> ScoreColumn:
    column = ScoreColumn(0)
    column.values, column.status = _decode(data["values"], "d"), _decode(data["status"], "b")
    column.failures = {
        node: ScoreFailure(kind, message) for node, kind, message in data["failures"]
    }
    column.notes = dict(data["notes"])
    column.per_leaf = {node: tuple(scores) for node, scores in data["per_leaf"]}
    return column
