"""How an answer of a server ends, and how many tokens it counts for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.faulty import EOS, FaultyServer, running
from support.tiny import save_tiny, tiny_tokenizer

from stepsearch import Budget, Engine, SamplingParams
from stepsearch.policies.openai import OpenAIPolicy
from stepsearch.search.background import background
from stepsearch.search.contracts import Sample
from stepsearch.search.errors import PolicyError
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.tree import ROOT, Tree
from stepsearch.search.types import Step

STEP = SamplingParams(temperature=1.0, max_step_tokens=24)
END = replace(STEP, until="end", max_tokens=60)
SUM = ("1", "+", "1", "=", "2", "\n", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    sends = {"ids", "stop_reason", "logprobs", "usage"}
    with running(FaultyServer(tiny_tokenizer(), sends)) as found:
        yield found


Connect = Callable[[str], OpenAIPolicy]


@pytest.fixture
def connect(server: FaultyServer, folder: Path) -> Iterator[Connect]:
    made: list[OpenAIPolicy] = []

    def make(prompts: Any) -> OpenAIPolicy:
        made.append(
            OpenAIPolicy(
                base_url=server.url,
                model="tiny",
                tokenizer=folder,
                prompt_format={"system": None},
                prompts=prompts,
            )
        )
        return made[-1]

    yield make
    for policy in made:
        policy.close()


def sample(policy: OpenAIPolicy, params: SamplingParams, seed: int = 1) -> Sample:
    async def run() -> Sample:
        chain = Tree("How many?").chain(ROOT)
        (found,) = [s async for s in policy.sample([chain], [seed], params)]
        return found

    return background.submit(run()).result(timeout=60)


def brief(steps: Sequence[Step]) -> list[tuple[str, int, str]]:
    return [(step.text, step.num_tokens, step.stop) for step in steps]


def chat(
    text: str | None, pieces: Sequence[str] | None, finish: str, usage: int | None, **fields: Any
) -> Callable[[Any], object]:
    """A chat's answer in the place of what the server wrote."""
    told = None if pieces is None else [{"token": p, "logprob": -1.0} for p in pieces]
    choice = {"finish_reason": finish, "logprobs": {"content": told}}
    answer = {"message": {"content": text} | fields}
    return lambda _: {"choices": [choice | answer], "usage": {"completion_tokens": usage}}


CHATS: list[tuple[Callable[[Any], object], list[tuple[str, int, str]]]] = [
    (chat("1+1=2\n3", SUM, "stop", 7), [("1+1=2\n", 6, "step"), ("3", 1, "eos")]),
    (chat("1+1=2\n3", SUM, "length", 7), [("1+1=2\n", 6, "step"), ("3", 1, "budget")]),
    (chat("1+1=2\n", SUM[:6], "length", 6), [("1+1=2\n", 6, "budget")]),
    (chat("1+1=2\n", SUM[:6], "stop", 6), [("1+1=2\n", 6, "eos")]),
    (chat("1+1=2\n3", SUM, "stop", 50), [("1+1=2\n", 49, "step"), ("3", 1, "eos")]),
    (chat("1+1=2\n3", None, "stop", 50), [("1+1=2\n3", 50, "eos")]),
    (chat("1+1=2\n3", SUM, "stop", None), [("1+1=2\n", 6, "step"), ("3", 1, "eos")]),
    # Fewer tokens than pieces: then the pieces are no tokens.
    (chat("1+1=2\n3", SUM, "stop", 4), [("1+1=2\n3", 4, "eos")]),
    (chat("", [], "stop", 40), [("", 40, "eos")]),
    (chat("", [], "length", 40), [("", 40, "budget")]),
    (chat("", ["<think>", "so"], "length", 40), [("", 40, "budget")]),
    # All tokens went into reasoning that the server shows elsewhere.
    (chat(None, None, "length", 40, reasoning_content="so so"), [("", 40, "budget")]),
    (chat(None, ["<think>", "so"], "length", 40, tool_calls=[]), [("", 40, "budget")]),
    (chat(None, None, "stop", 40, refusal=None), [("", 40, "eos")]),
    # Special tokens, and space that the server strips, are no part of the answer.
    (chat("1+1", ["1", "+", "1", "<|im_end|>"], "stop", 4), [("1+1", 4, "eos")]),
    (chat("1+1", ["1", "+", "1\n", "<|im_end|>"], "stop", 4), [("1+1", 4, "eos")]),
    (chat("1\n", ["1", "\n", "<e>"], "stop", 3), [("1\n", 2, "step"), ("", 1, "eos")]),
    # A loop ends the chain; what came behind it was paid for.
    (chat("x" * 40, ["x"] * 40, "stop", 45), [("x" * 16, 45, "loop")]),
    (chat("x+" * 15, ["x", "+"] * 15, "length", 30), [("x+" * 8, 30, "loop")]),
]


@pytest.mark.parametrize(("change", "expected"), CHATS)
def test_a_chat_ends_and_counts_as_the_server_says(
    server: FaultyServer, connect: Connect, change: Any, expected: Any
) -> None:
    policy = connect("chat")
    server.change_next(change)
    assert brief(sample(policy, END).steps) == expected


@pytest.mark.parametrize(
    "field",
    [
        {"refusal": "I cannot."},
        {"tool_calls": [{}]},
        {"function_call": {"name": "f"}},
        {"audio": {"id": "a", "transcript": "It is 5."}},
    ],
)
def test_a_chat_that_refuses_or_calls_has_no_text(
    server: FaultyServer, connect: Connect, field: dict[str, Any]
) -> None:
    policy = connect("chat")
    server.change_next(chat(None, None, "stop", 40, **field))
    with pytest.raises(PolicyError, match="the choice has no text: "):
        sample(policy, END)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("message", "count"),
    [({}, 40), ({"role": "assistant"}, 40), ({"content": None}, 0), ({"content": None}, None)],
)
def test_a_broken_choice_is_no_empty_answer(
    server: FaultyServer, connect: Connect, message: dict[str, Any], count: int | None
) -> None:
    policy = connect("chat")
    choice = {"message": message, "finish_reason": "stop"}
    server.change_next(lambda _: {"choices": [choice], "usage": {"completion_tokens": count}})
    with pytest.raises(PolicyError, match="the choice has no text: "):
        sample(policy, END)


def test_a_step_with_tokens_that_are_not_shown_has_no_logprob(
    server: FaultyServer, connect: Connect
) -> None:
    policy = connect("chat")
    for usage, logprobs in ((7, [-6.0, -1.0]), (9, [None, -1.0])):
        server.change_next(chat("1+1=2\n3", SUM, "stop", usage))
        assert [step.logprob for step in sample(policy, END).steps] == logprobs


@pytest.mark.parametrize(
    ("limits", "finish", "expected"),
    [
        ({"max_tokens": 7}, "stop", "eos"),
        ({"max_tokens": 7}, "length", "budget"),
        ({"max_step_tokens": 6}, "stop", "eos"),
        ({"max_steps": 2}, "length", "budget"),
        ({"max_step_tokens": 1}, "length", "length"),
    ],
)
def test_a_limit_at_the_end_of_a_chat_is_none_where_the_model_stopped(
    server: FaultyServer, connect: Connect, limits: Any, finish: str, expected: str
) -> None:
    policy = connect("chat")
    server.change_next(chat("1+1=2\n3", SUM, finish, 7))
    assert sample(policy, replace(END, **limits)).steps[-1].stop == expected


def test_an_answer_that_was_cut_off_does_not_count_as_finished(
    server: FaultyServer, connect: Connect
) -> None:
    policy = connect("chat")
    server.change_next(chat("1+1=2\n#### 1", [*SUM[:6], "####", " 1"], "length", 8), 3)
    solution = Engine(
        policy=policy,
        strategy=BestOfN(n=3),
        budget=Budget(policy_tokens=300),
        sampling=END,
        select="majority",
    ).solve("How many?")
    assert [found.stop for found in solution.candidates] == ["length"] * 3
    assert solution.usage.policy_tokens == 24


def ids(*texts: str) -> list[int]:
    """The ids of some texts, each by itself."""
    tokenizer: Any = tiny_tokenizer()
    return [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False)]


def by_ids(written: Sequence[int], finish: str = "stop", **fields: Any) -> Callable[[Any], object]:
    """A completion in the place of what the server wrote; a stop_reason where one is given."""
    choice = {"text": "", "token_ids": list(written), "finish_reason": finish} | fields
    return lambda _: {"choices": [choice]}


def by_text(text: str, count: int, finish: str = "stop", **fields: Any) -> Callable[[Any], object]:
    """A completion by text in the place of what the server wrote."""
    choice = {"text": text, "finish_reason": finish} | fields
    return lambda _: {"choices": [choice], "usage": {"completion_tokens": count}}


LINE = ids("1", "+", "1", "\n")
(NEWLINE,) = ids("\n")
OPEN = ids("\\[", "1", "\n")
FOREIGN = 7
"""An end token of the server that the tokenizer's folder does not name."""
DONE: dict[str, Any] = {"stop_reason": None}
ENDS: list[tuple[SamplingParams, list[Callable[[Any], object]], list[tuple[str, int, str]]]] = [
    # The model ended, and its end token is not among the ids.
    (STEP, [by_ids(LINE[:3], **DONE)], [("1+1", 3, "eos")]),
    (STEP, [by_ids(LINE[:3], stop_reason=EOS)], [("1+1", 3, "eos")]),
    (STEP, [by_ids(LINE[:3])], [("1+1", 3, "eos")]),
    (STEP, [by_ids([], **DONE)], [("", 0, "eos")]),
    (END, [by_ids(LINE[:3], **DONE)], [("1+1", 3, "eos")]),
    (END, [by_ids([*LINE, *LINE[:3]], **DONE)], [("1+1\n", 4, "step"), ("1+1", 3, "eos")]),
    (END, [by_ids([*LINE, *LINE], **DONE)], [("1+1\n", 4, "step"), ("1+1\n", 4, "eos")]),
    (END, [by_ids(LINE[:3], stop_reason=7)], [("1+1", 3, "eos")]),
    (replace(END, max_tokens=3), [by_ids(LINE[:3], **DONE)], [("1+1", 3, "eos")]),
    (replace(STEP, max_step_tokens=3), [by_ids(LINE[:3], **DONE)], [("1+1", 3, "eos")]),
    # It is among them.
    (STEP, [by_ids([*LINE[:3], EOS], **DONE)], [("1+1", 4, "eos")]),
    (END, [by_ids([*LINE, EOS], **DONE)], [("1+1\n", 4, "step"), ("", 1, "eos")]),
    # A step was asked for, and its separator stopped the server, whatever name it has for that.
    (STEP, [by_ids(LINE, stop_reason=NEWLINE)], [("1+1\n", 4, "step")]),
    (STEP, [by_ids(LINE, **DONE)], [("1+1\n", 4, "step")]),
    (STEP, [by_ids(LINE)], [("1+1\n", 4, "step")]),
    # So it did where no step ends: before anything was written, or within something open.
    (STEP, [by_ids([NEWLINE], stop_reason=NEWLINE), by_ids(LINE)], [("\n1+1\n", 5, "step")]),
    (STEP, [by_ids([NEWLINE], **DONE), by_ids(LINE)], [("\n1+1\n", 5, "step")]),
    (STEP, [by_ids(OPEN, **DONE), by_ids(LINE[:1])], [("\\[1\n1", len(OPEN) + 1, "eos")]),
    # A limit is no end of the model.
    (replace(STEP, max_step_tokens=3), [by_ids(LINE[:3], "length")], [("1+1", 3, "length")]),
    (replace(END, max_tokens=3), [by_ids(LINE[:3], "length", **DONE)], [("1+1", 3, "budget")]),
]


@pytest.mark.parametrize(("params", "changes", "expected"), ENDS)
def test_a_chain_by_ids_ends_where_the_model_did(
    server: FaultyServer, connect: Connect, params: SamplingParams, changes: Any, expected: Any
) -> None:
    policy = connect("ids")
    queue = list(changes)
    server.change_next(lambda answer: queue.pop(0)(answer), len(changes))
    found = sample(policy, params)
    assert brief(found.steps) == expected
    assert not queue
    assert len(server.bodies) == len(changes)
    assert all(step.logprob is None for step in found.steps)
    assert policy.num_surplus == 0


@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
@pytest.mark.parametrize(
    ("params", "written", "expected"),
    [
        (STEP, [*LINE[:3], FOREIGN], [("1+1", 3, "eos")]),
        (STEP, [FOREIGN], [("", 0, "eos")]),
        (STEP, [*OPEN[:-1], FOREIGN], [("\\[1", len(OPEN) - 1, "eos")]),
        (END, [*LINE, *LINE[:3], FOREIGN], [("1+1\n", 4, "step"), ("1+1", 3, "eos")]),
        (END, [*LINE, FOREIGN], [("1+1\n", 4, "eos")]),
        (replace(STEP, max_step_tokens=4), [*LINE[:3], FOREIGN], [("1+1", 3, "eos")]),
    ],
)
def test_an_end_token_that_only_the_server_knows_ends_the_chain_and_is_not_in_it(
    server: FaultyServer, connect: Connect, params: Any, written: Any, expected: Any, field: str
) -> None:
    policy = connect("ids")
    server.change_next(by_ids(written, **{field: FOREIGN}))
    found = sample(policy, params)
    assert brief(found.steps) == expected
    assert all(FOREIGN not in step.token_ids for step in found.steps)
    assert policy.num_surplus == 1
    assert len(server.bodies) == 1


@pytest.mark.parametrize("params", [STEP, END])
@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
def test_a_token_that_stops_a_text_is_the_models_end_never_the_separator(
    server: FaultyServer, connect: Connect, params: SamplingParams, field: str
) -> None:
    policy = connect("text")
    server.change_next(by_text("1+1", 4, **{field: FOREIGN}))
    assert brief(sample(policy, params).steps) == [("1+1", 4, "eos")]
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("params", "change", "words"),
    [
        (STEP, by_ids(LINE[:1] * 25, "length"), "wrote 25 tokens where 24 were allowed"),
        (END, by_ids(LINE[:2] * 31, "length"), "wrote 62 tokens where 60 were allowed"),
        (STEP, by_ids([*LINE, *LINE[:3]], "length"), "wrote 3 tokens behind token .*stop_token_id"),
        (STEP, by_ids([*LINE, *LINE], **DONE), "wrote 4 tokens behind token"),
        (END, by_ids([*LINE, EOS, *LINE], "length"), f"wrote 4 tokens behind token {EOS}"),
        (STEP, by_ids([], "length"), "wrote no token"),
    ],
)
def test_a_server_that_overruns_is_refused(
    server: FaultyServer, connect: Connect, params: SamplingParams, change: Any, words: str
) -> None:
    policy = connect("ids")
    server.change_next(change)
    with pytest.raises(PolicyError, match=words):
        sample(policy, params)


@pytest.mark.parametrize("params", [STEP, END])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_text_that_goes_on_behind_its_separator_is_no_step(
    server: FaultyServer, connect: Connect, params: SamplingParams, finish: str
) -> None:
    policy = connect("text")
    server.change_next(by_text("1 + 1 = 2\nso\n#### 2", 12, finish, stop_reason=None))
    with pytest.raises(PolicyError, match=r"wrote on behind the separator '\\n'.*prompts=chat"):
        sample(policy, params)


@pytest.mark.parametrize("text", ["1+1", "1+1\n", "1+1\n\n"])
def test_a_text_may_hold_the_separator_at_its_end(
    server: FaultyServer, connect: Connect, text: str
) -> None:
    policy = connect("text")
    server.change_next(by_text(text, 4, stop_reason="\n"))
    (step,) = sample(policy, STEP).steps
    assert (step.text, step.stop) == (text.rstrip() + (text[3:] or "\n"), "step")


ROOM: list[tuple[SamplingParams, int, int, list[tuple[str, int, str]]]] = [
    (STEP, 0, 0, [("", 0, "context")]),
    (STEP, -9, 0, [("", 0, "context")]),
    (STEP, 3, 3, [("1+1", 3, "context")]),
    (STEP, 4, 4, [("1+1\n", 4, "step")]),
    (END, 4, 4, [("1+1\n", 4, "step")]),
    (END, 5, 1, [("1+1\n", 4, "step"), ("1", 1, "context")]),
    (END, 10, 2, [("1+1\n", 4, "step")] * 2 + [("1+", 2, "context")]),
    (replace(STEP, max_step_tokens=3), 3, 3, [("1+1", 3, "length")]),
    (replace(END, max_tokens=5), 5, 1, [("1+1\n", 4, "step"), ("1", 1, "budget")]),
    (replace(STEP, max_tokens=2), 3, 2, [("1+", 2, "budget")]),
]


@pytest.mark.parametrize(("params", "room", "last", "expected"), ROOM)
def test_a_text_that_fills_the_context_ends_with_it(
    server: FaultyServer,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    params: SamplingParams,
    room: int,
    last: int,
    expected: Any,
) -> None:
    length = connect("text").count_prompt_tokens("How many?") + room
    server.listed.append({"data": [{"id": "tiny", "max_model_len": length}]})
    server.listed.popleft()

    def write(path: str, body: dict[str, Any]) -> object:
        count = min(body["max_tokens"], 4)
        ended = {"stop_reason": "\n"} if count == 4 else {}
        return by_text("1+1"[:count], count, "stop" if ended else "length", **ended)(None)

    monkeypatch.setattr(server, "_write", write)
    assert brief(sample(connect("text"), params).steps) == expected
    for body in server.bodies:
        assert len(ids(body["prompt"])) + body["max_tokens"] <= length
    assert [body["max_tokens"] for body in server.bodies[-1:]] == [last][: len(server.bodies)]


def test_what_is_behind_an_end_that_the_server_cannot_see_is_surplus(
    server: FaultyServer, connect: Connect
) -> None:
    policy = connect("ids")
    server.change_next(by_ids(LINE[:1] * 20, "length"), 2)
    assert brief(sample(policy, STEP).steps) == [("1" * 16, 16, "loop")]
    assert policy.num_surplus == 4
    assert brief(sample(policy, replace(END, max_step_tokens=2)).steps) == [("11", 2, "length")]
    assert policy.num_surplus == 22


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_an_end_that_only_the_tokenizer_knows_is_an_end(
    server: FaultyServer, tmp_path: Path, prompts: Any
) -> None:
    folder = save_tiny(tmp_path)
    for name in ("config.json", "generation_config.json"):
        told = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(told | {"eos_token_id": 0}), encoding="utf-8")
    policy = OpenAIPolicy(
        base_url=server.url,
        model="tiny",
        tokenizer=folder,
        prompt_format={"system": None},
        prompts=prompts,
    )
    ids = [*tiny_tokenizer().encode("7", add_special_tokens=False), EOS]
    choice = {"text": "7", "finish_reason": "stop", "stop_reason": None, "token_ids": ids}
    usage = {"prompt_tokens": 9, "completion_tokens": len(ids)}
    server.change_next(lambda _: {"choices": [choice], "usage": usage})
    steps = sample(policy, END).steps
    policy.close()
    assert [(step.text, step.stop) for step in steps] == [("7", "eos")]
