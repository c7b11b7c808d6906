"""Chunks of any size are cut as single tokens are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import VOCAB, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models

from stepsearch.policies.chunks import ChunkCutter, find_endings
from stepsearch.policies.sampling import Token
from stepsearch.policies.text import (
    ChainReader,
    IncrementalDecoder,
    LoopDetector,
    StepCutter,
    StepRules,
)
from stepsearch.search.contracts import SamplingParams

TOKENIZER = tiny_tokenizer()
TEXTS = st.sampled_from(
    ["a\n", "12\n\n", "3 = 4", "\n", "#### 7\n", "数学", "ä ", r"\begin{x}", r"\end{x}", "```", " "]
)
IDS = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), max_size=40),
    st.lists(TEXTS, max_size=12).map(
        lambda parts: TOKENIZER.encode("".join(parts), add_special_tokens=False)
    ),
    st.tuples(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=5), st.integers(1, 9)).map(
        lambda pair: pair[0] * pair[1]
    ),
)


def _decode(ids: Any) -> str:
    text = TOKENIZER.decode(list(ids), clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


BYTES = Tokenizer(
    models.BPE(
        vocab={"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)},
        merges=[],
        byte_fallback=True,
        unk_token="<unk>",
    )
)
BYTES.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])


def _decode_bytes(ids: Any) -> str:
    return BYTES.decode(list(ids), skip_special_tokens=False)


RULES = {
    separator: StepRules(separator=separator, final_prefix="####", eos_ids={2})
    for separator in ("\n", "\n\n", " ", "学")
}
ENDINGS = {separator: find_endings(TOKENIZER, rules) for separator, rules in RULES.items()}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_chunks_give_the_steps_of_single_tokens(data: Any) -> None:
    separator = data.draw(st.sampled_from(sorted(RULES)))
    ids = [i for part in data.draw(st.lists(IDS, min_size=1, max_size=4)) for i in part]
    before = data.draw(IDS)
    params = SamplingParams(
        until=data.draw(st.sampled_from(["step", "end"])),
        max_step_tokens=data.draw(st.sampled_from([1, 5, 40, 1000])),
        max_tokens=data.draw(st.sampled_from([1, 7, 1000])),
        max_steps=data.draw(st.sampled_from([1, 2, 100])),
        max_repeats=data.draw(st.sampled_from([0, 2, 4])),
    )
    room = data.draw(st.sampled_from([3, 1000]))

    def reader() -> ChainReader:
        return ChainReader(_decode, params.max_repeats).read(before, ["a\n"])

    single = StepCutter(reader(), RULES[separator], params, room)
    chunked = ChunkCutter(reader(), RULES[separator], params, room, ENDINGS[separator])
    goes_on = True
    taken = 0
    for token_id in ids:
        taken += 1
        goes_on = single.push(Token(token_id, -0.5, 0.0))
        if not goes_on:
            break
    rest = ids
    while rest and chunked.goes_on:
        size = data.draw(st.integers(1, len(rest)))
        chunked.take(rest[:size], [-0.5] * size)
        rest = rest[size:]
    assert chunked.steps == single.steps
    assert chunked.goes_on == goes_on
    assert chunked.num_tokens == taken
    assert chunked.num_surplus + len(rest) == len(ids) - taken


def test_steps_have_no_logprob_when_none_is_told() -> None:
    cutter = ChunkCutter(ChainReader(_decode, 0), RULES["\n"], SamplingParams(), 100, ENDINGS["\n"])
    cutter.take(TOKENIZER.encode("a\n"), None)
    assert [step.logprob for step in cutter.steps] == [None]


def test_the_allowance_is_what_the_nearest_limit_leaves() -> None:
    def cutter(**limits: Any) -> ChunkCutter:
        params = SamplingParams(**limits)
        return ChunkCutter(ChainReader(_decode, 0), RULES["\n"], params, 30, ENDINGS["\n"])

    assert cutter().allowance == 30
    assert cutter(max_step_tokens=20, max_tokens=25).allowance == 20
    assert cutter(max_step_tokens=20, max_tokens=25, until="end").allowance == 25
    some = cutter(max_step_tokens=20)
    some.take(TOKENIZER.encode("ab")[:2], None)
    assert some.allowance == 18


def test_closing_tokens_hold_the_separator() -> None:
    for separator, endings in ENDINGS.items():
        found = [i for i in range(VOCAB) if separator in _decode([i])]
        assert list(endings.closing) == found
    assert ENDINGS["\n"].always
    assert not ENDINGS["\n\n"].always
    assert not ENDINGS[" "].always


@settings(max_examples=100, deadline=None)
@given(st.lists(IDS, max_size=3), IDS)
def test_extending_a_decoder_gives_what_pushing_gives(parts: list[list[int]], more: Any) -> None:
    one, many = IncrementalDecoder(_decode), IncrementalDecoder(_decode)
    for ids in [*parts, more]:
        assert "".join(map(one.push, ids)) == many.extend(ids)
    assert one.flush() == many.flush()


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=12), st.integers(0, 3), st.integers(1, 8))
def test_a_decoder_of_single_bytes_keeps_what_is_whole(text: str, missing: int, size: int) -> None:
    encoded = text.encode(errors="ignore")
    ids = [1 + byte for byte in encoded[: len(encoded) - missing]]
    one, many = IncrementalDecoder(_decode_bytes), IncrementalDecoder(_decode_bytes)
    pushed = "".join(map(one.push, ids)) + one.flush()
    chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
    assert "".join(map(many.extend, chunks)) + many.flush() == pushed


def test_what_is_whole_is_given_before_a_character_is() -> None:
    decoder = IncrementalDecoder(_decode_bytes)
    ids = [1 + byte for byte in "x=\u221a\u221a".encode()[:-1]]
    assert decoder.extend(ids) == "x=\u221a"


@settings(max_examples=100, deadline=None)
@given(st.lists(IDS, max_size=3), st.sampled_from([0, 2, 3]))
def test_loops_are_found_where_pushing_finds_them(parts: list[list[int]], repeats: int) -> None:
    one, many = LoopDetector(repeats), LoopDetector(repeats)
    for ids in parts:
        fired = [one.push(i) for i in ids]
        assert many.find(ids) == (fired.index(True) if any(fired) else None)


@pytest.mark.parametrize("period", [1, 7, 128])
def test_a_loop_is_found_across_chunks(period: int) -> None:
    ids = np.tile(np.arange(period), 4 * max(1, 16 // period)).tolist()
    detector, found = LoopDetector(4), None
    for start in range(0, len(ids), 50):
        if found is None and (at := detector.find(ids[start : start + 50])) is not None:
            found = start + at
    assert found == max(4 * period, 16) - 1
