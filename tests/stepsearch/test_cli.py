"""The command line, as a user types it."""

import dataclasses
import json
import re

import pytest
from support.worlds import latency, random_policy

from stepsearch import solve
from stepsearch.cli import main
from stepsearch.conf.options import options
from stepsearch.show import render

WORLD = ["hydra.searchpath=[pkg://support.worldconf]", "policy=world", "verifier=rule"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["solve", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    "question",
    [
        "plain",
        "a, b = c; 'quoted' \"twice\" [x] {y} ${z}",
        "x=3, find 2x",
        "-3 + 5 is what?",
        "\u00e9\u00e8 \U0001f600 \u65e5\u672c",
        "line one\nline two",
    ],
)
def test_the_question_is_a_plain_argument(capsys, question: str) -> None:
    status, out, err = run(capsys, question, *WORLD, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["question"] == question


def test_text_shows_steps_scores_answer_and_cost(capsys) -> None:
    status, out, _ = run(capsys, "question", *WORLD, "search=best_of_n", "search.n=5")
    assert status == 0
    assert "answer  " in out
    assert "policy tokens in 5 continuations" in out
    assert "[no equation]" in out
    assert "\x1b[" not in out, "no colour when it is not a terminal"


def test_settings_and_options_in_any_order(capsys) -> None:
    status, out, _ = run(capsys, "q", "--json", *WORLD, "search=best_of_n")
    assert (status, json.loads(out)["usage"]["policy_calls"]) == (0, 8)
    with pytest.raises(SystemExit) as caught:
        main(["solve", "q", "--jsn"])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("usage: stepsearch solve ")
    assert "unrecognized arguments: --jsn" in shown


def test_help_lists_what_there_is_to_choose_from(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["solve", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for group in ("search", "policy", "verifier", "task"):
        listed = shown.split(f"{group}=  ")[1].split("=  ")[0].split()
        assert set(options(group)) <= set(listed)


def test_settings_reach_the_search(capsys) -> None:
    _, out, _ = run(capsys, "q", *WORLD, "budget.policy_tokens=9", "select=majority", "--json")
    result = json.loads(out)
    assert result["usage"]["policy_tokens"] <= 9
    assert result["stop"] == "budget"


def test_the_same_seed_gives_the_same_result(capsys) -> None:
    results = [json.loads(run(capsys, "q", *WORLD, f"seed={s}", "--json")[1]) for s in (1, 1, 2)]
    for result in results:
        del result["usage"]["seconds"]
    assert results[0] == results[1] != results[2]


def test_no_answer_has_its_own_status(capsys) -> None:
    status, out, _ = run(capsys, "q", *WORLD, "+policy.max_depth=1000", "policy.branching=1",
                         "+policy.eos=0", "search.max_steps=2")  # fmt: skip
    assert status == 1
    assert "answer  none" in out
    assert "[stop: max_steps]" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["q", "search=beem"], ["beem", "beam"]),
        (["why", "is", "this", "unquoted"], ["quotes"]),
        (["  "], ["empty"]),
        (["q", "policy=transformers", "policy.model=no/such/folder"], ["no/such/folder"]),
    ],
)
def test_mistakes_are_one_line(capsys, arguments: list[str], words: list[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    ours = [line for line in err.splitlines() if line.startswith("stepsearch: ")]
    [told] = [line for line in ours if "loading the" not in line]
    assert "Traceback" not in err
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("select", "meaning"),
    [("best", "score"), ("weighted", "share of scores"), ("majority", "share of votes")],
)
def test_what_the_score_is_depends_on_the_selection(capsys, select: str, meaning: str) -> None:
    out = run(capsys, "q", *WORLD, f"select={select}")[1]
    [line] = [line for line in out.splitlines() if line.startswith("answer ")]
    assert re.fullmatch(rf"answer  \d  \({meaning} [01]\.\d\d\d\)", line)


def test_a_cancelled_search_says_that_its_account_is_short() -> None:
    policy = random_policy(latency=latency(0.001))
    solution = solve("q", search="best_of_n", policy=policy, verifier="rule")
    assert "without" not in render(solution, colour=False)
    cut = dataclasses.replace(solution, stop="cancelled")
    assert "s, without what was under way\n" in render(cut, colour=False) + "\n"


@pytest.mark.slow
def test_loading_a_model_is_told_on_stderr(capsys) -> None:
    _, out, err = run(capsys, "q", "policy=transformers", "policy.model=no/such", "--json")
    assert out == ""
    assert err.splitlines()[0] == "stepsearch: loading the policy, model=no/such"


def test_a_question_from_standard_input(capsys, monkeypatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("what?\n"))
    _, out, _ = run(capsys, "-", *WORLD, "--json")
    assert json.loads(out)["question"] == "what?\n"


def test_unknown_commands_and_versions(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["slove"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
