"""Benchmark runs: one folder each, resumed after a kill, never done twice."""

import csv
import json
import logging
import re
import shutil
from pathlib import Path

import pytest
from hydra.utils import instantiate

from stepsearch.benchmarks import bench as module
from stepsearch.benchmarks.perf import kills
from stepsearch.benchmarks.report_tables import Samples
from stepsearch.benchmarks.run_data import methods_of, read_runs
from stepsearch.cli import main
from stepsearch.conf.build import build, load_config
from stepsearch.conf.options import options
from stepsearch.search.errors import ConfigurationError, PolicyError
from stepsearch.search.task import ExactTask
from stepsearch.search.trace import read

TIMES = ("seconds",)


def problems(folder: Path, count: int) -> Path:
    path = folder / "problems.jsonl"
    rows = [{"question": f"question {i}", "answer": i % 4} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def world(tmp_path: Path) -> list[str]:
    return [
        "hydra.searchpath=[pkg://support.worldconf]",
        "policy=world",
        "verifier=rule",
        "task=exact",
        "benchmark=file",
        f"benchmark.path={problems(tmp_path, 12)}",
        f"runs={tmp_path / 'runs'}",
        "search=best_of_n",
    ]


def folders(world: list[str]) -> list[Path]:
    root = next(Path(o.removeprefix("runs=")) for o in world if o.startswith("runs="))
    return sorted(path.parent for path in root.glob("*/config.yaml"))


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


def summary(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "summary.json").read_text())
    for name in TIMES:
        del found["usage"][name]
    return found


def solved(folder: Path) -> list[str]:
    return [trace.problem.id for trace in read(folder / "traces.jsonl")]


def test_a_run_is_a_folder_with_traces_and_tables(world: list[str], capfd) -> None:
    assert main(["bench", *world]) == 0
    [folder] = folders(world)
    assert sorted(solved(folder)) == sorted(f"file-{i}" for i in range(12))
    rows = table(folder)
    assert [row["id"] for row in rows] == [f"file-{i}" for i in range(12)]
    right = sum(row["answer"] == row["gold"] for row in rows)
    assert sum(int(row["right"]) for row in rows) == right == summary(folder)["right"]
    assert all(int(row["right_pass"]) >= int(row["right"]) for row in rows)
    assert all(row["grader"].endswith("exact") for row in rows)
    shown = capfd.readouterr().err
    for part in ("12/12", "accuracy ", "tokens/s", folder.name):
        assert part in shown


@pytest.mark.parametrize("weight", ["0", "1", "20"])
def test_the_weighted_readout_has_the_votes_of_the_search(world: list[str], weight: str) -> None:
    main(["bench", *world, "search=best_of_n", "select=weighted", f"vote_weight={weight}"])
    [folder] = folders(world)
    rows = table(folder)
    assert [row["right_weighted"] for row in rows] == [row["right"] for row in rows]


def test_chains_of_one_step_are_told_where_steps_are_judged(world: list[str], capfd) -> None:
    main(["bench", *world, "search=beam", "+policy.max_depth=1"])
    [folder] = folders(world)
    assert {row["steps"] for row in table(folder)} == {"1"}
    assert "no chain of 12 problems has a second step" in str(summary(folder)["step_alarm"])
    assert "second step" in capfd.readouterr().err


@pytest.mark.parametrize("settings", [["search=beam"], ["verifier=none", "+policy.max_depth=1"]])
def test_no_alarm_for_steps(world: list[str], settings: list[str]) -> None:
    main(["bench", *world, *settings])
    [folder] = folders(world)
    assert summary(folder)["step_alarm"] is None


def test_models_that_are_loaded_are_not_loaded_again(
    world: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config([*world, "benchmark.limit=3"], "bench")
    loaded = {name: build(config, name) for name in ("policy", "verifier")}
    other = load_config([*world, "benchmark.limit=3", f"runs={tmp_path / 'other'}"], "bench")

    def refused(part: object, **_: object) -> object:
        if part in (config.policy, config.verifier):
            raise AssertionError(f"loaded again: {part}")
        return instantiate(part, **_)

    plain = module.execute(other)
    monkeypatch.setattr("stepsearch.conf.build.instantiate", refused)
    again = module.execute(config, **loaded)
    assert table(again) == table(plain)
    config.workers = "ray"
    with pytest.raises(ConfigurationError, match="workers"):
        module.execute(config, **loaded)


def test_a_complete_run_is_left_alone(world: list[str], capfd) -> None:
    main(["bench", *world])
    [folder] = folders(world)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "log.txt"}
    assert main(["bench", *world, "concurrency=3"]) == 0
    assert "nothing was done" in capfd.readouterr().err
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "log.txt"}
    assert before == after


def test_the_root_logger_is_left_as_it_was(world: list[str]) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    assert main(["bench", *world, "benchmark.limit=1"]) == 0
    assert main(["bench", *world, "search=beem"]) == 2
    assert (root.handlers, root.level) == before


def test_another_configuration_is_another_folder(world: list[str]) -> None:
    for override in ("seed=0", "seed=1", "search.n=3", "select=best"):
        main(["bench", *world, override])
    assert len(folders(world)) == 4


def test_a_run_goes_on_after_its_traces(world: list[str]) -> None:
    main(["bench", *world])
    [folder] = folders(world)
    whole, lines = table(folder), (folder / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "traces.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:50])
    for name in ("results.csv", "summary.json"):
        (folder / name).unlink()
    assert main(["bench", *world]) == 0
    assert table(folder) == whole
    kept = (folder / "traces.jsonl").read_bytes().splitlines(keepends=True)
    assert kept[:7] == lines[:7]
    assert sorted(solved(folder)) == sorted(f"file-{i}" for i in range(12)), "each of them once"


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_nothing_is_overwritten(world: list[str], name: str, capfd) -> None:
    main(["bench", *world])
    [folder] = folders(world)
    (folder / name).write_text("{}")
    before = (folder / "traces.jsonl").read_bytes()
    assert main(["bench", *world]) == 2
    assert "nothing is overwritten" in capfd.readouterr().err
    (folder / name).unlink()
    assert main(["bench", *world]) == 2
    assert f"no {name}" in capfd.readouterr().err
    assert (folder / "traces.jsonl").read_bytes() == before


def test_two_processes_do_not_share_a_run(world: list[str], capfd) -> None:
    from filelock import FileLock

    main(["bench", *world])
    [folder] = folders(world)
    with FileLock(folder / ".lock"):
        assert main(["bench", *world]) == 2
    assert "another process" in capfd.readouterr().err


def test_a_failing_run_of_a_sweep_shows_why_and_the_others_go_on(
    world: list[str], capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.summarize

    def fails_once(*arguments):
        monkeypatch.setattr(module, "summarize", real)
        raise RuntimeError("no summary today")

    monkeypatch.setattr(module, "summarize", fails_once)
    assert main(["bench", "-m", *world, "seed=0,1", "select=majority,best"]) == 1
    shown = capfd.readouterr().err
    assert "seed=0 select=majority\nTraceback" in shown
    assert shown.index("no summary today") < shown.index("policy tokens"), "at once, not at the end"
    assert sum((folder / "summary.json").exists() for folder in folders(world)) == 3
    [failed] = [f for f in folders(world) if not (f / "summary.json").exists()]
    assert "no summary today" in (failed / "log.txt").read_text()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["search=beem"], ["beem", "best_of_n"]),
        (["search.widht=3"], ["widht"]),
        (["select=best", "verifier=none"], ["select='best' needs a verifier"]),
        (["trace=x.jsonl"], ["leave trace=null"]),
        (["benchmark.path=nowhere.jsonl"], ["nowhere.jsonl"]),
        (["benchmark=file", "~benchmark.path"], ["benchmark"]),
    ],
)
def test_wrong_settings(world: list[str], overrides: list[str], words: list[str], capfd) -> None:
    assert main(["bench", *world, *overrides]) == 2
    shown = capfd.readouterr().err
    for word in words:
        assert word in shown


@pytest.mark.parametrize(
    "wrong", ["select=x", "select=best verifier=none", "budget.policy_tokens=-1", "search.n=0"]
)
def test_a_wrong_setting_leaves_no_folder(world: list[str], wrong: str, capfd) -> None:
    assert main(["bench", *world, *wrong.split()]) == 2
    assert folders(world) == []


@pytest.fixture
def failing(world: list[str], capfd, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A run in which some problems failed and will not when they are tried again; their ids."""
    from support import worlds

    real = worlds.scripted_step

    def fails(text: str, stop: str):
        if text.startswith("w1"):
            raise PolicyError("the server is down")
        return real(text, stop)

    with monkeypatch.context() as patch:
        patch.setattr(worlds, "scripted_step", fails)
        assert main(["bench", *world, "search.n=1"]) == 3
    assert "run again" in capfd.readouterr().err
    [folder] = folders(world)
    failed = summary(folder)["failed"]
    assert isinstance(failed, list)
    assert 0 < len(failed) < 12
    return folder, failed


@pytest.fixture
def clueless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that fails by an error of its own."""

    async def run(self: object, session: object) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr("stepsearch.search.strategies.best_of_n.BestOfN.run", run)


@pytest.mark.usefixtures("clueless")
def test_problems_that_the_search_itself_failed_are_told(world: list[str], capfd) -> None:
    assert main(["bench", *world, "search.n=1"]) == 3
    told = capfd.readouterr().err
    assert "12 problems failed, the first with search: RuntimeError: no idea" in told
    assert "no chain" not in told, "nobody knows how long the chains are"
    [folder] = folders(world)
    assert len(summary(folder)["failed"]) == 12


@pytest.mark.usefixtures("clueless")
def test_where_an_error_comes_from_is_told_when_asked(world: list[str], capfd) -> None:
    assert main(["bench", *world, "search.n=1", "hydra.verbose=true"]) == 3
    assert f'{Path(__file__).name}", line' in capfd.readouterr().err


def test_failed_problems_are_tried_again(world: list[str], failing, capfd) -> None:
    folder, failed = failing
    assert main(["bench", *world, "search.n=1"]) == 0
    assert summary(folder)["failed"] == []
    ids = solved(folder)
    assert {name for name in ids if ids.count(name) == 2} == set(failed)
    [run] = read_runs([folder])
    [method] = methods_of([run])
    assert len(Samples(method, ExactTask()).problems) == 12
    assert main(["rerank", str(run.traces), "--task", "exact", "--resamples", "10"]) == 0
    assert "12 problems" in capfd.readouterr().out


def test_tables_of_before_do_not_outlive_a_kill_after_the_last_trace(
    world: list[str], failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, failed = failing

    def killed(*_: object) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_tables", killed)
        main(["bench", *world, "search.n=1"])
    assert len(solved(folder)) == 12 + len(failed)
    assert main(["bench", *world, "search.n=1"]) == 0
    assert summary(folder)["failed"] == []


def test_texts_and_lists_may_hold_commas(world: list[str]) -> None:
    quoted = 'task.instruction="first, think; then, answer"'
    assert main(["bench", "-m", *world, quoted, "search.n=2,3"]) == 0
    assert len(folders(world)) == 2
    for folder in folders(world):
        assert "first, think; then, answer" in (folder / "config.yaml").read_text()


def test_half_characters_in_ids_answers_and_meta_are_written_as_escapes(
    world: list[str], tmp_path: Path
) -> None:
    half, path = "\ud83d", tmp_path / "halves.jsonl"
    rows = [
        {"question": f"{half} {i}", "answer": f"{half}\x85{i}", "key": f"{half}{i}"}
        for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = [f"benchmark.path={path}", "benchmark.id=key", "benchmark.keep=[key]"]
    assert main(["bench", *world, *own, "benchmark.limit=4"]) == 0
    [folder] = folders(world)
    names = [row["id"] for row in table(folder)]
    assert len(names) == 4
    assert all(re.fullmatch(r"file-\\ud83d\d", name) for name in names)
    assert table(folder)[0]["gold"].startswith("\\ud83d\x85")
    assert not list(folder.glob("*.tmp"))
    assert all(name.startswith(f"file-{half}") for name in solved(folder)), "traces keep the id"
    [method] = methods_of(read_runs([folder]))
    assert len(Samples(method, ExactTask()).problems) == 4, "samples find their rows"


def test_a_policy_of_ones_own_is_a_class_and_its_settings(world: list[str]) -> None:
    own = [o for o in world if not o.startswith("policy=")]
    own += [
        "policy._target_=support.worlds.random_policy",
        "policy.max_depth=2",
        "benchmark.limit=2",
    ]
    assert main(["bench", *own]) == 0
    [folder] = folders(own)
    assert len(table(folder)) == 2


def test_hydra_explains_itself(capfd) -> None:
    assert main(["bench", "--help"]) == 0
    assert "benchmark: " in capfd.readouterr().out


def test_what_a_killed_sweep_may_not_do_is_found(world: list[str], tmp_path: Path) -> None:
    assert main(["bench", *world]) == 0
    quiet, killed = tmp_path / "runs", tmp_path / "killed"
    shutil.copytree(quiet, killed)
    same = kills.compare(quiet, killed)
    assert (same.num_runs, same.num_solved) == (1, 12)
    assert same.repeated == same.different == same.cached == ()
    [run] = folders(world)
    traces = (run / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (killed / run.name / "traces.jsonl").write_bytes(b"".join([*traces, traces[3]]))
    rows = (run / "results.csv").read_text()
    gone = rows.splitlines(keepends=True)[:-1]
    for text, column in ((rows.replace("done", "budget"), "stop"), ("".join(gone), "id")):
        (killed / run.name / "results.csv").write_text(text)
        found = kills.compare(quiet, killed)
        assert found.repeated == (f"{run.name}: {solved(run)[3]}",)
        assert any(f", {column}: " in cell for cell in found.different)


@pytest.mark.slow
def test_killed_twice_a_sweep_ends_as_if_undisturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies = options("search")
    arguments = [
        *(
            "hydra.searchpath=[pkg://support.worldconf]",
            "policy=world",
            "verifier=rule",
            "task=exact",
        ),
        "+policy.latency={_target_:support.worlds.latency,scale:0.01}",
        f"search={','.join(strategies)}",
        *("benchmark=file", f"benchmark.path={problems(tmp_path, 200)}"),
    ]

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    assert kills.main([str(tmp_path), *arguments]) == 0
    found = kills.compare(tmp_path / "quiet", tmp_path / "killed")
    assert (found.num_runs, found.num_solved) == (len(strategies), 200 * len(strategies))
    assert found.cached == (), "no cache, no timing"
