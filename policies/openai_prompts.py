"""Prompts as text, so that a server which tokenises them reads the ids of the prompt's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsearch.policies.starts import Starts
from stepsearch.policies.tokenizing import encode, put_before
from stepsearch.search.errors import ConfigurationError, PolicyError

_BY_TEXT = (
    "a special token of the tokenizer: prompts=text cannot tell a server that it is only text; set"
    " prompts=ids, or word it otherwise"
)


class TextPrompts:
    """Prompts as text, without what a server's tokenizer puts before every text by itself.

    Args:
        starts: prompts as ids.
        options: what stands in every request.

    Raises:
        ConfigurationError: an example of the form holds a special token.
    """

    def __init__(self, starts: Starts, options: Mapping[str, Any]) -> None:
        self._starts = starts
        added = starts.tokenizer.added_tokens_decoder.values()
        self._special = [token.content for token in added if token.special]
        for token in (self._held(part) for pair in starts.format.examples for part in pair):
            if token is not None:
                raise ConfigurationError(f"prompt_format.examples hold {token!r}, {_BY_TEXT}")
        self._adds = bool(options.get("add_special_tokens", True))  # which vLLM obeys
        self._put_before = tuple(put_before(starts.tokenizer) or ()) if self._adds else ()

    def check(self, question: str) -> None:
        """Raise `PolicyError` when the question would be read as more than its text."""
        if (token := self._held(question)) is not None:
            raise PolicyError(f"the question holds {token!r}, {_BY_TEXT}")

    def _held(self, text: str) -> str | None:
        return next((token for token in self._special if token in text), None)

    def text(self, question: str) -> str:
        """The prompt of a question."""
        ids = self._starts.prompt(question)
        added = len(self._put_before)
        return self._starts.decode(ids[added:] if ids[:added] == self._put_before else ids)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, counted as a server does that tokenises it whole."""
        return len(encode(self._starts.tokenizer, text, adds=self._adds))
