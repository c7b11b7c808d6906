"""Asking a verifier outside a search: outages are waited out, and what is lost is a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.clock import run_virtual

from stepsearch.cli import main
from stepsearch.search import outage
from stepsearch.search.contracts import StepScores, Verifier, VerifierSpec
from stepsearch.search.errors import VerifierError
from stepsearch.search.outage import WAITS
from stepsearch.search.tree import Chain
from stepsearch.verifiers.stepwise import ask, chain_of, score_steps

CHAINS = [chain_of("q", ["a", word]) for word in ("b", "c", "poison")]


class Remote:
    """Scores 0.5; some calls, counted from 0, and chains with a certain word reset the connection.

    Args:
        gone: the calls that do.
        word: what they hold.
    """

    spec = VerifierSpec(name="remote", threshold=0.6)

    def __init__(self, gone: range = range(0), word: str | None = None) -> None:
        self._gone, self._word, self.calls = gone, word, 0

    def count_tokens(self, chain: Chain) -> int:
        return 0

    async def score(self, chains: Sequence[Chain]) -> list[StepScores]:
        self.calls += 1
        is_poisoned = self._word is not None and any(self._word in chain.text for chain in chains)
        if self.calls - 1 in self._gone or is_poisoned:
            raise ConnectionResetError("gone")
        return [StepScores(values=(0.5,) * len(chain)) for chain in chains]


def test_an_outage_is_waited_out() -> None:
    scores, seconds = run_virtual(ask(Remote(range(2)), CHAINS))
    assert [s.values for s in scores] == [(0.5, 0.5)] * 3
    assert seconds == pytest.approx(sum(WAITS[:2]))


def test_one_chain_that_resets_the_connection_fails_alone() -> None:
    scores, _ = run_virtual(score_steps(Remote(word="poison"), CHAINS))
    assert scores[:2] == [(0.5, 0.5)] * 2
    assert scores[2].kind == "missing"
    assert "'remote' was out of reach for 10.5 s (ConnectionResetError: gone)" in scores[2].message
    [alone], _ = run_virtual(score_steps(Remote(word="poison"), CHAINS[2:]))
    assert alone == scores[2]


def test_a_server_that_is_gone_ends_the_work_at_once() -> None:
    verifier = Remote(range(10**6))
    with pytest.raises(VerifierError, match=r"out of reach for 10.5 s .*see that its server runs"):
        run_virtual(ask(verifier, CHAINS))
    assert verifier.calls == len(WAITS) + 1 + len(CHAINS)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verifier], None]:
    """Makes commands take a verifier for every configuration, and wait no time."""
    monkeypatch.setattr(outage, "WAITS", (0.0, 0.0, 0.0))

    def use(verifier: Verifier) -> None:
        for module in ("conf.build", "benchmarks.scorers", "benchmarks.processbench"):
            name = f"stepsearch.{module}.build_verifier"
            monkeypatch.setattr(name, lambda *_, **__: verifier)

    return use


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Solutions in the layouts of several commands."""
    steps = ["1 + 1 = 2", "#### 2"]
    samples = [{"text": "\n".join(steps)}, {"text": "\n".join(["poison", *steps])}]
    for name, rows in {
        "samples": [{"id": i, "problem": "q", "answer": "2", "samples": samples} for i in "abc"],
        "gsm8k": [{"problem": "q", "steps": steps, "label": label} for label in (-1, -1, 0)],
    }.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def commands(data: Path) -> dict[str, list[str]]:
    samples, cases = str(data / "samples.jsonl"), str(data / "gsm8k.jsonl")
    return {
        "rerank": ["rerank", samples, "--verifier", "rule", "--resamples", "10", "--json"],
        "filter": ["filter", samples, "--verifier", "rule", "--min", "0", "--json"],
        "processbench": ["processbench", str(data), "--split", "gsm8k"],
        "audit": ["audit", cases],
        "check-verifier": ["check-verifier"],
    }


@pytest.mark.parametrize("command", commands(Path()))
def test_no_command_ends_with_an_outage(command: str, built, data: Path, capsys) -> None:
    built(Remote())
    status = main(commands(data)[command])
    quiet = capsys.readouterr().out
    built(Remote(range(1)))
    assert main(commands(data)[command]) == status
    assert capsys.readouterr().out == quiet


@pytest.mark.parametrize("command", commands(Path()))
def test_every_command_says_that_a_server_is_gone(command: str, built, data: Path, capsys) -> None:
    built(Remote(range(10**6)))
    assert main(commands(data)[command]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "verifier 'remote' was out of reach" in err
    assert err.strip().endswith("see that its server runs")


def test_what_could_not_be_reached_is_counted_and_not_kept(built, data: Path, capsys) -> None:
    built(Remote(word="poison"))
    assert main(commands(data)["rerank"]) == 0
    assert json.loads(capsys.readouterr().out)["unscored"] == {"rule": 3}
    assert main(commands(data)["filter"]) == 0
    counts = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (counts["kept"], counts["unscored"]) == (3, 3)
