"""Incremental decoding, step cutting and loop detection."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers

from stepsearch.policies.sampling import Token
from stepsearch.policies.text import (
    ChainReader,
    Decode,
    IncrementalDecoder,
    LoopDetector,
    StepCutter,
    StepRules,
    is_open,
)
from stepsearch.search.contracts import SamplingParams
from stepsearch.search.types import Step

EOS = 2


@cache
def byte_level() -> Any:
    return tiny_tokenizer()


@cache
def byte_fallback() -> Tokenizer:
    """As sentencepiece: spaces are marks, the first is dropped, unknown characters are bytes."""
    pieces = [
        "<s>",
        "</s>",
        "<unk>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "▁",
        "▁a",
        "b",
        "\n",
        "數",
    ]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def decode_bytes(ids: Sequence[int]) -> str:
    return str(byte_level().decode(list(ids), skip_special_tokens=False))


def decode_pieces(ids: Sequence[int]) -> str:
    return byte_fallback().decode(list(ids), skip_special_tokens=False)


def stream(decode: Decode, ids: Sequence[int]) -> str:
    decoder = IncrementalDecoder(decode)
    return "".join(decoder.push(i) for i in ids) + decoder.flush()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 319), max_size=40))
def test_streamed_bytes_are_the_whole_decoded(ids: list[int]) -> None:
    assert stream(decode_bytes, ids) == decode_bytes(ids)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab 數é\U0001f600\n", max_size=12))
def test_streamed_pieces_are_the_whole_decoded(text: str) -> None:
    ids = byte_fallback().encode(text).ids
    assert stream(decode_pieces, ids) == decode_pieces(ids)


@pytest.mark.embedded
def test_streamed_text_of_the_embedded_tokenizer(embedded_path: Path) -> None:
    from stepsearch.policies.loading import load_tokenizer

    tokenizer = load_tokenizer(embedded_path)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=20))
    def check(ids: list[int]) -> None:
        assert stream(decode, ids) == decode(ids)

    check()


def test_a_character_cut_in_half_waits() -> None:
    ids = byte_level().encode("猫")
    assert len(ids) == 3
    decoder = IncrementalDecoder(decode_bytes)
    assert [decoder.push(i) for i in ids] == ["", "", "猫"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\begin{aligned} a&=b \\ ", True),
        (r"\begin{aligned} a \end{aligned}", False),
        (r"\begin{a}\begin{b}\end{b}", True),
        (r"\end{a}\begin{b}", True),
        (r"so \[ x = 1", True),
        (r"so \[ x = 1 \]", False),
        (r"a \\[2pt] b", False),
        ("```python\nx = 1\n", True),
        ("```python\nx = 1\n```", False),
        ("plain [text] begin{x}", False),
    ],
)
def test_is_open(text: str, expected: bool) -> None:
    assert is_open(text) is expected


class Characters:
    """One token per character or listed string; the ids are made on the fly."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = ["<eos0>", "<eos1>", "<eos>", *pieces]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


def cut(
    pieces: Sequence[str],
    *,
    separator: str = "\n",
    final_prefix: str | None = None,
    room: int = 10**6,
    before: Sequence[Step] = (),
    **limits: Any,
) -> list[Step]:
    """Steps of a stream of pieces; `<eos>` is the end token. Fails if the stream does not end."""
    vocabulary = Characters(*dict.fromkeys(p for p in pieces if p != "<eos>"))
    params = SamplingParams(**({"until": "end"} | limits))
    reader = ChainReader(vocabulary.decode, params.max_repeats).read(
        [i for s in before for i in s.token_ids], [s.text for s in before]
    )
    rules = StepRules(separator=separator, final_prefix=final_prefix, eos_ids={EOS})
    cutter = StepCutter(reader, rules, params, room)
    for n, piece in enumerate(pieces):
        if not cutter.push(Token(vocabulary.pieces.index(piece), -0.5, 1.0)):
            assert n == len(pieces) - 1, "it ended before the stream"
            return cutter.steps
    raise AssertionError(f"it goes on after {cutter.steps}")


def parts(steps: Sequence[Step]) -> list[tuple[str, str]]:
    return [(s.text, s.stop) for s in steps]


def test_steps_end_with_the_token_that_completes_the_separator() -> None:
    steps = cut(["a", "\n", "b", ".\n\nc", "d", "<eos>"], separator="\n\n")
    assert parts(steps) == [("a\nb.\n\nc", "step"), ("d", "eos")]
    assert [s.num_tokens for s in steps] == [4, 2]
    assert steps[0].logprob == pytest.approx(-2.0)
    assert steps[1].token_ids[-1] == EOS


def test_a_separator_spread_over_tokens() -> None:
    assert parts(cut(["a", "\n", "\n", "<eos>"], separator="\n\n")) == [
        ("a\n\n", "step"),
        ("", "eos"),
    ]


def test_a_model_that_only_ends() -> None:
    assert parts(cut(["<eos>"])) == [("", "eos")]


def test_a_step_without_visible_text_is_part_of_the_next() -> None:
    assert parts(cut(["\n", " ", "\n", "a", "\n", "<eos>"])) == [("\n \na\n", "step"), ("", "eos")]


def test_an_open_step_goes_on_over_separators() -> None:
    pieces = ["\\begin{x}", "\n", "a", "\n", "\n", "\\end{x}", "\n", "b", "<eos>"]
    assert parts(cut(pieces)) == [("\\begin{x}\na\n\n\\end{x}\n", "step"), ("b", "eos")]


def test_the_final_step_ends_the_chain() -> None:
    assert parts(cut(["a", "\n", "####", " 7", "\n"], final_prefix="####")) == [
        ("a\n", "step"),
        ("#### 7\n", "eos"),
    ]
    assert parts(cut(["####", " 7", "<eos>"], final_prefix="####")) == [("#### 7", "eos")]


def test_limits_have_their_own_names() -> None:
    assert parts(cut(["a", "b", "c"], max_step_tokens=3)) == [("abc", "length")]
    assert parts(cut(["a", "b", "c"], max_tokens=3)) == [("abc", "budget")]
    assert parts(cut(["a", "b", "c"], max_tokens=3, max_step_tokens=3)) == [("abc", "length")]
    assert parts(cut(["a", "b", "c"], room=3)) == [("abc", "context")]
    assert parts(cut(["a", "\n", "b", "\n"], max_steps=2)) == [("a\n", "step"), ("b\n", "step")]
    assert parts(cut(["a", "\n"], until="step")) == [("a\n", "step")]
    # A step that is complete with the last token is complete.
    assert parts(cut(["a", "\n"], max_tokens=2)) == [("a\n", "step")]
    assert parts(cut(["a", "\n", "b"], max_tokens=3)) == [("a\n", "step"), ("b", "budget")]


def test_loops_end_a_chain() -> None:
    assert parts(cut(["x"] * 16)) == [("x" * 16, "loop")]
    assert parts(cut((["ab", "cd", "e"] * 6)[:16])) == [("abcde" * 5 + "ab", "loop")]
    assert parts(cut(["a", "\n"] * 4))[-1] == ("a\n", "loop")
    assert len(cut(["a", "\n"] * 4)) == 4
    assert parts(cut([*["0"] * 15, "<eos>"])) == [("0" * 15, "eos")]
    assert parts(cut([*["x"] * 50, "<eos>"], max_repeats=0)) == [("x" * 50, "eos")]


def test_loops_reach_over_calls() -> None:
    pieces = ["a", "b", "c", "\n"]
    step = Step(text="abc\n", token_ids=(3, 4, 5, 6))
    assert parts(cut(pieces, before=[step] * 3, until="step")) == [("abc\n", "loop")]
    assert parts(cut(pieces, before=[step] * 2, until="step")) == [("abc\n", "step")]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(2, 4))
def test_loop_detection_equals_its_definition(ids: list[int], repeats: int) -> None:
    detector = LoopDetector(repeats)
    for end in range(1, len(ids) + 1):
        seen = ids[:end]
        expected = any(
            end >= (n := max(p * repeats, 16))
            and all(a == b for a, b in zip(seen[-n + p :], seen[-n:-p], strict=True))
            for p in range(1, 31)
            if n_fits(p, repeats, end)
        )
        assert detector.push(ids[end - 1]) == expected


def n_fits(period: int, repeats: int, end: int) -> bool:
    return max(period * repeats, 16) <= end


def test_one_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match="max_repeats=1"):
        LoopDetector(1)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(3, 319), max_size=60))
def test_texts_of_steps_join_to_the_decoded_chain(ids: list[int]) -> None:
    rules = StepRules(separator="\n", final_prefix=None, eos_ids={EOS})
    params = SamplingParams(until="end", max_repeats=0, max_step_tokens=10**6)
    cutter = StepCutter(ChainReader(decode_bytes, 0), rules, params, 10**6)
    going = [cutter.push(Token(i, -1.0, 1.0)) for i in [*ids, EOS]]
    assert going == [True] * len(ids) + [False]
    assert "".join(s.text for s in cutter.steps) == decode_bytes(ids)
    assert [i for s in cutter.steps for i in s.token_ids] == [*ids, EOS]
    # Cut in the middle of the chain and gone on with: the same steps.
    done = cutter.steps[: len(cutter.steps) // 2]
    history = [i for s in done for i in s.token_ids]
    reader = ChainReader(decode_bytes, 0).read(history, [s.text for s in done])
    again = StepCutter(reader, rules, params, 10**6)
    for i in [*ids, EOS][len(history) :]:
        again.push(Token(i, -1.0, 1.0))
    assert [*done, *again.steps] == cutter.steps
