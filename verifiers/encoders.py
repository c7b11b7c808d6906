"""From a tokenizer and a format to an encoder of chains, checked on a probe before it is used."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stepsearch.policies.prompt import PromptEncoder, PromptFormat
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import VerifierError
from stepsearch.search.tree import Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.encoding import ChainEncoder, Turn
from stepsearch.verifiers.formats.implicit import AnswerEncoder, ImplicitFormat
from stepsearch.verifiers.formats.outcome import OutcomeFormat, SolutionEncoder
from stepsearch.verifiers.formats.spec import StepFormat
from stepsearch.verifiers.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DATES = ("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y")
_PROBE_QUESTION = "Tom has 3 boxes of 4 pens.\nHow many pens are there?"
_PROBE_STEPS = ("There are 3 boxes.", "Each holds 4 pens:\n3 * 4 = 12", "The answer is $12$")


class Template(NamedTuple):
    """A chat template in use: its hash and the date that it was made to print, if any."""

    hash: str | None
    date: str | None


def chain_encoder(
    format: StepFormat, tokenizer: PreTrainedTokenizerBase
) -> tuple[ChainEncoder, Template]:
    """An encoder of chains in a format.

    Raises:
        VerifierError: tokenizer or template do not do what the format says.
        ConfigurationError: the template cannot be rendered.
    """
    tokens = Tokens(tokenizer, format.joined or format.prompt == "turns")
    if format.prompt == "plain":
        bos = tokens.bos(format)
        joiner = "" if format.joined else format.joiner

        def plain(question: str) -> list[int]:
            text = question.rstrip() if format.joined else question
            return [*bos, *tokens.alone(text + joiner)]

        encoder = ChainEncoder(format, plain, tokens, tokens.mark)
        template = Template(None, None)
    else:
        prompt = prompt_encoder(tokenizer, format.system, format.template)
        template = checked_template(prompt, format.template_hash)
        if format.prompt == "chat":
            encoder = ChainEncoder(format, prompt.encode, tokens, tokens.mark)
        else:
            encoder = _turns(format, tokenizer, tokens)
    if format.joined:
        _check_joined(encoder, tokens, _published(format, tokenizer))
    return encoder, template


def solution_encoder(
    format: OutcomeFormat, tokenizer: PreTrainedTokenizerBase
) -> tuple[SolutionEncoder, Template]:
    """An encoder of whole chains in a format.

    Raises:
        VerifierError: the template does not do what the format says.
        ConfigurationError: the template cannot be rendered.
    """
    if format.ask == "plain":
        tokens = Tokens(tokenizer, joined=False)
        bos = tokens.automatic()

        def plain(question: str, solution: str) -> list[int]:
            return [*bos, *tokens(question + format.joiner + solution)]

        return SolutionEncoder(plain), Template(None, None)
    prompt = prompt_encoder(tokenizer, format.system, format.template)

    def judged(question: str, solution: str) -> list[int]:
        return prompt.encode(format.request(question, solution))

    encoder = SolutionEncoder(judged if format.ask == "judge" else prompt.encode_answered)
    return encoder, checked_template(prompt, format.template_hash)


def answer_encoder(
    format: ImplicitFormat, tokenizer: PreTrainedTokenizerBase
) -> tuple[AnswerEncoder, Template]:
    """An encoder of chains for two language models.

    Raises:
        VerifierError: the template does not do what the format says.
        ConfigurationError: the template cannot be rendered.
    """
    prompt = prompt_encoder(tokenizer, format.system, format.template)
    template = checked_template(prompt, format.template_hash)
    end = _end_of_turn(prompt, tokenizer)
    return AnswerEncoder(format, prompt.encode, Tokens(tokenizer, joined=True), end), template


def prompt_encoder(
    tokenizer: PreTrainedTokenizerBase,
    system: str | None,
    template: str | None,
    examples: tuple[tuple[str, str], ...] = (),
) -> PromptEncoder:
    """The prompt of a template, with earlier turns."""
    return PromptEncoder(
        tokenizer, PromptFormat(system=system, template=template, examples=examples)
    )


def checked_template(prompt: PromptEncoder, expected: str | None) -> Template:
    """The template's hash and date.

    Raises:
        VerifierError: it has another hash than expected, or prints the date of today.
    """
    if expected is not None and prompt.template_hash != expected:
        raise VerifierError(
            f"the chat template has the hash {prompt.template_hash}, but"
            f" format.template_hash={expected}: the template has changed, and so have all scores;"
            " give the old one as format.template, or set the new hash"
        )
    text = prompt.render(_PROBE_QUESTION)
    today = datetime.datetime.now()
    for form in _DATES:
        if today.strftime(form) in text:
            raise VerifierError(
                f"the chat template writes today's date, {today.strftime(form)}, into every prompt,"
                " so that scores change overnight; set format.template to one with a fixed date"
            )
    return Template(prompt.template_hash, prompt.printed_date)


def _end_of_turn(prompt: PromptEncoder, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that a template writes behind an answer."""
    whole = prompt.encode_answered(_PROBE_QUESTION, "7")
    answered = len(prompt.encode(_PROBE_QUESTION)) + len(Tokens(tokenizer, joined=True)("7"))
    return tuple(whole[answered:])


def _turns(format: StepFormat, tokenizer: PreTrainedTokenizerBase, tokens: Tokens) -> ChainEncoder:
    """Cut the template at the texts of its turns."""
    one, answer, two = (f"content{uuid.uuid4().hex}" for _ in range(3))
    example = ((one, answer),)
    text = prompt_encoder(tokenizer, format.system, format.template, example).render(two)
    head, _, rest = text.partition(one)
    closing, _, rest = rest.partition(answer)
    opening, found, last = rest.partition(two)
    if not found or last != closing:
        raise VerifierError(
            "the chat template does not write every turn alike, so steps cannot be turns of it;"
            " set format.template to one that does"
        )
    start = tokens.trusted(head)
    turn = Turn(tuple(tokens.trusted(opening)), tuple(tokens.trusted(closing)))

    def prompt(question: str) -> list[int]:
        return [*start, *tokens(question.strip())]

    return ChainEncoder(format, prompt, tokens, tokens.mark, turn)


def _check_joined(encoder: ChainEncoder, tokens: Tokens, published: _Published) -> None:
    """Compare the ids of a probe with those of its text tokenised as a whole."""
    format = encoder.format
    steps = tuple(Step(text=text) for text in _PROBE_STEPS)
    encoded = encoder(Tree(_PROBE_QUESTION).chain(0, steps))
    if isinstance(encoded, ScoreFailure):
        raise VerifierError(f"format {format.name!r} cannot encode a plain probe: {encoded}")
    labelled = [format.labelled(text, number) for number, text in enumerate(_PROBE_STEPS, 1)]
    ours, whole = encoded.ids, tokens.trusted(published(_PROBE_QUESTION, labelled))
    if format.prompt == "plain":
        whole = [*tokens.bos(format), *whole]
    if ours != whole[: len(ours)]:
        pairs = enumerate(zip(ours, whole, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), len(whole))
        raise VerifierError(
            f"format {format.name!r} is joined, but this tokenizer gives a text as a whole other"
            f" ids than its steps, from id {at} on ({ours[at : at + 4]} where the whole has"
            f" {whole[at : at + 4]}): it merges a step with its mark or with what stands before;"
            " take the model's own tokenizer, or correct joiner, separator, mark and template"
        )


_Published = Callable[[str, Sequence[str]], str]


def _published(format: StepFormat, tokenizer: PreTrainedTokenizerBase) -> _Published:
    """The text that the published code tokenises as a whole, up to the last mark or beyond."""

    def render(question: str, examples: tuple[tuple[str, str], ...]) -> str:
        return prompt_encoder(tokenizer, format.system, format.template, examples).render(question)

    def answer(steps: Sequence[str]) -> str:
        return format.separator.join(step + format.mark for step in steps)

    def plain(question: str, steps: Sequence[str]) -> str:
        return question + format.joiner + answer(steps)

    def chat(question: str, steps: Sequence[str]) -> str:
        return render("next", ((question, answer(steps)),))

    def turns(question: str, steps: Sequence[str]) -> str:
        users = [question + format.joiner + steps[0], *steps[1:]]
        return render(users[-1], tuple((user, format.mark) for user in users[:-1])) + format.mark

    texts: dict[str, _Published] = {"plain": plain, "chat": chat, "turns": turns}
    return texts[format.prompt]
