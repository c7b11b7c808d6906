"""Ids of text as a verifier's model was trained to see them: alone, inside a text, or special."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepsearch.policies.tokenizing import encode, put_before
from stepsearch.search.errors import VerifierError
from stepsearch.verifiers.formats.readout import TokensFormat
from stepsearch.verifiers.formats.spec import StepFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Tokens:
    """Ids of text, special tokens in it staying plain text.

    Args:
        tokenizer: of the verifier.
        joined: text gets the ids that it has inside a longer text; a tokenizer that puts a space
            before a text would give other ones.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, joined: bool) -> None:
        self._tokenizer: Any = tokenizer
        self._joined = joined

    def __call__(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self.inside(text) if self._joined else self.alone(text)

    def alone(self, text: str) -> list[int]:
        """Ids of a text of its own."""
        return encode(self._tokenizer, text, plain=True)

    def inside(self, text: str) -> list[int]:
        """Ids of a text that stands behind another one.

        A tokenizer that puts a space before a text has a newline token that merges with nothing;
        where it does merge, there is no such space.
        """
        before = self.alone("\n")
        ids = self.alone("\n" + text)
        return ids[len(before) :] if ids[: len(before)] == before else self.alone(text)

    def mark(self, text: str) -> list[int]:
        """Ids of a step mark, which may be a special token of the tokenizer."""
        special = self._tokenizer.get_added_vocab().get(text)
        return self(text) if special is None else [special]

    def trusted(self, text: str) -> list[int]:
        """Ids of text in which special tokens count."""
        return encode(self._tokenizer, text)

    def bos(self, format: StepFormat) -> list[int]:
        """What begins a plain prompt.

        Raises:
            VerifierError: the tokenizer has none, or also adds ids at the end.
        """
        if format.bos == "automatic":
            return self.automatic()
        bos = self._tokenizer.bos_token_id
        if bos is None and format.bos == "required":
            raise VerifierError(
                f"format {format.name!r} begins with a beginning-of-sequence id, and the tokenizer"
                " has none: take the model's own tokenizer, or set format.bos=if_any"
            )
        return [] if bos is None else [bos]

    def automatic(self) -> list[int]:
        """What the tokenizer puts before a text by itself.

        Raises:
            VerifierError: it also adds ids at the end.
        """
        before = put_before(self._tokenizer)
        if before is None:
            with_special = encode(self._tokenizer, "a", adds=True)
            raise VerifierError(
                f"the tokenizer encodes 'a' as {with_special} with special tokens and"
                f" {self.alone('a')} without: it adds ids at the end, which format.bos=automatic"
                " cannot place; set format.bos to if_any"
            )
        return before


def token_ids(format: TokensFormat, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Ids of the good and the bad token.

    Raises:
        VerifierError: one of them is not one id, or not the one that the format says.
    """
    tokens = Tokens(tokenizer, joined=True)
    found = []
    for name, text in (("good_token", format.good_token), ("bad_token", format.bad_token)):
        ids = tokens.mark(text)
        if len(ids) != 1:
            raise VerifierError(
                f"format.head.{name}={text!r} is encoded as {ids}, not as one id; give the token"
                " that the model was trained to predict"
            )
        found += ids
    if format.ids is not None and tuple(found) != format.ids:
        raise VerifierError(
            f"format.head.good_token={format.good_token!r} and bad_token={format.bad_token!r} have"
            f" the ids {found}, but format.head.ids={list(format.ids)}: the labels are swapped, or"
            " the tokenizer is not the one that the format was written for"
        )
    return found[0], found[1]
