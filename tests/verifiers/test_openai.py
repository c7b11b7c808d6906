"""Verifiers behind a server: whatever it sends, a score is the right one or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.faulty import running
from support.judge_server import JudgeServer, outputs
from support.tiny import save_tiny, tiny_tokenizer
from support.tokenizers import mistral_tokenizer

from stepsearch import Budget, ConfigurationError, Engine, ModelNotFoundError
from stepsearch.policies.openai_client import OpenAIClient
from stepsearch.policies.scripted import ScriptedPolicy, scripted_step
from stepsearch.search.background import background
from stepsearch.search.contracts import StepScores
from stepsearch.search.errors import VerifierError
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import ROOT, Chain, Tree
from stepsearch.search.types import Step
from stepsearch.testing.verifier import check_verifier
from stepsearch.verifiers.openai import OpenAIOutcomeVerifier, OpenAIVerifier
from stepsearch.verifiers.stepwise import chain_of

QUESTION = "How many?"
STEPS = ["1 + 1 = 2", "2 + 2 = 4", "The answer is 4."]
FAST = {"first_wait": 0.01, "timeout": 0.5, "attempts": 3}
PROMPT: dict[str, Any] = {"name": "tiny", "prompt": "chat", "mark": "\n"}
TOKENS = PROMPT | {"head": {"good_token": "+", "bad_token": "-"}}
CLASSES = PROMPT | {"head": {"num_outputs": 2, "activation": "softmax", "good": 1}}
OUTCOME = {"name": "tiny", "head": {"num_outputs": 2, "activation": "softmax", "good": 1}}

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    tokenizer = tiny_tokenizer()
    made = JudgeServer(tokenizer)
    (good,), (bad,) = (tokenizer.encode(t, add_special_tokens=False) for t in "+-")
    (made.mark,) = tokenizer.encode("\n", add_special_tokens=False)
    made.tokens = (good, bad)
    with running(made) as found:
        yield found


@pytest.fixture
def connect(server: JudgeServer, folder: Path) -> Iterator[Connect]:
    made: list[Any] = []

    def make(kind: Any = OpenAIVerifier, **settings: Any) -> Any:
        common = {"base_url": server.url, "model": "tiny", "tokenizer": folder, "server": FAST}
        made.append(kind(**{"format": TOKENS, "selfcheck": False} | common | settings))
        server.bodies.clear()
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


def score(verifier: Any, *chains: Chain) -> Sequence[StepScores]:
    async def run() -> Sequence[StepScores]:
        found: Sequence[StepScores] = await verifier.score(chains)
        return found

    return background.submit(run()).result(timeout=60)


def expected(verifier: Any, chain: Chain, good: int) -> list[float]:
    """A softmax over the server's two numbers for every prefix that ends where a score is read."""
    encoded = verifier.encode(chain)
    prefixes = [encoded.ids[: at + 1] for at in encoded.positions]
    pairs = [outputs(ids, 2) for ids in prefixes]
    return [math.exp(pair[good]) / sum(map(math.exp, pair)) for pair in pairs]


WAYS: list[tuple[dict[str, Any], str, str, int]] = [
    ({"format": TOKENS}, "form", "asked", 0),
    ({"format": TOKENS}, "form", "top", 0),
    ({"format": TOKENS}, "form", "content", 0),
    ({"format": CLASSES}, "rows", "all", 1),
    ({"format": CLASSES}, "rows", "marks", 1),
    ({"format": CLASSES, "route": "classify"}, "rows", "all", 1),
]


@pytest.mark.parametrize(("settings", "name", "value", "good"), WAYS)
def test_a_score_is_read_at_its_place_from_the_ids_of_the_format(
    server: JudgeServer, connect: Connect, settings: Any, name: str, value: str, good: int
) -> None:
    setattr(server, name, value)
    verifier = connect(**settings)
    chain = chain_of(f"{QUESTION}\n\n", STEPS)
    (scores,) = score(verifier, chain)
    assert scores.values == pytest.approx(expected(verifier, chain, good), abs=1e-6)
    assert all("cache_salt" not in body for body in server.bodies)
    check_verifier(connect(**settings | {"selfcheck": True}))


def test_an_outcome_is_one_score_of_the_last_id(server: JudgeServer, connect: Connect) -> None:
    verifier = connect(OpenAIOutcomeVerifier, format=OUTCOME, selfcheck=True)
    chain = chain_of(QUESTION, STEPS)
    (scores,) = score(verifier, chain)
    bad, good = outputs(verifier.encode(chain).ids, 2)
    assert scores.values == pytest.approx([math.exp(good) / (math.exp(good) + math.exp(bad))])
    check_verifier(verifier)


def test_tokens_are_those_that_the_server_tells(server: JudgeServer, connect: Connect) -> None:
    verifier, chain = connect(), chain_of(QUESTION, STEPS)
    (unknown,) = score(verifier, chain)
    assert (unknown.tokens, unknown.tokens_reused) == (None, None)
    server.cached = 7
    (known,) = score(verifier, chain)
    lengths = [at + 1 for at in verifier.encode(chain).positions]
    assert (known.tokens, known.tokens_reused) == (sum(lengths) - 21, 21)
    pooled = connect(format=CLASSES)
    (whole,) = score(pooled, chain)
    assert (whole.tokens, whole.tokens_reused) == (len(pooled.encode(chain).ids), 0)


@pytest.mark.parametrize("fault", ["500", "429", "empty", "html", "cut", "slow", "drip"])
@pytest.mark.parametrize("format", [TOKENS, CLASSES])
def test_what_may_pass_is_asked_again(
    server: JudgeServer, connect: Connect, fault: str, format: Any
) -> None:
    verifier, chain = connect(format=format), chain_of(QUESTION, STEPS)
    before = score(verifier, chain)
    server.faults.extend([fault, fault])
    assert score(verifier, chain) == before


def test_a_server_out_of_reach_is_an_error_never_a_score(
    server: JudgeServer, connect: Connect
) -> None:
    verifier = connect()
    server.faults.extend(["503"] * 3)
    with pytest.raises(ConnectionError, match="HTTP 503"):
        score(verifier, chain_of(QUESTION, STEPS[:1]))
    server.faults.extend(["slow"] * 3)
    with pytest.raises(TimeoutError, match=r"did not answer in 0\.5 s"):
        score(verifier, chain_of(QUESTION, STEPS[:1]))


def test_a_search_ends_when_the_server_refuses_for_good(
    server: JudgeServer, connect: Connect
) -> None:
    verifier = connect()
    server.faults.append("401")
    solution = Engine(
        policy=ScriptedPolicy(lambda chain, seed: scripted_step(f"{seed % 9} + 1\n")),
        verifier=verifier,
        strategy=Beam(n=2, width=1),
        budget=Budget(policy_tokens=50),
    ).solve(QUESTION)
    assert solution.stop == "verifier_failed"
    assert "HTTP 401" in (solution.error or "")


def test_a_refused_input_fails_alone(server: JudgeServer, connect: Connect) -> None:
    verifier = connect(server=FAST | {"concurrency": 1})
    chains = [chain_of(f"{QUESTION} {n}", STEPS[:1]) for n in range(3)]
    good = score(verifier, *chains)
    server.faults.extend(["none", "400"])
    found = score(verifier, *chains)
    failed = [s.failure for s in found if s.failure is not None]
    assert [f.kind for f in failed] == ["missing"]
    assert "HTTP 400" in failed[0].message
    assert [s for s in found if s.failure is None] == [
        g for g, s in zip(good, found, strict=True) if s.failure is None
    ]


@pytest.mark.parametrize("settings", [{}, {"format": CLASSES, "route": "classify"}])
def test_where_one_request_of_a_chain_fails_the_others_are_dropped(
    server: JudgeServer, connect: Connect, settings: Any
) -> None:
    verifier = connect(**settings, server=FAST | {"timeout": 20.0})
    server.faults.extend(["slow", "slow", "401"])
    with pytest.raises(VerifierError, match="HTTP 401"):
        score(verifier, chain_of(QUESTION, STEPS))
    assert not server.faults
    assert verifier._body.client._slots._value == 64


def test_a_token_that_is_not_told_is_no_score(server: JudgeServer, connect: Connect) -> None:
    verifier = connect()
    server.form = "others"
    (found,) = score(verifier, chain_of(QUESTION, STEPS))
    assert found.failure is not None
    assert (found.failure.kind, found.values, found.tokens) == ("missing", (), None)
    assert "not among the 1 most likely" in found.failure.message


@pytest.fixture
def twins(server: JudgeServer, tmp_path: Path) -> dict[str, Any]:
    """Settings of a verifier whose tokens have twins: a byte of the same text."""
    tokenizer = mistral_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    server._tokenizer, server.tokens = tokenizer, (260, 261)
    assert tokenizer.decode([260]) == tokenizer.decode([46]) == "+"
    plain = {"prompt": "plain", "joiner": " ", "separator": "\n", "joined": True, "mark": "+"}
    return {"tokenizer": tmp_path, "format": TOKENS | plain}


@pytest.mark.parametrize("form", ["asked", "content"])
def test_a_token_whose_text_others_have_is_read_by_its_id(
    server: JudgeServer, connect: Connect, twins: dict[str, Any], form: str
) -> None:
    server.form = form
    verifier, chain = connect(**twins), chain_of(QUESTION, STEPS)
    (scores,) = score(verifier, chain)
    assert scores.values == pytest.approx(expected(verifier, chain, 0), abs=1e-6)


def test_a_token_whose_text_others_have_is_never_read_by_its_text(
    server: JudgeServer, connect: Connect, twins: dict[str, Any]
) -> None:
    verifier = connect(**twins)
    server.form = "top"
    (found,) = score(verifier, chain_of(QUESTION, STEPS))
    assert found.failure is not None
    assert (found.failure.kind, found.values) == ("missing", ())
    words = r"'\+' is the text of the tokens \[46, 260\] alike"
    with pytest.raises(VerifierError, match=f"{words}.*verifier.base_url"):
        connect(**twins)


def test_a_text_that_the_server_tells_twice_is_no_score(
    server: JudgeServer, connect: Connect
) -> None:
    verifier = connect()
    top = [{"token": token, "logprob": -1.0} for token in "+-+"]
    told = {"logprobs": {"content": [{"top_logprobs": top}]}}
    server.change_next(lambda answer: answer | {"choices": [told]})
    (found,) = score(verifier, chain_of(QUESTION, STEPS[:1]))
    assert found.failure is not None
    assert found.failure.kind == "missing"
    assert "'+' (13) 2 times" in found.failure.message


@pytest.mark.parametrize(
    "settings", [{"format": CLASSES}, {"format": CLASSES, "route": "classify"}]
)
def test_a_null_is_not_a_number(server: JudgeServer, connect: Connect, settings: Any) -> None:
    verifier = connect(**settings)
    server.hole = True
    (found,) = score(verifier, chain_of(QUESTION, STEPS))
    assert found.failure is not None
    assert (found.failure.kind, found.values) == ("not_a_number", ())


@pytest.mark.parametrize(
    ("format", "name", "value", "words"),
    [
        (CLASSES, "rows", "short", "one for each token or one for each mark"),
        (CLASSES, "misread", 1, "does not take ids as they are"),
        (TOKENS, "misread", -1, "does not take ids as they are"),
        (CLASSES, "obeys", False, "an activation of its own"),
        (CLASSES, "_width", 3, "3 outputs, and the format says 2"),
        (TOKENS, "form", "others", "not among"),
    ],
)
def test_a_server_that_cannot_be_read_is_refused_when_loaded(
    server: JudgeServer, connect: Connect, format: Any, name: str, value: Any, words: str
) -> None:
    setattr(server, name, value)
    with pytest.raises(VerifierError, match=words):
        connect(format=format)


def test_what_goes_wrong_later_ends_the_search(server: JudgeServer, connect: Connect) -> None:
    verifier = connect(format=CLASSES)
    server.rows = "short"
    with pytest.raises(VerifierError, match="prm: the server gave"):
        score(verifier, chain_of(QUESTION, STEPS))


MALFORMED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *(({"format": CLASSES}, {"data": [data]}, r"data\[0\]") for data in ("x", None, [1])),
    ({"format": CLASSES}, {"data": {"0": 1}}, "data={'0': 1}, where a list"),
    ({"format": CLASSES}, {"data": [{"data": []}] * 2}, "the answer has 2 data where one was"),
    ({"format": CLASSES}, {"data": [{"data": "abc"}]}, r"data\[0\].data='abc'"),
    ({"format": CLASSES}, {"data": [{"data": [1]}]}, "a row of the head's outputs=1"),
    ({"format": CLASSES}, {"data": [{"data": [["1", True]]}]}, "an output of the head='1'"),
    ({"format": CLASSES}, {"data": [{"data": [[10**400, 1]]}]}, "a float can hold"),
    ({"format": CLASSES}, {"usage": "abc"}, "usage='abc'"),
    ({"format": CLASSES, "route": "classify"}, {"data": ["x"]}, r"data\[0\]='x'"),
    ({"format": CLASSES, "route": "classify"}, {"data": [{"probs": None}]}, "outputs=None"),
    ({}, {"choices": [None]}, r"choices\[0\]=None"),
    ({}, {"choices": [{"logprobs": [1]}]}, r"logprobs=\[1\]"),
    ({}, {"choices": [{"logprobs": {"top_logprobs": [None]}}]}, r"top_logprobs\[0\]=None"),
    ({}, {"choices": [{"logprobs": {"top_logprobs": [{"+": "x", "-": 1}]}}]}, r"'\+'='x'"),
    *(
        ({}, {"choices": [{"logprobs": {"top_logprobs": [{"+": high, "-": -1.0}]}}]}, "never posi")
        for high in (0.5, 12, float("inf"))
    ),
    ({}, {"choices": [{"logprobs": {"content": [{"top_logprobs": 1}]}}]}, "top_logprobs=1"),
    ({}, {"usage": {"prompt_tokens_details": "abc"}}, "prompt_tokens_details='abc'"),
    ({}, {"usage": {"prompt_tokens_details": {"cached_tokens": 999}}}, "cached_tokens=999"),
    ({}, {"usage": {"prompt_tokens_details": {"cached_tokens": -9}}}, "cached_tokens=-9"),
]


@pytest.mark.parametrize(("settings", "part", "words"), MALFORMED)
def test_a_malformed_answer_is_asked_again_and_then_an_error(
    server: JudgeServer, connect: Connect, settings: Any, part: Any, words: str
) -> None:
    verifier, chain = connect(**settings), chain_of(QUESTION, STEPS[:1])
    before = score(verifier, chain)
    server.change_next(lambda answer: answer | part, 2)
    assert score(verifier, chain) == before
    server.faults.extend(["changed"] * 3)
    with pytest.raises(VerifierError, match=f"prm: .*{words}"):
        score(verifier, chain)
    assert not server.faults


def test_a_log_probability_of_certainty_may_be_rounded(
    server: JudgeServer, connect: Connect
) -> None:
    verifier = connect()
    told = {"logprobs": {"top_logprobs": [{"+": 1e-6, "-": -20.0}]}}
    server.change_next(lambda answer: answer | {"choices": [told]})
    (found,) = score(verifier, chain_of(QUESTION, STEPS[:1]))
    assert found.values == pytest.approx([1.0])
    assert found.values[0] <= 1.0


def test_a_malformed_answer_is_told_when_loaded(server: JudgeServer, connect: Connect) -> None:
    server.change_next(lambda answer: answer | {"data": ["x"]}, 3)
    with pytest.raises(VerifierError, match=r"gives no score: the server sent data\[0\]='x'"):
        connect(format=CLASSES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"route": "pooling"}, "two tokens of a language model are read by route=completions"),
        ({"format": CLASSES, "route": "completions"}, "a head by route=pooling"),
        ({"route": "score"}, "route='score' is not one of"),
        ({"adapter": "folder"}, "verifier.adapter=folder: the server runs the model"),
        ({"dtype": "float32"}, "verifier.dtype=float32"),
        ({"on_too_long": "cut"}, "on_too_long='cut'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(connect: Connect, settings: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        connect(**settings)


def test_a_wrong_address_or_name_is_told_at_once(server: JudgeServer, connect: Connect) -> None:
    with pytest.raises(ModelNotFoundError, match="has tiny"):
        connect(model="big")
    with pytest.raises(ModelNotFoundError, match="no server"):
        connect(base_url="http://127.0.0.1:9/v1")


SIZES = [
    *[(name, value) for name in ("max_length", "num_parameters") for value in (-5, 0, 1.5, "abc")],
    *[("num_parameters", value) for value in (True, float("nan"), float("inf"))],
]


@pytest.mark.parametrize(("name", "value"), SIZES)
def test_a_size_that_cannot_be_is_refused_before_anything_is_asked(
    connect: Connect, name: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=rf"verifier\.{name}={value!r} must be a whole"):
        connect(base_url="http://127.0.0.1:9/v1", **{name: value})


def test_a_length_that_nobody_knows_must_be_set(
    server: JudgeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenAIClient, "context_length", lambda self, model, max_length: max_length)
    with pytest.raises(ConfigurationError, match=r"set verifier\.max_length"):
        connect()
    assert connect(max_length=100).spec.max_length == 99


def test_one_token_is_kept_free_for_a_completion(server: JudgeServer, connect: Connect) -> None:
    assert connect().spec.max_length == 511
    assert connect(format=CLASSES).spec.max_length == 512
    tree = Tree(QUESTION)
    long = tree.chain(ROOT, (Step(text="1 " * 600 + "\n", stop="step"),))
    (found,) = score(connect(), long)
    assert found.failure is not None
    assert found.failure.kind == "too_long"
    assert not server.bodies
