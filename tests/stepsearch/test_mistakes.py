"""Wrong input of a newcomer: one sentence on stderr that names the setting and says what to do."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.worlds import random_policy

from stepsearch import ConfigurationError, Engine, ModelNotFoundError, asolve, solve
from stepsearch.cli import main
from stepsearch.search.strategies.best_of_n import BestOfN
from stepsearch.verifiers.rule import RuleVerifier

WORLD = ["hydra.searchpath=[pkg://support.worldconf]", "policy=world", "verifier=rule"]
BENCH = ["bench", *WORLD, "task=exact", "benchmark=file"]


def told(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr, but for notes on models that are loaded."""
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "HYDRA_FULL_ERROR" not in err
    [line] = [line for line in err.splitlines() if "loading the" not in line]
    assert line.startswith("stepsearch: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search=beam"], "'search=beam' is a setting, and there is no question"),
        (["q", "serach=beam"], "serach: there is no such setting. Did you mean search"),
        (["q", "search.widht=3"], "Did you mean search.width"),
        (["q", "search=beam,mcts"], "search=beam,mcts: several values are swept over with"),
        (["q", "search.n==3"], "'search.n==3' is not of the form SETTING=VALUE"),
        (["q", "=3"], "'=3' is not of the form SETTING=VALUE"),
        (["q", "task.instruction=first, think"], "goes in quotes of its own"),
        (["q", "+search.n=3"], "write search.n=... without the +"),
        (["q", "~search.nn"], "search.nn: there is no such setting. Did you mean search.n"),
        (["q", "budget=4096"], "budget is one of default, unlimited; its settings are budget."),
        (["q", "search=null"], "search=null: search is one of beam, best_of_n"),
        (["q", "search="], "search=: there is no such option. Known: beam"),
        (["q", "policy=gpt4"], "policy=gpt4: there is no such option. Known: coder, embedded"),
        (["q", "policy=openai"], "policy.model has no value; give policy.model=..."),
        (["q", "verifier.model=x"], "they depend on verifier=..."),
        (["q", "select=vote"], "select='vote' is not one of best, weighted, majority"),
        (["q", "seed=x"], "seed='x' must be a whole number"),
        (["q", "task.instruction=${sed}"], "task.instruction: Interpolation key 'sed' not found"),
        (["q", "task.instruction=${seed}"], "task.instruction=0 must be a text"),
        (["q", "select=${oc.env:NO_SUCH}"], "Environment variable 'NO_SUCH' not found"),
    ],
)
def test_solve(capfd: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["solve", *arguments[:1], *WORLD, *arguments[1:]]) == 2
    assert words in told(capfd)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check-verifier", "rule"], "'rule' is not of the form SETTING=VALUE"),
        (["check-verifier", "verifier=rul"], "Did you mean rule?"),
        (["sample", "question=x"], "question: there is no such setting. Did you mean questions"),
        (["label"], "out has no value; give out=..."),
        (["train", "prm", "labeled=x"], "labeled: there is no such setting. Did you mean labelled"),
        (["rerank", "/no.jsonl", "--verifier", "rule"], "'/no.jsonl': there is no such file"),
        (["rerank", "/tmp"], "cannot read the samples in '/tmp': give a file in it"),
        (["train", "prepare", "gsm8k=no.jsonl", "out=o"], "gsm8k=no.jsonl: there is no such file"),
    ],
)
def test_other_commands(
    capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    assert words in told(capfd)


SAMPLES = {"id": "a", "problem": "1 + 1?", "answer": "2", "samples": [{"text": "#### 2"}]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["filter", "--min", "0", "--out", "no/x"], "there is no folder 'no'; make it first"),
        (["filter", "--min", "0", "--out", "."], "--out '.' is a folder; name a file in it"),
        (["audit", "--plot", "no/a.png"], "--plot 'no/a.png': there is no folder 'no'"),
        (["audit", "--plot", "a.xyz"], "--plot 'a.xyz' must end in .png, .svg, .pdf"),
        (["audit", "--seed", "-1"], "--seed -1 must be at least 0"),
        (["audit", "--limit", "0"], "--limit 0 must be at least 1"),
        (["rerank", "--seed", "-1"], "--seed -1 must be at least 0"),
    ],
)
def test_what_is_written_and_how_is_checked_before_the_work(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    async def scores(*_: object) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr(RuleVerifier, "score", scores)
    monkeypatch.chdir(tmp_path)
    Path("s.jsonl").write_text(json.dumps(SAMPLES) + "\n", encoding="utf-8")
    command, *others = arguments
    rule = ["verifier=rule"] if command == "audit" else ["--verifier", "rule"]
    assert main([command, "s.jsonl", *others, *rule]) == 2
    assert words in told(capfd)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["benchmark.path=/no/such"], "benchmark.path='/no/such': there is no such file"),
        ([], "benchmark.path has no value; give benchmark.path=..."),
        (["serach=beam"], "serach: there is no such setting. Did you mean search"),
        (["search.widht=3"], "Did you mean search.width"),
        (["benchmark=gsm8q"], "Did you mean gsm8k? Known: aime24"),
        (["-m", "search=beem,beam"], "search=beem: there is no such option. Did you mean beam"),
        (["-m", "seed=0,1", "hydra/launcher=slurm"], "Did you mean submitit_slurm"),
        (["-m", "hydra/launcher=x"], "submitit_slurm. Others come with pip install 'stepsearch[s"),
        (["seed=0,1"], "seed=0,1: several values are swept over with `stepsearch bench -m`"),
        (["search.n=[1"], "'search.n=[1' is not of the form SETTING=VALUE"),
        (["what"], "'what' is not of the form SETTING=VALUE"),
        (["budget=4096"], "budget is one of default, unlimited"),
        (["workers=2"], "workers=2 must be null or ray"),
        (["benchmark.path=${no}"], "benchmark.path: Interpolation key 'no' not found"),
        (["benchmark=words", "benchmark.path=x"], "benchmark.path: there is no such setting"),
        (["benchmark=words", "benchmark.limit=x"], "benchmark.limit='x' must be a whole number"),
        (["benchmark=words", "runs=/proc/x"], "runs=/proc/x: no folder can be made there"),
    ],
)
def test_bench(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    if any("launcher" in argument for argument in arguments):
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    assert main([*BENCH, f"runs={tmp_path}", *arguments]) == 2
    assert words in told(capfd)


def test_what_is_wrong_with_devices_and_models_of_a_run(
    capfd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there(config: object, task: object) -> None:
        raise ModelNotFoundError("model=/nofolder: there is no such folder")

    run = [*BENCH, "benchmark=words", "benchmark.limit=1", f"runs={tmp_path}"]
    assert main([*run, "devices=x"]) == 2
    assert "devices=x: there is no GPU here; leave devices=null" in capfd.readouterr().err
    monkeypatch.setattr("stepsearch.benchmarks.bench.build_engine", not_there)
    assert main(run) == 2
    shown = capfd.readouterr().err
    assert "stepsearch: model=/nofolder: there is no such folder" in shown
    assert "Traceback" not in shown


def test_every_wrong_run_of_a_sweep_is_named(capfd, tmp_path: Path) -> None:
    sweep = ["benchmark=words", "benchmark.limit=0,2", f"runs={tmp_path}"]
    assert main([*BENCH, "-m", *sweep]) == 2
    shown = capfd.readouterr().err
    assert "benchmark.limit=0 runs=" in shown
    assert ": benchmark.limit=0 must be a whole number, at least 1" in shown
    assert len(list(tmp_path.glob("*/summary.json"))) == 1, "the other run went on"


def test_what_is_required_is_not_more_than_that(capfd) -> None:
    for command in ("solve", "rerank", "audit", "processbench", "train"):
        with pytest.raises(SystemExit) as caught:
            main([command])
        assert caught.value.code == 2
        last = capfd.readouterr().err.splitlines()[-1]
        assert "arguments are required" in last
        assert "VALUE" not in last


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"serach": "beam"}, "serach: there is no such argument. Did you mean search?"),
        ({"n": 16}, r'n: there is no such argument. Give it as overrides=\["search.n=..."\]'),
        ({"temperature": 1}, r'overrides=\["sampling.temperature=..."\]'),
        ({"colour": "red"}, "colour: there is no such argument. Known: search, select, budget"),
    ],
)
def test_arguments_that_solve_lacks(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        solve("q", policy=random_policy(), **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=words):
        asyncio.run(asolve("q", policy=random_policy(), **arguments))


INTERRUPTED = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {arguments!r}
from stepsearch.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "arguments", "after"),
    [
        ("stepsearch.cli", ["--version"], ""),
        ("tqdm", ["--version"], ""),
        ("hydra", ["solve", "q"], ""),
        ("stepsearch.benchmarks.bench", ["bench"], "; the same command goes on where it ended"),
    ],
)
def test_ctrl_c_while_modules_load_is_one_line(
    module: str, arguments: list[str], after: str
) -> None:
    script = INTERRUPTED.format(module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, f"stepsearch: interrupted{after}\n")


class Nothing:
    """Is none of the parts."""


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("policy", "Nothing has no spec, sample; a policy has"),
        ("verifier", "Nothing has no spec, count_tokens, score; a verifier has"),
        ("search", "Nothing has no run; a strategy has"),
    ],
)
def test_objects_that_are_no_such_part(part: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        solve("q", **{part: Nothing()})


def test_parts_of_an_engine_are_asked_for_alike() -> None:
    with pytest.raises(ConfigurationError, match="policy: NoneType has no spec, sample"):
        Engine(policy=None, strategy=BestOfN())  # type: ignore[arg-type]


def test_one_text_is_not_several() -> None:
    with pytest.raises(ConfigurationError, match=r"overrides='search.n=4' must be a list"):
        solve("q", overrides="search.n=4")
    engine = Engine(policy=random_policy(), strategy=BestOfN(n=1))
    with pytest.raises(ConfigurationError, match="problems='abc' is one problem; give a list"):
        list(engine.solve_many("abc"))
