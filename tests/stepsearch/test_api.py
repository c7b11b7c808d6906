"""`solve` and its neighbours, as a library user meets them."""

import asyncio
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.worlds import fingerprint, hash_verifier, random_policy

import stepsearch
from stepsearch import Budget, ConfigurationError, Problem, asolve, solve
from stepsearch.api import engine_for
from stepsearch.search.strategies.best_of_n import BestOfN

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_names_and_objects_mix() -> None:
    by_name = solve("q", search="best_of_n", policy=random_policy(), verifier=hash_verifier())
    by_object = solve("q", search=BestOfN(), policy=random_policy(), verifier=hash_verifier())
    assert fingerprint(by_name) == fingerprint(by_object)


def test_overrides_have_the_last_word() -> None:
    overrides = ["search=best_of_n", "search.n=3", "verifier=rule"]
    solution = solve("q", policy=random_policy(), overrides=overrides)
    assert solution.usage.policy_calls == 3


def test_an_override_of_an_object_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"search\.n=3"):
        solve("q", search=BestOfN(), policy=random_policy(), overrides=["search.n=3"])


@pytest.mark.parametrize(
    ("settings", "override"),
    [
        ({"budget": 100}, "budget.policy_tokens=7"),
        ({"select": "best"}, "select=majority"),
        ({"search": "dvts"}, "search=mcts"),
        ({"seed": 3}, "seed=4"),
    ],
)
def test_an_argument_and_an_override_that_contradict_each_other_are_refused(
    settings: dict[str, Any], override: str
) -> None:
    [(name, value)] = settings.items()
    with pytest.raises(ConfigurationError, match=rf"{name}.*={value!r}.*{override}.*contradict"):
        engine_for(policy=random_policy(), verifier="rule", overrides=[override], **settings)
    same = [f"{override.split('=')[0]}={value}"]
    engine_for(policy=random_policy(), verifier="rule", overrides=same, **settings)


def test_many_at_once_and_inside_another_hydra_application() -> None:
    from hydra import compose, initialize_config_module

    async def many() -> list[str | None]:
        settings = {"verifier": "rule", "task": "exact"}
        calls = [asolve("q", policy=random_policy(), **settings) for _ in range(6)]
        return [solution.answer for solution in await asyncio.gather(*calls)]

    assert len(set(asyncio.run(many()))) == 1
    with initialize_config_module("stepsearch.conf", version_base="1.3"):
        assert solve("q", policy=random_policy(), verifier="rule").answer is not None
        assert compose("config").search.n == 8, "the outer application goes on"


def test_a_setting_without_a_value_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigurationError, match=r"verifier\.adapter has no value"):
        solve("q", verifier="line_prm")
    with pytest.raises(ConfigurationError, match="select='vote'"):
        solve("q", select="vote")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="seed='x'"):
        solve("q", policy=random_policy(), verifier="rule", seed="x")  # type: ignore[arg-type]


def test_a_number_is_a_budget_of_policy_tokens() -> None:
    small = solve("q", policy=random_policy(), verifier="rule", budget=7)
    assert small.usage.policy_tokens <= 7
    same = solve("q", policy=random_policy(), verifier="rule", budget=Budget(policy_tokens=7))
    assert fingerprint(small) == fingerprint(same)


def test_without_a_verifier() -> None:
    solution = solve("q", search="best_of_n", policy=random_policy(), verifier="none")
    assert solution.answer is not None
    assert all(step.score is None for step in solution.steps)
    with pytest.raises(ConfigurationError, match="needs a verifier"):
        solve("q", search="best_of_n", policy=random_policy(), verifier="none", select="best")


def test_awaited_inside_a_running_loop() -> None:
    async def both() -> bool:
        settings = {"policy": random_policy(), "verifier": hash_verifier()}
        awaited = await asolve("q", **settings)
        return fingerprint(awaited) == fingerprint(solve("q", **settings))

    assert asyncio.run(both())


def test_the_gold_answer_never_reaches_policy_or_verifier() -> None:
    problem = Problem(text="q", answer="GOLD", meta={"secret": "GOLD"})
    solution = solve(problem, policy=random_policy(), verifier=hash_verifier())
    assert solution.problem.answer == "GOLD"
    tree = solution.tree
    assert "GOLD" not in tree.question + tree.prompt + "".join(tree.texts)


def test_every_public_name_is_there() -> None:
    for name in stepsearch.__all__:
        assert getattr(stepsearch, name) is not None
    assert set(stepsearch.__all__) <= set(dir(stepsearch))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stepsearch.nothing


@pytest.mark.parametrize("example", ["custom_strategy", "custom_verifier"])
def test_examples_run(example: str, capsys) -> None:
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    assert "answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    "overrides",
    [
        ["hydra.searchpath=[pkg://custom_conf]", "search=first_good", "verifier=rule"],
        [
            *("search._target_=custom_strategy.FirstGood", "~search.lookahead", "~search.width"),
            "verifier=rule",
        ],
        ["hydra.searchpath=[pkg://custom_conf]", "verifier=short_steps"],
        ["verifier=none", "verifier._target_=custom_verifier.ShortSteps", "+verifier.limit=60"],
    ],
)
def test_plug_ins_need_no_change_of_ours(overrides: list[str], monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert solve("q", policy=random_policy(), overrides=overrides).answer is not None


NOTEBOOK = """
import queue, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
code = '''
import sys
sys.path[:0] = {path!r}
from stepsearch import solve, asolve
from support.worlds import random_policy
one = solve("q", policy=random_policy(), verifier="rule")
two = await asolve("q", policy=random_policy(), verifier="rule")
print("same", one.answer == two.answer)
'''
reply = client.execute_interactive(code, timeout=90, output_hook=lambda m: print(m["content"]))
client.stop_channels()
manager.shutdown_kernel(now=True)
print(reply["content"]["status"])
"""


def test_works_in_a_notebook_kernel() -> None:
    pytest.importorskip("ipykernel")
    path = [p for p in sys.path if p.endswith("tests")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOTEBOOK.replace("{path!r}", repr(path))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "same True" in done.stdout, done.stdout + done.stderr
    assert done.stdout.strip().endswith("ok")


def test_a_class_of_ones_own_takes_the_place_of_an_option() -> None:
    own = ["policy._target_=support.worlds.random_policy", "policy.max_depth=1"]
    solution = solve("q", search="best_of_n", overrides=[*own, "verifier=none"])
    assert set(solution.tree.depth) == {0, 1}
    old = ["~policy", "+policy._target_=support.worlds.random_policy", "+policy.max_depth=1"]
    assert fingerprint(solve("q", search="best_of_n", overrides=[*old, "verifier=none"])) == (
        fingerprint(solution)
    )
    with pytest.raises(ConfigurationError, match="model"):
        solve("q", overrides=["policy=embedded", "policy._target_=support.loud.LoudPolicy"])
    own = ["verifier._target_=support.worlds.hash_verifier", "verifier.name=mine"]
    assert set(solve("q", policy=random_policy(), overrides=own).tree.scores) == {"mine"}


def test_no_verifier_is_no_verifier() -> None:
    assert not solve("q", search="best_of_n", policy=random_policy(), verifier=None).tree.scores
    with pytest.raises(ConfigurationError, match="search=beam goes by the scores of a verifier"):
        solve("q", policy=random_policy(), verifier=None)
    assert set(solve("q", policy=random_policy(), verifier="rule").tree.scores) == {"rule"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": {"policy_tokens": 7}}, "must be a number of policy tokens or a Budget"),
        ({"budget": 10.5}, "must be a number of policy tokens or a Budget"),
        ({"budget": 0}, "budget.policy_tokens=0 must be a whole number"),
        ({"overrides": ["budget.policy_tokens=abc"]}, "policy_tokens='abc' must be a whole number"),
        ({"search": BestOfN}, "search is the class BestOfN; give an object of it, BestOfN(...)"),
        ({"overrides": ["policy._target_=nowhere.Policy"]}, "No module named 'nowhere'"),
    ],
)
def test_odd_arguments_are_one_sentence(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        solve("q", **{"verifier": None, "search": "best_of_n"} | settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_chooses_what_was_not_named(monkeypatch) -> None:
    chosen = {}

    def load(config, name):
        chosen[name] = config[name]._target_.rpartition(".")[2]
        raise ConfigurationError("far enough")

    monkeypatch.setattr("stepsearch.api._load", load)
    experiment = ["+experiment=qwen_1b_qwen_prm"]
    with pytest.raises(ConfigurationError, match="far enough"):
        solve("q", overrides=experiment)
    assert chosen == {"policy": "VllmPolicy"}
    with pytest.raises(ConfigurationError, match="far enough"):
        solve("q", policy="embedded_base", overrides=experiment)
    assert chosen == {"policy": "TransformersPolicy"}
