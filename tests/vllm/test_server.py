"""The OpenAI policy on vLLM's own server."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import save_tiny
from support.vllm_settings import SIZES

from stepsearch import Budget, Engine, SamplingParams
from stepsearch.policies.child import child, tail
from stepsearch.policies.openai import OpenAIPolicy
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.background import background
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.tree import ROOT, Tree
from stepsearch.testing.policy import check_policy
from stepsearch.verifiers.rule import RuleVerifier

pytestmark = pytest.mark.vllm

STEP = SamplingParams(temperature=1.0, max_step_tokens=24)
GREEDY = SamplingParams(temperature=0.0, max_step_tokens=24, max_tokens=60, until="end")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("served"), **SIZES)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--served-model-name", "tiny", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
    command += ["--block-size", "32", "--max-num-seqs", "64", "--generation-config", "vllm"]
    log = folder / "server.log"
    with child(command, {"VLLM_CPU_KVCACHE_SPACE": "1"}, log) as process:
        for _ in range(300):
            if process.poll() is not None:
                pytest.fail(f"the server ended:\n{tail(log)}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(params=["ids", "text"])
def policy(request: pytest.FixtureRequest, url: str, folder: Path) -> Iterator[OpenAIPolicy]:
    made = OpenAIPolicy(
        base_url=url,
        model="tiny",
        tokenizer=folder,
        prompt_format={"system": None},
        prompts=request.param,
    )
    yield made
    made.close()


def test_it_keeps_the_contract(policy: OpenAIPolicy) -> None:
    check_policy(policy)


def test_greedy_chains_by_ids_are_those_of_transformers(policy: OpenAIPolicy, folder: Path) -> None:
    if policy.spec.provenance["prompts"] != "ids":
        return
    other = TransformersPolicy(
        model=folder, prompt_format={"system": None}, device="cpu", dtype="float32"
    )

    async def run(one: Any) -> list[Any]:
        chain = Tree("How many pens are left?").chain(ROOT)
        return [s async for s in one.sample([chain], [1], GREEDY)]

    ours, theirs = (background.submit(run(p)).result(timeout=60) for p in (policy, other))
    assert [s.token_ids for s in ours[0].steps] == [s.token_ids for s in theirs[0].steps]
    assert [(s.text, s.stop) for s in ours[0].steps] == [(s.text, s.stop) for s in theirs[0].steps]


def test_a_beam_keeps_its_budget(policy: OpenAIPolicy) -> None:
    solution = Engine(
        policy=policy,
        strategy=Beam(n=4, width=2),
        verifier=RuleVerifier(),
        budget=Budget(policy_tokens=100),
        sampling=replace(STEP, max_tokens=60),
    ).solve("How many pens are left?")
    assert solution.error is None
    assert 0 < solution.usage.policy_tokens <= 100
