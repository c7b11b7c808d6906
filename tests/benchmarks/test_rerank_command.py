"""`stepsearch rerank`: what is printed, at which numbers of samples."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.samples import problem, said, write

from stepsearch.cli import main


def test_a_reader_that_goes_away_is_no_error(samples: Path) -> None:
    script = "import sys; from stepsearch.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "rerank", str(samples), "--resamples", "10", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        [line] = run.stderr.read().splitlines()
        assert line.startswith(b"stepsearch: grading ")
    assert run.returncode == 0


def test_the_command(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "rerank",
        str(samples),
        "--verifier",
        "prm",
        "--verifier",
        "rule*prm",
        "--n",
        "2,4",
    ]
    arguments += ["rule.wrong=0.01", "--resamples", "100"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for part in ("2 problems, up to 4 samples", "N=2", "weighted rule*prm", "minus majority", "p="):
        assert part in text
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 8
    assert main(["rerank", str(samples), "--n", "four"]) == 2
    assert "--n 'four'" in capsys.readouterr().err


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["rerank", *arguments, "--resamples", "100"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "heads"),
    [("", ["1", "4"]), ("2", ["2"]), ("3,1", ["1", "3"]), ("2,2,4", ["2", "4"])],
)
def test_the_numbers_of_samples_asked_for(
    samples: Path, capsys: pytest.CaptureFixture[str], asked: str, heads: list[str]
) -> None:
    text = shown(capsys, str(samples), "--n", asked)
    [head] = [line for line in text.splitlines() if line.startswith("accuracy")]
    assert head.split()[2:] == [f"N={n}" for n in heads]
    assert f"McNemar at N={heads[-1]}\n" in text


def test_more_samples_than_there_are_is_refused(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rerank", str(samples), "--n", "4,1000"]) == 2
    told = capsys.readouterr()
    assert "--n 1000 is more than the 4 samples of the largest problem" in told.err
    assert told.out == ""


def test_mcnemar_is_about_the_largest_number_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By score the first two samples are right, and the third one wrong."""
    scored = (said(2, v=0.1), said(1, v=0.5), said(2, v=0.9))
    path = str(write(tmp_path / "s.jsonl", [problem("a", 1, *scored)]))
    for asked, expected in (("2", "1:0"), ("3", "0:0"), ("", "0:0")):
        text = shown(capsys, path, "--verifier", "v", "--select", "best", "--n", asked)
        [row] = [line for line in text.splitlines() if line.startswith("best v")][1:]
        assert expected in row
    result = json.loads(shown(capsys, path, "--verifier", "v", "--n", "2", "--json"))
    assert result["mcnemar_samples"] == 2
