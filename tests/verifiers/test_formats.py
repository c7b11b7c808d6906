"""Formats as data, and the encoding of chains in them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from stepsearch.conf.build import load_config
from stepsearch.search.contracts import ScoreFailure
from stepsearch.search.errors import ConfigurationError, VerifierError
from stepsearch.search.tree import Tree
from stepsearch.search.types import Step
from stepsearch.verifiers.formats.encoding import ChainEncoder, EncodedChain, Turn
from stepsearch.verifiers.formats.readout import HeadFormat, TokensFormat
from stepsearch.verifiers.formats.spec import StepFormat

HEAD = {"num_outputs": 1, "activation": "sigmoid"}
LINE = {"name": "line", "prompt": "chat", "mark": "\n", "head": HEAD}
PROMPT = [900, 901]


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def encoder(**changes: Any) -> ChainEncoder:
    format = StepFormat.from_mapping(LINE | changes)
    return ChainEncoder(format, lambda question: [*PROMPT, *bytes_of(question)], bytes_of)


def encode(texts: list[str], num_new: int, question: str = "q", **changes: Any) -> Any:
    chain = Tree(question).chain(0, tuple(Step(text=t) for t in texts), num_new=num_new)
    return encoder(**changes)(chain)


@pytest.mark.parametrize("name", ["line_prm", "trl_prm"])
def test_shipped_formats_are_read_from_yaml(name: str) -> None:
    format = StepFormat.from_mapping(load_config([f"verifier={name}"]).verifier.format)
    if name == "line_prm":
        assert (format.prompt, format.mark, format.head.range) == ("chat", "\n", "probability")
        assert (format.system, format.aggregation) == (None, "last")
    else:
        assert (format.prompt, format.mark, format.joiner) == ("plain", "\n\n", "")
        assert format.head == HeadFormat(num_outputs=2, activation="softmax", good=1)


def test_a_head_that_names_tokens_is_read_as_such() -> None:
    head = {"good_token": "+", "bad_token": "-", "ids": [10, 12]}
    format = StepFormat.from_mapping(LINE | {"head": head})
    assert format.head == TokensFormat(good_token="+", bad_token="-", ids=(10, 12))


def test_a_hydra_node_is_a_mapping_too() -> None:
    node = OmegaConf.create(LINE | {"reserved": ["<m>"], "mark_ids": [10]})
    format = StepFormat.from_mapping(cast(Any, node))
    assert format == StepFormat.from_mapping(LINE | {"reserved": ("<m>",), "mark_ids": (10,)})
    assert (format.reserved, format.mark_ids) == (("<m>",), (10,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"marks": "\n"}, r"format\.marks is unknown; did you mean mark"),
        ({"head": HEAD | {"activaton": "sigmoid"}}, r"format\.head\.activaton is unknown"),
        ({"head": {"num_outputs": 1}}, r"format\.head\.activation is missing"),
        ({"head": {"num_outputs": 1, "activation": "softmax"}}, "num_outputs=2, not 1"),
        ({"head": {"num_outputs": 2, "activation": "sigmoid"}}, "num_outputs=1, not 2"),
        ({"head": HEAD | {"good": 1}}, r"format\.head\.good=1"),
        ({"head": HEAD | {"activation": "tanh"}}, "must be one of sigmoid, softmax"),
        ({"head": HEAD | {"activation": "difference"}}, "num_outputs=2, not 1"),
        ({"head": {"good_token": "+"}}, r"format\.head\.bad_token is missing"),
        ({"head": {"good_token": "+", "bad_token": "+"}}, r"are both '\+'"),
        ({"head": {"good_token": "+", "bad_token": "-", "ids": [1]}}, r"ids=\[1\] must be two"),
        ({"label": "Step"}, r"format\.label='Step' must hold \{number\}"),
        ({"bos": "always"}, r"format\.bos='always'"),
        ({"newlines": "drop"}, r"format\.newlines='drop'"),
        ({"prompt": "turns"}, r"format\.score_at must be before_mark"),
        ({"prompt": "plain", "template_hash": "ab"}, "need a template"),
        ({"head": "score"}, "must be a mapping"),
        ({"mark": ""}, r"format\.mark is empty"),
        ({"prompt": "raw"}, r"format\.prompt='raw' must be one of chat, turns, plain"),
        ({"score_at": "after"}, r"format\.score_at='after'"),
        ({"strip": "left"}, r"format\.strip='left'"),
        ({"aggregation": "max"}, r"format\.aggregation='max'"),
        ({"joiner": "\n"}, r"format\.joiner needs prompt=plain"),
        ({"prompt": "plain", "system": "Be brief."}, "need a template"),
        ({"reserved": [""]}, "empty string"),
        ({"max_length": 0}, r"format\.max_length=0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StepFormat.from_mapping(LINE | change)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"format\.mark is missing"):
        StepFormat.from_mapping({k: v for k, v in LINE.items() if k != "mark"})


def test_ids_are_prompt_then_each_step_alone_with_its_mark() -> None:
    assert encode(["a b\n", "c\n"], 2) == EncodedChain(
        [*PROMPT, *b"qa b\nc\n"], [2 + 1 + 3, 2 + 1 + 5], 3
    )


def test_only_the_newest_steps_get_positions_and_the_rest_is_known() -> None:
    ids, positions, num_known = encode(["a\n", "b\n", "c\n"], 1)
    assert positions == [len(ids) - 1]
    assert num_known == len(ids) - len(b"c\n")


def test_the_score_may_be_read_before_the_mark() -> None:
    ids, positions, num_known = encode(
        ["a\n", "bc\n", ""], 2, score_at="before_mark", mark="<>", mark_ids=[*b"<>"]
    )
    assert ids == [*PROMPT, *b"qa<>bc<>"]
    assert [ids[p] for p in positions] == [ord("c"), ord(">")]
    assert num_known == len([*PROMPT, *b"qa"])


def test_several_ids_of_a_mark_are_read_at_the_last() -> None:
    ids, positions, _ = encode(["a", "b"], 2, mark="[PRM]", mark_ids=[*b"[PRM]"])
    assert [ids[p] for p in positions] == [ord("]")] * 2
    assert len(positions) == 2


@pytest.mark.parametrize("text", ["", "\n", "a\nb\n", "a \n\n", "\\begin{x}\n\n\\end{x}\n", "a"])
def test_odd_steps_have_one_position_each(text: str) -> None:
    ids, positions, _ = encode(["x\n", text, "y\n"], 3)
    assert len(positions) == 3
    assert [ids[p] for p in positions] == [ord("\n")] * 3
    assert bytes(ids[3:]) == f"x\n{text.rstrip()}\ny\n".encode()


def test_strip_removes_what_the_format_says() -> None:
    assert bytes(encode([" a \n\n"], 1, strip="both").ids[3:]) == b"a\n"
    assert bytes(encode([" a \n\n"], 1, strip="end").ids[3:]) == b" a\n"


@pytest.mark.parametrize(
    ("question", "texts", "where"),
    [("what is <m>?", ["a"], "question: "), ("q", ["a", "b <m> c"], "step 2: ")],
)
def test_reserved_strings_are_malformed(question: str, texts: list[str], where: str) -> None:
    failure = encode(texts, 1, question, mark="<m>", mark_ids=[*b"<m>"], reserved=["<m>"])
    assert failure == ScoreFailure("malformed", f"{where}holds the reserved string '<m>'")


def test_text_that_is_not_unicode_is_malformed() -> None:
    failure = encode(["a\ud800"], 1)
    assert isinstance(failure, ScoreFailure)
    assert failure.kind == "malformed"
    assert "step 1" in failure.message


def test_a_mark_that_is_encoded_unlike_the_format_says_is_refused() -> None:
    assert encoder(mark="ab", mark_ids=[97, 98]).mark == (97, 98)
    with pytest.raises(VerifierError, match=r"encoded as \[97, 98\], expected \[5\]"):
        encoder(mark="ab", mark_ids=[5])
    with pytest.raises(VerifierError, match=r"not as one id: .* set format\.mark_ids=\[97, 98\]"):
        encoder(mark="ab")


def test_labels_are_put_before_steps_that_lack_them() -> None:
    chain = encode(["a\n", "Step 7: b\n", "c\n"], 3, label="Step {number}: ", separator=" ")
    assert bytes(chain.ids[3:]) == b"Step 1: a\n Step 7: b\n Step 3: c\n"


def test_newlines_inside_a_step_may_become_spaces() -> None:
    assert bytes(encode(["a\n\n b\n"], 1, newlines="space").ids[3:]) == b"a b\n"


def test_a_joined_prompt_leaves_the_joiner_to_the_first_step() -> None:
    chain = encode(["a", "b"], 2, prompt="plain", joiner=" ", separator="/", joined=True)
    assert bytes(chain.ids[2:]) == b"q a\n/b\n"


def test_turns_stand_between_their_ids() -> None:
    format = StepFormat.from_mapping(
        LINE | {"prompt": "turns", "joiner": " ", "mark": "+", "score_at": "before_mark"}
    )
    encode = ChainEncoder(format, bytes_of, bytes_of, turn=Turn((1, 2), (3,)))
    chain = Tree("q").chain(0, (Step(text="a\n"), Step(text="b\n")))
    assert encode(chain) == EncodedChain([*b"q a", 3, *b"+", 1, 2, *b"b", 3], [3, 8], 1)


def test_a_growing_chain_encodes_only_its_new_step() -> None:
    encoded: list[str] = []

    def encode_text(text: str) -> list[int]:
        encoded.append(text)
        return bytes_of(text)

    def encode_prompt(question: str) -> list[int]:
        encoded.append(question)
        return PROMPT

    encode = ChainEncoder(StepFormat.from_mapping(LINE), encode_prompt, encode_text)
    tree = Tree("q")
    node = 0
    for index in range(20):
        node = tree.add(node, Step(text=f"step {index}\n"))
        encode(tree.chain(node, num_new=1))
    assert encoded == ["\n", "q", *(f"step {i}" for i in range(20))]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5), data=st.data()
)
def test_positions_are_as_many_as_new_steps_and_a_prefix_stays_a_prefix(
    texts: list[str], data: st.DataObject
) -> None:
    num_new = data.draw(st.integers(0, len(texts)))
    whole = encode(texts, num_new)
    assert len(whole.positions) == num_new
    assert whole.positions == sorted(set(whole.positions))
    if num_new:
        assert whole.positions[-1] == len(whole.ids) - 1
    known = encode(texts[: len(texts) - num_new], 0)
    assert known.ids == whole.ids[: whole.num_known]
