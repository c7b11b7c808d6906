"""How a question becomes the ids a policy continues: template, system turn, examples, separator."""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from transformers import PreTrainedTokenizerBase

from stepsearch.policies.tokenizing import encode
from stepsearch.search.errors import ConfigurationError
from stepsearch.search.parameters import check_separator, known_values

FILE_NAME = "prompt_format.json"

_DATE = datetime.datetime(2024, 7, 26)
"""Templates that print the date print this one, so that prompts do not change overnight."""

Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormat:
    """The form of a prompt and of the solution that follows it.

    Attributes:
        system: text of the system turn; None for no system turn at all, even where the template
            puts one in by itself; "" for whatever the template does by itself.
        template: Jinja chat template; None for the tokenizer's own.
        separator: ends a step.
        final_prefix: a step that begins with it ends the chain; None if steps do not tell.
        assistant_prefix: stands after the generation prompt, before the solution.
        examples: solved questions (question, solution) that go before, as earlier turns.
    """

    system: str | None = None
    template: str | None = None
    separator: str = "\n"
    final_prefix: str | None = None
    assistant_prefix: str = ""
    examples: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_separator("format.separator", self.separator)
        if self.final_prefix is not None and not self.final_prefix.strip():
            raise ConfigurationError("format.final_prefix must have visible text, or be null")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> PromptFormat:
        """A format from plain data.

        Raises:
            ConfigurationError: a key is unknown or an example is no pair.
        """
        values = known_values(cls, "format", mapping)
        examples = [tuple(pair) for pair in values.pop("examples", ())]
        if any(len(pair) != 2 for pair in examples):
            raise ConfigurationError("format.examples must be pairs of question and solution")
        return cls(**values, examples=tuple(examples))

    @classmethod
    def load(cls, path: Path) -> PromptFormat:
        """Read a JSON file.

        Raises:
            ConfigurationError: it is no format.
        """
        try:
            return cls.from_mapping(json.loads(path.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"{path} is no JSON: {error}") from error

    def to_mapping(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"examples": [list(pair) for pair in self.examples]}

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        text = json.dumps(self.to_mapping(), indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


class PromptEncoder:
    """Renders and encodes prompts with one tokenizer.

    Args:
        tokenizer: of the policy or verifier.
        prompt_format: the form.

    Raises:
        ConfigurationError: there is no chat template, or it has a system turn that was not wanted
            and cannot be found.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat) -> None:
        self._tokenizer: Any = tokenizer
        self._format = prompt_format
        self._template = prompt_format.template or tokenizer.chat_template
        if not isinstance(self._template, str):
            raise ConfigurationError(
                "the tokenizer has no chat template; set format.template to one, for example"
                " {{ messages[-1]['content'] }}{{ '\\n' }} for a plain question"
            )
        self._added: dict[str, int] = {
            token.content: i for i, token in self._tokenizer.added_tokens_decoder.items()
        }
        self._bos = ""
        self._unwanted = self._find_unwanted() if prompt_format.system is None else ""

    @property
    def template_hash(self) -> str:
        """Hash of the chat template in use, 16 hex digits."""
        return hashlib.blake2b(self._template.encode(), digest_size=8).hexdigest()

    @property
    def printed_date(self) -> str | None:
        """The fixed date that a template which prints the date is given; None for the others."""
        asks = "strftime_now" in self._template or "date_string" in self._template
        return _DATE.strftime("%d %b %Y") if asks else None

    def render(self, question: str) -> str:
        """The prompt as text, generation prompt and assistant prefix included."""
        return self._assemble(self._contents(question))

    def encode(self, question: str) -> list[int]:
        """The prompt as ids.

        Special tokens of the template become control tokens; the same characters typed in a
        question or an example stay plain text.
        """
        return self._encode_turns(self._contents(question))

    def encode_answered(self, question: str, answer: str) -> list[int]:
        """A question and its answer as ids, closed as the template closes a turn."""
        return self._encode_turns([*self._contents(question), answer])

    def _encode_turns(self, contents: Sequence[str]) -> list[int]:
        if not any(token in content for token in self._added for content in contents):
            return encode(self._tokenizer, self._assemble(contents))
        marks = [f"content{uuid.uuid4().hex}" for _ in contents]
        rest, ids = self._assemble(marks), []
        pieces: list[tuple[str, bool]] = []
        for mark, content in zip(marks, contents, strict=True):
            before, found, rest = rest.partition(mark)
            if not found:
                raise ConfigurationError("format.template drops or changes the text of a turn")
            pieces += [(before, True), (content, False)]
        for text in _plain_stretches([*pieces, (rest, True)], list(self._added)):
            if isinstance(text, str):
                ids += encode(self._tokenizer, text, plain=True)
            else:
                ids.append(self._added[text.token])
        return ids

    def _contents(self, question: str) -> list[str]:
        return [*(text for pair in self._format.examples for text in pair), question]

    def _assemble(self, contents: Sequence[str]) -> str:
        """Render turns of user and assistant in alternation; after a user's comes the prompt."""
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": c} for i, c in enumerate(contents)
        ]
        if self._format.system:
            messages.insert(0, {"role": "system", "content": self._format.system})
        generate = bool(len(contents) % 2)
        text = self._render(messages, generate=generate)
        if self._format.system and self._format.system.strip() not in text:
            raise ConfigurationError(
                "format.system is set, but the chat template leaves it out; set format.template"
            )
        if self._unwanted:
            text = text.removeprefix(self._unwanted)
            text = text if text.startswith(self._bos) else self._bos + text
        return text + self._format.assistant_prefix if generate else text

    def _render(self, messages: list[Message], *, generate: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=generate,
                date_string=_DATE.strftime("%d %b %Y"),
                strftime_now=_DATE.strftime,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise ConfigurationError(f"format.template cannot be rendered: {error}") from error
        return text

    def _find_unwanted(self) -> str:
        """What the template writes before the first user turn: the start mark and a system turn.

        Later turns show how a user turn opens: it stands between the end of an answer and the next
        question.
        """
        one, two, three = (f"content{uuid.uuid4().hex}" for _ in range(3))
        ask: Message = {"role": "user", "content": one}
        answer: Message = {"role": "assistant", "content": two}
        head = self._render([ask], generate=True).partition(one)[0]
        bos = self._tokenizer.bos_token or ""
        self._bos = bos if head.startswith(bos) else ""
        if head == self._bos:
            return ""
        try:
            end = self._render([ask, answer], generate=False).partition(two)[2]
            more = self._render([ask, answer, ask | {"content": three}], generate=True)
        except ConfigurationError:
            end = more = ""
        opening = more.partition(two)[2].partition(three)[0].removeprefix(end)
        if not opening or not head.endswith(opening):
            raise ConfigurationError(
                "format.system=null asks for no system turn, but where the user's turn begins"
                ' cannot be told from the template; set format.template, or format.system="" to'
                " keep what the template does by itself"
            )
        return head.removesuffix(opening)


class _Special(NamedTuple):
    token: str


def _plain_stretches(
    pieces: Sequence[tuple[str, bool]], tokens: Sequence[str]
) -> list[str | _Special]:
    """Cut trusted text at special tokens and join what stands between, as a tokenizer would.

    Args:
        pieces: text, and whether special tokens in it count.
        tokens: the special tokens.
    """
    found: list[str | _Special] = []

    def plain(text: str) -> None:
        if found and isinstance(last := found[-1], str):
            found[-1] = last + text
        elif text:
            found.append(text)

    for text, is_trusted in pieces:
        rest = text
        while is_trusted:
            places = [(rest.find(t), -len(t), t) for t in tokens if t and t in rest]
            if not places:
                break
            start, _, token = min(places)
            plain(rest[:start])
            found.append(_Special(token))
            rest = rest[start + len(token) :]
        plain(rest)
    return found
