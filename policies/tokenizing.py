"""Text as token ids, from any thread."""

from __future__ import annotations

import os
import threading
from typing import Any

# A fast tokenizer holds state that a call may change, so calls must not overlap; those of one
# tokenizer may come from a policy and verifiers on several event loops.
_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


def encode(tokenizer: Any, text: str, *, adds: bool = False, plain: bool = False) -> list[int]:
    """The ids of a text.

    Args:
        tokenizer: of transformers.
        text: as long as it likes.
        adds: whether the tokenizer puts its own special tokens before or behind the text.
        plain: whether special tokens in the text stay plain text.
    """
    options = {"split_special_tokens": True} if plain else {}
    with _LOCK:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=adds, verbose=False, **options)
    return ids


def put_before(tokenizer: Any) -> list[int] | None:
    """What a tokenizer puts before every text by itself, such as a beginning-of-sequence token.

    None where it puts something behind it, too.
    """
    plain, whole = encode(tokenizer, "a", plain=True), encode(tokenizer, "a", adds=True)
    before = whole[: len(whole) - len(plain)]
    return before if whole == [*before, *plain] else None
