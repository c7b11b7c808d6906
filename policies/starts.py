"""What a continuation begins with: ids of prompt and chain, and what cutting must know of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from stepsearch.policies.prompt import FILE_NAME, PromptEncoder, PromptFormat
from stepsearch.policies.shipped import VERIFIER_FILE
from stepsearch.policies.text import ChainReader
from stepsearch.policies.tokenizing import encode
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.search.tree import Chain

_MAX_PROMPTS = 4096


class Start(NamedTuple):
    """What continuations of one chain begin with.

    Attributes:
        ids: prompt and sampled tokens.
        num_sampled: how many of them were sampled.
        reader: has read what was sampled.
    """

    ids: tuple[int, ...]
    num_sampled: int
    reader: ChainReader


class Starts:
    """Prompts and chains as ids; a prompt is rendered and encoded once.

    Args:
        tokenizer: of the policy.
        prompt_format: the form of its prompts.

    Raises:
        ConfigurationError: the form does not fit the tokenizer's template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat) -> None:
        self.tokenizer = tokenizer
        self.format = prompt_format
        self._encoder = PromptEncoder(tokenizer, prompt_format)
        self._prompts: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    @property
    def template_hash(self) -> str:
        """Hash of the chat template in use."""
        return self._encoder.template_hash

    def start(self, chain: Chain, params: SamplingParams) -> Start:
        """What continuations of the chain begin with.

        Raises:
            PolicyError: the chain's ids are unknown, or it cannot be continued.
        """
        history = self.history(chain)
        reader = ChainReader(self.decode, params.max_repeats).read(history, chain.texts)
        return Start(self.prompt(chain.prompt) + history, len(history), reader)

    def history(self, chain: Chain) -> tuple[int, ...]:
        """The ids of a chain's steps.

        Raises:
            PolicyError: they are unknown, or the chain cannot be continued.
        """
        steps = chain.steps
        if steps and steps[-1].stop != "step":
            raise PolicyError(f"a chain that ended by {steps[-1].stop!r} cannot be continued")
        if any(not step.token_ids for step in steps):
            raise PolicyError(
                "the chain has steps whose token ids are unknown; only chains that this policy"
                " sampled can be continued"
            )
        return tuple(i for step in steps for i in step.token_ids)

    def prompt(self, question: str) -> tuple[int, ...]:
        """The ids of a prompt."""
        if question not in self._prompts:
            if len(self._prompts) >= _MAX_PROMPTS:
                self._prompts.popitem(last=False)
            self._prompts[question] = tuple(self._encoder.encode(question))
        return self._prompts[question]

    def encode(self, text: str) -> list[int]:
        """The ids of a text by itself, special tokens in it staying plain text.

        Raises:
            ValueError: there are none.
        """
        ids = encode(self.tokenizer, text, plain=True)
        if not ids:
            raise ValueError("a text to be weighed is empty")
        return ids

    def end_ids(self, configured: Collection[int]) -> frozenset[int]:
        """Tokens that the tokenizer or the model's settings call an end.

        Args:
            configured: those of the settings.
        """
        own = self.tokenizer.eos_token_id
        return frozenset(configured) | ({own} if isinstance(own, int) else set())

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, special tokens kept."""
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text


def choose_format(
    given: PromptFormat | Mapping[str, Any] | None, adapter: Path | None
) -> PromptFormat:
    """The form that was given, or the adapter's own, or the template's defaults.

    Raises:
        ConfigurationError: the form does not fit, or the adapter is a verifier's.
    """
    if adapter is not None and (adapter / VERIFIER_FILE).is_file():
        raise ConfigurationError(
            f"policy.adapter={adapter} is a verifier's (it holds {VERIFIER_FILE}); give it as"
            " verifier=trained verifier.model=..., and here a folder that `stepsearch train policy`"
            " wrote"
        )
    if isinstance(given, PromptFormat):
        return given
    if given is not None:
        return PromptFormat.from_mapping(given)
    if adapter is not None and (adapter / FILE_NAME).is_file():
        return PromptFormat.load(adapter / FILE_NAME)
    return PromptFormat(system="")
