"""The whole path on real models: tiny random ones and the embedded one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tiny import tiny_model, tiny_tokenizer

from stepsearch import Budget, SamplingParams, solve
from stepsearch.policies.transformers import TransformersPolicy
from stepsearch.search.contracts import CountsPrompt
from stepsearch.search.engine import Engine
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.task import ExactTask
from stepsearch.search.trace import read
from stepsearch.verifiers.transformers import TransformersVerifier

PRM = {
    "name": "tiny",
    "prompt": "chat",
    "mark": "\n",
    "head": {"prefix": "score", "num_outputs": 2, "activation": "softmax", "good": 1},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[TransformersPolicy, TransformersVerifier]:
    """A random policy, and a random step verifier made of the same body."""
    from transformers import AutoModelForTokenClassification

    folder = tmp_path_factory.mktemp("tiny")
    tiny_model("llama").save_pretrained(folder / "policy")
    judge = AutoModelForTokenClassification.from_pretrained(folder / "policy", num_labels=2)
    judge.save_pretrained(folder / "prm")
    for name in ("policy", "prm"):
        tiny_tokenizer().save_pretrained(folder / name)
    policy = TransformersPolicy(model=folder / "policy")
    return policy, TransformersVerifier(model=folder / "prm", format=PRM)


def engine(tiny, **settings) -> Engine:
    policy, verifier = tiny
    sampling = SamplingParams(max_step_tokens=12, max_tokens=60, temperature=1.0)
    return Engine(
        policy=policy,
        verifier=verifier,
        strategy=Beam(n=8, width=4, max_steps=5),
        task=ExactTask(),
        sampling=sampling,
        **settings,
    )


def test_beam_search_by_a_prm_counts_everything(tiny, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    solution = engine(tiny, trace=path).solve("How many clips?")
    tree, usage = solution.tree, solution.usage
    assert solution.stop in ("done", "max_steps")
    assert usage.policy_tokens == sum(tree.num_tokens) == len(tree.tokens)
    column = tree.scores["prm"]
    assert all(column[n] is not None for n in range(1, len(tree)) if tree.texts[n].strip())
    assert usage.verifier_tokens > 0
    assert usage.flops > 0
    [trace] = read(path)
    assert trace.provenance["policy"]["provenance"]["model"]
    assert trace.tree.tokens == tree.tokens


def test_problems_of_one_engine_do_not_change_each_other(tiny) -> None:
    questions = [f"How many {word}?" for word in ("clips", "apples", "pens", "cards")]
    together = {s.problem.text: s for s in engine(tiny).solve_many(questions)}
    for question in questions:
        alone = engine(tiny).solve(question)
        assert alone.tree.tokens == together[question].tree.tokens
        assert alone.answer == together[question].answer


@pytest.mark.parametrize(
    "budget",
    [
        Budget(policy_tokens=50),
        Budget(policy_tokens=None, verifier_tokens=150),
        Budget(policy_tokens=None, completions=2),
        Budget(policy_tokens=None, flops=2e7),
    ],
    ids=str,
)
def test_budgets_hold_on_real_models(tiny, budget: Budget) -> None:
    assert isinstance(tiny[0], CountsPrompt)
    usage = engine(tiny, budget=budget).solve("How many pens in all?").usage
    assert budget.policy_tokens is None or usage.policy_tokens <= budget.policy_tokens
    assert budget.verifier_tokens is None or usage.verifier_tokens <= budget.verifier_tokens
    assert budget.completions is None or usage.completions <= budget.completions
    assert budget.flops is None or usage.flops <= budget.flops


def test_a_question_longer_than_the_context_samples_nothing(tiny) -> None:
    solution = engine(tiny).solve("many words " * 10_000)
    assert solution.stop == "context"
    assert solution.usage.policy_tokens == 0
    assert solution.answer is None


@pytest.mark.embedded
@pytest.mark.slow
def test_the_embedded_model_solves_with_the_rule(embedded_path: Path) -> None:
    plain = {"policy": "embedded_base", "verifier": "rule", "overrides": ["search.n=4"]}
    solution = solve("What is 2 + 2?", budget=150, **plain)
    assert solution.usage.policy_tokens <= 150
    assert solution.candidates
    for node in range(1, len(solution.tree)):
        assert solution.tree.scores["rule"].note(node)
    again = solve("What is 2 + 2?", budget=150, **plain)
    assert again.tree.tokens == solution.tree.tokens


INTERRUPTIBLE = (  # what a shell runs in the background ignores Ctrl-C
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('stepsearch', run_name='__main__')"
)


def start(*arguments: str) -> subprocess.Popen[str]:
    """`stepsearch solve` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "solve", "Count to a million.", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": "tests"},
    )


def test_ctrl_c_on_the_command_line() -> None:
    latency = "policy.latency={_target_: hydra.utils.get_method, path: support.loud.endless}"
    policy = "policy._target_=support.worlds.random_policy"
    with start(policy, latency, "verifier=rule", "search=best_of_n", "search.n=64") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "searching\n"
        time.sleep(0.2)  # what says so is the loop's thread; the main one begins to wait meanwhile
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert set(err.splitlines()) <= {"searching"}
    assert json.loads(out)["stop"] == "cancelled"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.embedded
def test_ctrl_c_while_a_model_writes(embedded_path: Path) -> None:
    endless = ["sampling.max_tokens=2000", "sampling.max_step_tokens=2000", "budget=unlimited"]
    plain = ["policy=embedded_base", "verifier=rule"]
    with start("search=best_of_n", "search.n=64", *plain, *endless) as process:
        deadline = time.monotonic() + 200
        while _cpu_seconds(process.pid) < 30 and time.monotonic() < deadline:
            time.sleep(0.2)  # loading is over by then, on a busy machine too
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == "stepsearch: loading the policy, model=embedded\n"
    assert json.loads(out)["stop"] == "cancelled"
