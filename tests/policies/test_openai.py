"""The policy on a server that misbehaves."""

from __future__ import annotations

import asyncio
import datetime
import math
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.faulty import EOS, FaultyServer, dropping_connections, running
from support.tiny import save_tiny, tiny_tokenizer
from support.tokenizers import llama_tokenizer

from stepsearch import Budget, ConfigurationError, Engine, ModelNotFoundError, SamplingParams
from stepsearch.policies import openai_client
from stepsearch.policies.openai import OpenAIPolicy
from stepsearch.policies.openai_chains import counted
from stepsearch.policies.openai_client import OpenAIClient
from stepsearch.policies.openai_replies import Reply
from stepsearch.search.background import background
from stepsearch.search.contracts import Sample
from stepsearch.search.errors import PolicyError
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.search.strategies.dvts import Dvts
from stepsearch.search.strategies.greedy import Greedy
from stepsearch.search.strategies.mcts import Mcts
from stepsearch.search.strategies.particle import Particle
from stepsearch.search.strategies.rebase import Rebase
from stepsearch.search.strategies.refine import Refine
from stepsearch.search.tree import ROOT, Tree
from stepsearch.testing.policy import check_policy
from stepsearch.verifiers.rule import RuleVerifier

QUESTION = "How many?"
STEP = SamplingParams(temperature=1.0, max_step_tokens=24)
END = replace(STEP, until="end", max_tokens=60)
EVERYTHING = {"ids", "stop_reason", "logprobs", "usage"}
FAST = {"first_wait": 0.01, "timeout": 0.5, "attempts": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running(FaultyServer(tiny_tokenizer(), set(EVERYTHING))) as found:
        yield found


Connect = Callable[..., OpenAIPolicy]


@pytest.fixture
def connect(server: FaultyServer, folder: Path) -> Iterator[Connect]:
    made: list[OpenAIPolicy] = []
    common = {"base_url": server.url, "model": "tiny", "tokenizer": folder, "server": FAST}

    def make(**settings: Any) -> OpenAIPolicy:
        policy = OpenAIPolicy(**{"prompt_format": {"system": None}} | common | settings)
        made.append(policy)
        return policy

    yield make
    for policy in made:
        policy.close()


def sample(
    policy: Any, params: SamplingParams, seeds: Sequence[int], question: str = QUESTION
) -> list[Sample]:
    async def run() -> list[Sample]:
        chain = Tree(question).chain(ROOT)
        found = [s async for s in policy.sample([chain] * len(seeds), seeds, params)]
        return sorted(found, key=lambda s: s.request)

    return background.submit(run()).result(timeout=60)


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_it_keeps_the_contract(server: FaultyServer, connect: Connect, prompts: Any) -> None:
    check_policy(connect(prompts=prompts))


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_steps_one_by_one_join_to_what_was_written(
    server: FaultyServer, connect: Connect, prompts: Any
) -> None:
    policy = connect(prompts=prompts)
    for found in sample(policy, END, range(20)):
        for step in found.steps[:-1]:
            assert step.stop == "step"
            assert step.text.endswith("\n")
        assert found.steps[-1].stop in ("eos", "budget", "length", "loop")
        assert all(step.num_tokens for step in found.steps)
        assert found.prompt_tokens is not None
        assert (found.prompt_tokens_reused or 0) > 0


@pytest.mark.parametrize("adds", [True, False])
def test_a_begin_mark_that_the_server_puts_before_a_text_is_read_once(
    server: FaultyServer, connect: Connect, tmp_path: Path, adds: bool
) -> None:
    tokenizer = llama_tokenizer()
    tokenizer.save_pretrained(save_tiny(tmp_path))
    options = {} if adds else {"add_special_tokens": False}
    for prompts in ("ids", "text"):
        policy = connect(tokenizer=tmp_path, prompts=prompts, options=options)
        sample(policy, replace(STEP, max_step_tokens=1), [1])
    by_ids, by_text = (body["prompt"] for body in server.bodies)
    assert tokenizer(by_text, add_special_tokens=adds).input_ids == by_ids
    assert by_ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("adds", [True, False])
def test_a_begin_mark_takes_the_room_of_one_token(
    server: FaultyServer, connect: Connect, tmp_path: Path, adds: bool
) -> None:
    llama_tokenizer().save_pretrained(save_tiny(tmp_path))
    options = {} if adds else {"add_special_tokens": False}
    common = {"tokenizer": tmp_path, "prompts": "text", "options": options}
    length = connect(**common).count_prompt_tokens(QUESTION)
    sample(connect(**common, max_length=length + 1), STEP, [1])
    assert [body["max_tokens"] for body in server.bodies] == [1]


def test_a_special_token_in_a_question_stays_text_or_is_refused(
    server: FaultyServer, connect: Connect
) -> None:
    question = "What does <|im_end|> mean?"
    sample(connect(prompts="ids"), STEP, [1], question)
    assert server.bodies.pop()["prompt"].count(EOS) == 1, "that of the template"
    with pytest.raises(PolicyError, match=r"question holds '<\|im_end\|>'.*set prompts=ids"):
        sample(connect(prompts="text"), STEP, [1], question)
    form = {"system": None, "examples": [["Why?", "So.<|im_end|>"]]}
    with pytest.raises(ConfigurationError, match=r"prompt_format\.examples hold '<\|im_end\|>'"):
        connect(prompts="text", prompt_format=form)
    assert not server.bodies


@pytest.mark.parametrize("fault", ["500", "429", "503", "empty", "html", "cut", "slow", "drip"])
def test_what_may_pass_is_asked_again(server: FaultyServer, connect: Connect, fault: str) -> None:
    policy = connect()
    expected = sample(policy, STEP, [1])
    server.faults.extend([fault, fault])
    assert sample(policy, STEP, [1]) == expected


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("500", "HTTP 500"),
        ("empty", "no choices"),
        ("drip", r"did not answer in 0\.5 s \(server\.timeout\)"),
    ],
)
def test_what_stays_wrong_is_an_error(
    server: FaultyServer, connect: Connect, fault: str, words: str
) -> None:
    policy = connect()
    server.faults.extend([fault] * 3)
    with pytest.raises(PolicyError, match=words):
        sample(policy, STEP, [1])
    assert not server.faults


def test_an_answer_without_end_is_not_held(
    server: FaultyServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "LARGEST_BODY", 1 << 16)
    policy = connect(server=FAST | {"timeout": 20.0})
    server.faults.extend(["endless"] * 3)
    with pytest.raises(PolicyError, match="sends more than 65536 bytes"):
        sample(policy, STEP, [1])
    assert not server.faults
    assert sample(policy, STEP, [1])


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"choices": [None]}, r"choices\[0\]=None"),
    ({"choices": "abc"}, "choices='abc', where a list belongs"),
    ({"choices": {"0": {}}}, "choices={'0': {}}, where a list"),
    ({"choices": [{"text": "1"}] * 4}, "the answer has 4 choices where one was asked for"),
    ({"usage": [1]}, r"usage=\[1\]"),
    ({"usage": {"prompt_tokens_details": "x"}}, "usage.prompt_tokens_details='x'"),
    ({"usage": {"prompt_tokens": "5"}}, "usage.prompt_tokens='5'"),
    (
        {"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}},
        "cached_tokens=6, where a whole number below 6",
    ),
]
CHOICES: list[tuple[dict[str, Any], str]] = [
    *(({"token_ids": ids}, "token_ids") for ids in ("abc", {"a": 1}, 5)),
    *(({"token_ids": [i]}, "token_ids") for i in ("a", 10**12, -5, 1.5, None, True, [1])),
    ({"message": None}, "message=None"),
    ({"text": 5}, "text=5, where a text"),
    ({"text": "\ud800"}, "half a character"),
    ({"finish_reason": "stop", "stop_reason": [1]}, r"stop_reason=\[1\]"),
    ({"logprobs": [1]}, r"logprobs=\[1\]"),
    ({"logprobs": {"content": [None]}}, "logprobs.content"),
    ({"logprobs": {"content": [{"token": 1, "logprob": -1.0}]}}, "the text of a token=1"),
    ({"logprobs": {"content": [{"token": "1", "logprob": 0.5}]}}, "=0.5, .*never positive"),
    ({"logprobs": {"tokens": ["1"], "token_logprobs": [0.5]}}, "=0.5, .*never positive"),
    *(
        ({"logprobs": {"content": [{"token": "1", "logprob": v}]}}, "log-probability is -")
        for v in (-math.inf, -1e39)
    ),
    ({"logprobs": {"content": [{"token": "1", "logprob": "x"}]}}, "the logprob of a token='x'"),
]


@pytest.mark.parametrize(
    ("part", "words", "inside"),
    [*((*case, False) for case in MALFORMED), *((*case, True) for case in CHOICES)],
)
def test_a_malformed_answer_is_asked_again_and_then_an_error(
    server: FaultyServer, connect: Connect, part: Any, words: str, inside: bool
) -> None:
    def change(answer: Any) -> object:
        return answer | ({"choices": [answer["choices"][0] | part]} if inside else part)

    policy = connect()
    expected = sample(policy, STEP, [1])
    server.change_next(change, 2)
    assert sample(policy, STEP, [1]) == expected
    server.faults.extend(["changed"] * 3)
    with pytest.raises(PolicyError, match=words):
        sample(policy, STEP, [1])
    assert not server.faults


@pytest.mark.parametrize("count", ["3", 3.5, 14.0, -5, True])
def test_a_malformed_number_of_tokens_matters_only_where_no_ids_are_sent(
    server: FaultyServer, connect: Connect, count: object
) -> None:
    expected = sample(connect(), STEP, [1])[0].steps
    usage = {"completion_tokens": count}
    server.change_next(lambda answer: answer | {"usage": usage}, 3)
    assert sample(connect(), STEP, [1])[0].steps == expected
    server.faults.clear()
    server.sends.discard("ids")
    policy = connect(prompts="text")
    expected = sample(policy, STEP, [1])[0].steps
    server.faults.extend(["changed"] * 2)
    assert sample(policy, STEP, [1])[0].steps == expected
    server.faults.extend(["changed"] * 3)
    with pytest.raises(PolicyError, match=f"completion_tokens={count!r}"):
        sample(policy, STEP, [1])
    assert not server.faults


def test_a_body_nested_without_end_is_an_error(server: FaultyServer, connect: Connect) -> None:
    policy = connect()
    server.change_next(lambda answer: "[" * 100_000, 3)
    with pytest.raises(PolicyError, match=r"no JSON: \[+\.\.\.$"):
        sample(policy, STEP, [1])


@pytest.mark.parametrize("data", [[None], "abc", {"a": 1}, 5, [{"id": 5}]])
def test_a_list_of_models_that_cannot_be_read_is_told(
    server: FaultyServer, connect: Connect, data: object
) -> None:
    server.listed.extendleft([{"data": data}] * 5)
    with pytest.raises(ModelNotFoundError, match=r"base_url=.*the list of models cannot be read"):
        connect()
    assert len(server.listed) == 3, "it was asked three times"
    assert sample(connect(), STEP, [1]), "and twice, and had a good one then"


@pytest.mark.parametrize("fault", [503, 429, "cut"])
def test_a_list_of_models_that_does_not_come_is_asked_for_again(
    server: FaultyServer, connect: Connect, fault: object
) -> None:
    server.listed.extendleft([fault] * 2)
    with pytest.raises(ModelNotFoundError, match="has tiny"):
        connect(model="big")
    server.listed.extendleft([fault] * 3)
    with pytest.raises(ModelNotFoundError, match=r"base_url=.*list of models cannot be read: "):
        connect()
    assert len(server.listed) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 409, 410, 418, 422, 451, 501])
def test_a_server_may_have_no_list_of_models(
    server: FaultyServer, connect: Connect, status: int
) -> None:
    server.listed.appendleft(status)
    assert sample(connect(), STEP, [1])
    assert len(server.listed) == 1


@pytest.mark.parametrize("status", [505, 520])
def test_a_list_of_models_that_is_refused_is_told(
    server: FaultyServer, connect: Connect, status: int
) -> None:
    server.listed.appendleft(status)
    with pytest.raises(ModelNotFoundError, match=rf"base_url=.*HTTP {status}: no"):
        connect()


@pytest.mark.parametrize("length", [True, -5, 0, "512", 1.5])
def test_a_length_that_cannot_be_is_refused_unless_one_is_set(
    server: FaultyServer, connect: Connect, length: object
) -> None:
    server.listed = deque([{"data": [{"id": "tiny", "max_model_len": length}]}])
    with pytest.raises(ConfigurationError, match=rf"max_model_len={length!r}, .*set max_length"):
        connect()
    assert sample(connect(max_length=512), STEP, [1])


SIZES = [
    *[(name, value) for name in ("max_length", "num_parameters") for value in (-5, 0, 1.5, "abc")],
    *[("num_parameters", value) for value in (True, float("nan"), float("inf"))],
]


@pytest.mark.parametrize(("name", "value"), SIZES)
def test_a_size_that_cannot_be_is_refused_before_anything_is_asked(
    folder: Path, name: str, value: Any
) -> None:
    settings = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "tokenizer": folder}
    with pytest.raises(ConfigurationError, match=rf"policy\.{name}={value!r} must be a whole"):
        OpenAIPolicy(**settings, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((n, v) for n in ("attempts", "concurrency") for v in (0, 2.5, "3", True, None)),
        *((n, v) for n in ("timeout", "first_wait") for v in (0, "10", True, None, float("nan"))),
        ("timeout", float("inf")),
    ],
)
def test_a_number_of_a_server_that_cannot_be_is_refused(
    folder: Path, name: str, value: Any
) -> None:
    settings = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "tokenizer": folder}
    with pytest.raises(ConfigurationError, match=rf"server\.{name}={value!r} must be a"):
        OpenAIPolicy(**settings, server={name: value})


def test_a_name_of_a_server_that_does_not_exist_is_told(folder: Path) -> None:
    settings = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "tokenizer": folder}
    with pytest.raises(ConfigurationError, match=r"server\.retries is unknown; known: concurrency"):
        OpenAIPolicy(**settings, server={"retries": 3})


@pytest.mark.parametrize("name", ["server", "options"])
def test_settings_of_a_server_are_a_mapping(folder: Path, name: str) -> None:
    settings = {"base_url": "http://127.0.0.1:9/v1", "model": "tiny", "tokenizer": folder}
    with pytest.raises(ConfigurationError, match=rf"{name}=5 must be a mapping of names"):
        OpenAIPolicy(**settings, **{name: 5})


def test_a_number_of_parameters_may_be_written_with_an_exponent(connect: Connect) -> None:
    assert connect(num_parameters=1.5e9).spec.num_parameters == 1_500_000_000
    assert connect(num_parameters=None).spec.num_parameters is None


def test_a_refusal_is_not_repeated(server: FaultyServer, connect: Connect) -> None:
    policy = connect()
    server.faults.append("400")
    with pytest.raises(PolicyError, match="HTTP 400"):
        sample(policy, STEP, [1])
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [
        *((told, 0.5, 1.0) for told in ("", "nan", "inf", "-inf", "-5", "0", "soon", "0.1")),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0.5, 1.0),
        ("Fri, 31 Dec 2999 23:59:59 GMT", 30.0, 30.0),
        ("Fri, 31 Dec 2999 23:59:59", 30.0, 30.0),
        ("7", 7.0, 7.0),
        ("1e9", 30.0, 30.0),
    ],
)
def test_a_wait_is_what_a_server_asks_for_or_the_backoff(
    connect: Connect, retry_after: str, least: float, most: float
) -> None:
    busy = ConnectionError("HTTP 429")
    busy.add_note(retry_after)
    client = connect(server={"first_wait": 1.0}).client
    assert least <= client._wait(1, busy) <= most


def test_a_date_to_wait_for_is_waited_for(connect: Connect) -> None:
    busy = ConnectionError("HTTP 429")
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)
    busy.add_note(format_datetime(then, usegmt=True))
    assert 10 < connect(server={"first_wait": 1.0}).client._wait(1, busy) <= 20


def in_child(policy: OpenAIPolicy, queue: Any) -> None:
    found = [sample(policy, STEP, [seed]) for seed in range(5)]
    queue.put(len(found))


@pytest.mark.skipif(sys.platform != "linux", reason="forking is for Linux")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(connect: Connect) -> None:
    policy = connect()
    sample(policy, STEP, list(range(8)))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=in_child, args=(policy, queue))
    process.start()
    assert queue.get(timeout=30) == 5
    process.join(timeout=30)
    queue.close()
    queue.join_thread()
    assert len(sample(policy, STEP, list(range(8)))) == 8


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_told_and_not_repeated(
    server: FaultyServer, connect: Connect, status: int
) -> None:
    policy = connect()
    server.faults.append(f"{status}")
    words = rf"HTTP {status}: .*/v1/completions is redirected to /elsewhere.*set base_url"
    with pytest.raises(PolicyError, match=words):
        sample(policy, STEP, [1])
    assert len(server.bodies) == 1
    server.moved = True
    with pytest.raises(ModelNotFoundError, match=r"base_url=.*HTTP 307: .*set base_url"):
        connect()


def test_an_empty_body_is_told(server: FaultyServer, connect: Connect) -> None:
    policy = connect()
    server.faults.extend(["blank"] * 3)
    with pytest.raises(PolicyError, match="no JSON: its body is empty"):
        sample(policy, STEP, [1])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:99999/v1", "port 99999 must be between 1 and 65535"),
        ("http://127.0.0.1:0/v1", "port 0 must be"),
        ("http://127.0.0.1:abc/v1", "is no address: Invalid port: 'abc'"),
        ("http://[::1/v1", "is no address"),
        ("http:///v1", "names no host"),
        ("http://127.0.0.1:9/v1?version=2", "a query or a fragment"),
        ("http://127.0.0.1:9/v1#top", "a query or a fragment"),
        ("http://127.0.0.1:9/v1?", "a query or a fragment"),
        (5, "must be a text"),
    ],
)
def test_an_address_that_cannot_be_is_told(folder: Path, url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        OpenAIPolicy(base_url=url, model="tiny", tokenizer=folder)
    assert str(error.value).startswith(f"base_url={url!r}")


def test_a_password_in_an_address_is_refused_and_not_shown(folder: Path) -> None:
    address = "http://me:sk-secret@127.0.0.1:9/v1"
    with pytest.raises(ConfigurationError, match="api_key_variable") as error:
        OpenAIPolicy(base_url=address, model="tiny", tokenizer=folder)
    assert "sk-secret" not in str(error.value)


@pytest.mark.parametrize("key", ["sk-secret", "sk-secret\n", "\t sk-secret\r\n"])
def test_a_key_is_sent_without_the_space_around_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    client = connect(api_key_variable="SOME_KEY").client
    assert client._http.headers["Authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize(
    "key", ["sk-secr\u00e9t", "sk-secr\r\nX-More: 1", "sk-secr\x7f", "sk-secr\udcff"]
)
def test_a_key_that_no_header_may_hold_is_told_and_not_shown(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(ConfigurationError, match="api_key_variable=SOME_KEY") as error:
        connect(api_key_variable="SOME_KEY")
    assert "secr" not in str(error.value)


@pytest.mark.parametrize("key", ["", " \n"])
def test_no_key_is_sent_where_there_is_none(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    assert "Authorization" not in connect(api_key_variable="SOME_KEY").client._http.headers


def test_one_filtered_choice_ends_the_problem_with_the_reason(
    server: FaultyServer, connect: Connect
) -> None:
    policy = connect(server=FAST | {"concurrency": 1})
    server.change = lambda answer: {
        "choices": [answer["choices"][0] | {"finish_reason": "content_filter"}]
    }
    server.faults.extend(["none", "none", "changed", "none"])
    solution = Engine(policy=policy, strategy=BestOfN(n=4), sampling=END, select="majority").solve(
        QUESTION
    )
    assert solution.stop == "policy_failed"
    assert "finish_reason='content_filter' is neither stop nor length" in (solution.error or "")
    assert len(server.bodies) <= 4, "it is not asked again"
    assert len(solution.candidates) < 4, "a filtered answer has no vote"


def test_requests_at_once_are_bounded(server: FaultyServer, connect: Connect) -> None:
    policy = connect(server=FAST | {"concurrency": 3, "timeout": 20.0})
    server.gathers = 3
    sample(policy, STEP, range(30))
    assert server.most_at_once == 3


def test_leaving_early_drops_the_requests(server: FaultyServer, connect: Connect) -> None:
    policy = connect(server=FAST | {"timeout": 60.0})
    server.faults.extend(["none", "slow", "slow"])

    async def leave() -> None:
        chain = Tree(QUESTION).chain(ROOT)
        stream = policy.sample([chain] * 3, [1, 2, 3], STEP)
        await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0.3)

    background.submit(leave()).result(timeout=10)
    assert not policy.client._slots.locked()
    assert policy.client._slots._value == 64


def test_a_server_without_ids_is_refused_by_ids_and_works_by_text(
    server: FaultyServer, connect: Connect
) -> None:
    server.sends.discard("ids")
    with pytest.raises(PolicyError, match="prompts=text"):
        sample(connect(), STEP, [1])
    found = sample(connect(prompts="text"), STEP, [1])
    assert found[0].steps[0].token_ids == ()
    assert all(isinstance(body["prompt"], str) for body in server.bodies[1:])


def test_how_a_text_ended_is_never_guessed(server: FaultyServer, connect: Connect) -> None:
    server.sends -= {"ids", "stop_reason"}
    with pytest.raises(PolicyError, match="stop_reason"):
        sample(connect(prompts="text"), STEP, range(8))


def test_a_budget_needs_the_number_of_tokens(server: FaultyServer, connect: Connect) -> None:
    server.sends -= {"ids", "usage"}
    with pytest.raises(PolicyError, match="completion_tokens"):
        sample(connect(prompts="text"), STEP, [1])


def test_a_number_of_tokens_that_cannot_be_is_refused() -> None:
    stopped = Reply(
        text="", ids=None, pieces=None, logprobs=None, num_tokens=0, end="stopped",
        end_id=None, prompt_tokens=None, cached=None,
    )  # fmt: skip
    for reply in (stopped, stopped._replace(text="so", end="length")):
        with pytest.raises(PolicyError, match="completion_tokens"):
            counted(reply, 9)
    assert counted(stopped._replace(end="eos"), 9) == 0


def test_a_chat_is_refused_for_steps_and_writes_whole_answers(
    server: FaultyServer, connect: Connect
) -> None:
    policy = connect(prompts="chat")
    with pytest.raises(PolicyError, match="cannot go on with a partial answer"):
        sample(policy, STEP, [1])
    assert not server.bodies
    whole = sample(policy, END, range(8))
    for found in whole:
        assert "".join(step.text for step in found.steps[:-1]).count("\n") >= len(found.steps) - 1
        assert sum(step.num_tokens for step in found.steps) <= END.max_tokens
    server.sends.discard("logprobs")
    in_one = sample(policy, END, range(8))
    for found, one in zip(whole, in_one, strict=True):
        assert len(one.steps) == 1
        if found.steps[-1].stop in ("eos", "budget"):
            assert one.steps[0].text == "".join(step.text for step in found.steps)


@pytest.mark.parametrize(
    ("strategy", "prompts"),
    [(Beam(n=4, width=2), "ids"), (Beam(n=4, width=2), "text"), (BestOfN(n=4), "chat")],
)
def test_searches_keep_their_budget(
    server: FaultyServer, connect: Connect, strategy: Any, prompts: Any
) -> None:
    policy = connect(prompts=prompts)
    solution = Engine(
        policy=policy,
        strategy=strategy,
        verifier=RuleVerifier(),
        budget=Budget(policy_tokens=50),
        sampling=replace(STEP, max_tokens=30),
    ).solve(QUESTION)
    assert solution.error is None
    assert 0 < solution.usage.policy_tokens <= 50


STEP_SEARCHES = [Beam(), Dvts(), Mcts(), Rebase(), Particle(), Refine()]


@pytest.mark.parametrize("strategy", STEP_SEARCHES, ids=lambda s: type(s).__name__)
def test_step_search_on_a_chat_is_refused_before_a_problem(
    server: FaultyServer, connect: Connect, strategy: Any
) -> None:
    policy = connect(prompts="chat")
    with pytest.raises(ConfigurationError, match="cannot go on with a partial one"):
        Engine(policy=policy, strategy=strategy, verifier=RuleVerifier())
    for whole in (BestOfN(n=2), Greedy()):
        Engine(policy=policy, strategy=whole)


def test_a_wrong_address_or_name_is_told_at_once(
    server: FaultyServer, folder: Path, connect: Connect
) -> None:
    with pytest.raises(ModelNotFoundError, match="has tiny"):
        OpenAIPolicy(base_url=server.url, model="big", tokenizer=folder)
    with pytest.raises(ModelNotFoundError, match=r"tokenizer here.*policy\.tokenizer"):
        OpenAIPolicy(base_url=server.url, model="tiny", tokenizer="/no/folder")
    with pytest.raises(ModelNotFoundError, match="no server"):
        OpenAIPolicy(base_url="http://127.0.0.1:9/v1", model="tiny", tokenizer=folder)
    with pytest.raises(ConfigurationError, match="http://"):
        OpenAIPolicy(base_url="localhost:1", model="tiny", tokenizer=folder)
    with pytest.raises(ConfigurationError, match="prompts='words'"):
        connect(prompts="words")


def test_a_host_that_drops_connections_is_told_without_asking_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenAIClient, "_wait", lambda *_: pytest.fail("it is asked again"))
    words = r"no server answers there .*no connection in 0\.25 s \(half of server\.timeout\)"
    with dropping_connections() as url, pytest.raises(ModelNotFoundError, match=words):
        connect(base_url=url)


def test_a_request_is_repeated_where_no_connection_was_made(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = connect()
    expected = sample(policy, STEP, [1])
    stream = policy.client._http.stream
    failures = [httpx2.ConnectTimeout(""), httpx2.ConnectError("refused")]

    def fail_first(*args: Any, **settings: Any) -> Any:
        if failures:
            raise failures.pop()
        return stream(*args, **settings)

    monkeypatch.setattr(policy.client._http, "stream", fail_first)
    assert sample(policy, STEP, [1]) == expected
    assert not failures


REFUSALS = [
    ("401", "ids", r"HTTP 401: .*/v1/completions\); the key is that of .*SOME_KEY, which is set"),
    ("404", "ids", r"correct policy\.base_url, .*policy\.prompts=chat search=best_of_n"),
    ("404", "chat", r"correct policy\.base_url, or set policy\.prompts=ids"),
    ("400", "ids", r"takes no ids as a prompt needs policy\.prompts=text"),
    ("400", "text", r"HTTP 400: .*/v1/completions\)$"),
]


@pytest.mark.parametrize(("fault", "prompts", "words"), REFUSALS)
def test_a_refusal_says_where_it_came_from_and_what_to_look_at(
    server: FaultyServer,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    prompts: Any,
    words: str,
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    policy = connect(prompts=prompts, api_key_variable="SOME_KEY")
    server.faults.append(fault)
    with pytest.raises(PolicyError, match=words) as caught:
        sample(policy, END if prompts == "chat" else STEP, [1])
    assert "sk-secret" not in str(caught.value)


def test_a_refused_answer_shows_what_the_server_said(
    server: FaultyServer, connect: Connect
) -> None:
    told = [{"token": "word", "logprob": -0.1}] * 50
    choice = {"finish_reason": "stop", "logprobs": {"content": told}}
    message = {"content": None, "refusal": "I may not."}
    server.change_next(lambda _: {"choices": [choice | {"message": message}], "usage": {}})
    with pytest.raises(PolicyError, match="I may not"):
        sample(connect(prompts="chat"), END, [1])
