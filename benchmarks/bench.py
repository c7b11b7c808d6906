"""`stepsearch bench`: searches over sets of problems, resumable, swept with Hydra.

One configuration is one run and one folder. The traces in it are the only record of what was done:
a run that was killed goes on after them, and all tables are made from them.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from stepsearch.benchmarks.datasets import Benchmark
from stepsearch.benchmarks.device_lock import devices
from stepsearch.benchmarks.grading import Gradable, Grader, gradable
from stepsearch.benchmarks.ray_workers import solve_sharded
from stepsearch.benchmarks.results import as_csv, rows_of, summarize
from stepsearch.benchmarks.run_folder import (
    LOG,
    RESULTS,
    SUMMARY,
    TRACES,
    Done,
    RunFolder,
    replace_file,
)
from stepsearch.conf.build import (
    COMPONENTS,
    NOT_COMPOSED,
    build,
    build_engine,
    build_light,
    not_composed,
    require_complete,
    with_own_classes,
)
from stepsearch.search.errors import (
    NOT_STARTED,
    ConfigurationError,
    PolicyError,
    StepsearchError,
)
from stepsearch.search.task import Task
from stepsearch.search.trace import Trace, TraceWriter, decode
from stepsearch.search.types import Problem, Solution

_log = logging.getLogger(__name__)
OK, OTHER, USAGE_ERROR, FAILED = 0, 1, 2, 3
_SWEEP = ("-m", "--multirun")
_FULL_ERROR = "HYDRA_FULL_ERROR"


def bench(arguments: Sequence[str]) -> int:
    """Run or sweep; returns the exit status.

    0: all runs are complete; 2: a wrong setting; 3: a model failed; 1: anything else went wrong in
    some run. The other runs of a sweep go on.

    Args:
        arguments: what stands on the command line: Hydra's own options and overrides.

    Raises:
        ConfigurationError: Hydra cannot read the settings.
        StepsearchError: a run of a launcher's process failed.
    """
    # Hydra's parser does not find -m between settings.
    ours = sorted(with_own_classes(arguments), key=lambda a: a not in _SWEEP)
    statuses: list[int] = []
    here = os.getpid()

    def job(config: DictConfig) -> None:
        failed = _attempt(config)
        if failed is not None and os.getpid() != here:
            raise failed  # the launcher brings it to the process that was started
        statuses.append(_status(failed))

    main = hydra.main(version_base="1.3", config_path="pkg://stepsearch.conf", config_name="bench")
    try:
        with _logging_restored(), _as_hydra_wants_it(ours):
            main(job)()
    except StepsearchError:
        raise
    except NOT_COMPOSED as error:
        overrides = [argument for argument in arguments if not argument.startswith("-")]
        raise not_composed(error, overrides, "bench") from error
    except SystemExit as error:  # --help, and options that Hydra does not have
        statuses.append(OK if error.code in (None, 0) else USAGE_ERROR)
    return max(statuses, default=OK)


def _attempt(config: DictConfig) -> Exception | None:
    """Execute a run; logs and returns what went wrong."""
    is_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
    run = " ".join(HydraConfig.get().overrides.task) if is_sweep else "the run"
    try:
        execute(config)
    except StepsearchError as error:
        _log.error("stepsearch: %s%s", f"{run}: " if is_sweep else "", error)
        return error
    except Exception as error:
        _log.exception("stepsearch: %s", run)
        return RuntimeError(f"{run}: {error!r}")
    return None


def _status(failed: Exception | None) -> int:
    if failed is None:
        return OK
    if isinstance(failed, StepsearchError):
        return USAGE_ERROR if isinstance(failed, NOT_STARTED) else FAILED
    return OTHER


@contextmanager
def _logging_restored() -> Iterator[None]:
    """Hydra takes over the root logger and leaves it so; the caller of a function wants it back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def _as_hydra_wants_it(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`, and prints errors instead of raising them."""
    argv, full = sys.argv, os.environ.get(_FULL_ERROR)
    sys.argv = ["stepsearch bench", *arguments]
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = full


def execute(config: DictConfig, **loaded: Any) -> Path:
    """Do one run, or what is left of it; returns its folder.

    Args:
        config: of the run.
        loaded: `policy` and `verifier` that are used instead of loading the configured ones, which
            they must be; their caches are as warm as they are.

    Raises:
        ConfigurationError: a setting does not fit, or the folder holds something else.
        PolicyError: some problems have no result; running again tries them again.
    """
    if loaded and config.workers is not None:
        raise ConfigurationError("workers=ray loads models of its own; leave workers=null")
    if config.workers not in (None, "ray"):
        raise ConfigurationError(f"workers={config.workers!r} must be null or ray")
    if config.trace is not None:
        raise ConfigurationError("trace: a run's traces stand in its folder; leave trace=null")
    require_complete(config, [*COMPONENTS, "benchmark"])
    task: Task = build_light(config)["task"]
    benchmark: Benchmark = build(config, "benchmark")
    grader = Grader(task)
    problems = gradable(benchmark.problems(), grader)
    folder = RunFolder(config)
    with folder.claim(problems.problems), _log_file(folder.path / LOG):
        done = folder.done()
        left = sum(problem.id not in done for problem in problems.problems)
        if not left and (folder.path / SUMMARY).exists():
            _log.info("%s: complete before, nothing was done", folder.path)
            return folder.path
        _log.info("%s: %d of %d problems to solve", folder.path, left, len(problems.problems))
        if left:
            # A kill between the last trace and the tables is not to leave old ones that look whole.
            (folder.path / SUMMARY).unlink(missing_ok=True)
            with devices(config.devices):
                _solve(config, folder, problems, done, grader, loaded)
        _write_tables(folder, problems, grader)
    return folder.path


def _solve(
    config: DictConfig,
    folder: RunFolder,
    problems: Gradable,
    done: dict[str, Done],
    grader: Grader,
    loaded: dict[str, Any],
) -> None:
    """Solve what is left; every solution is in the traces before it is counted here."""
    golds = {problem.id: problem.answer or "" for problem in problems.problems}
    right = sum(grader.right(d.answer, golds[name]) is True for name, d in done.items())
    left = [problem for problem in problems.problems if problem.id not in done]
    progress = _Progress(len(golds), len(done), right)
    with progress.bar:
        for solution in _solutions(config, folder, left, grader.task, loaded):
            progress.show(solution, grader.right(solution.answer, golds[solution.problem.id]))
    gc.collect()  # the next run of a sweep starts with the memory free


def _solutions(
    config: DictConfig,
    folder: RunFolder,
    problems: Sequence[Problem],
    task: Task,
    loaded: dict[str, Any],
) -> Iterator[Solution | Trace]:
    """Solve here or on many workers."""
    path = folder.path / TRACES
    if config.workers is None:
        traced = OmegaConf.merge(config, {"trace": str(path)})
        assert isinstance(traced, DictConfig)
        yield from build_engine(traced, task=task, **loaded).solve_many(problems)
    else:
        writer = TraceWriter(path, {})
        for line in solve_sharded(config, problems):
            writer.append(line)
            yield decode(line)


class _Progress:
    """One line: problems, accuracy so far, tokens per second, time left."""

    def __init__(self, total: int, num_done: int, num_right: int) -> None:
        self.bar = tqdm(total=total, initial=num_done, unit="problem", dynamic_ncols=True)
        self._num_right = num_right
        self._tokens = 0
        self._started = time.perf_counter()

    def show(self, solution: Solution | Trace, right: bool | None) -> None:
        """Count a solution."""
        self._num_right += right is True
        self._tokens += solution.usage.policy_tokens
        rate = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        accuracy = self._num_right / (self.bar.n + 1)
        self.bar.set_postfix_str(f"accuracy {accuracy:.1%}, {rate:,.0f} tokens/s", refresh=False)
        self.bar.update()


def _write_tables(folder: RunFolder, problems: Gradable, grader: Grader) -> None:
    rows = rows_of(folder.path / TRACES, problems, grader)
    if not rows:
        raise PolicyError(f"{folder.path}: no problem has a result; see {LOG}")
    summary = summarize(rows, problems)
    replace_file(folder.path / RESULTS, as_csv(rows))
    replace_file(folder.path / SUMMARY, json.dumps(summary, indent=1) + "\n")
    accuracy = summary["accuracy"]
    if accuracy["value"] is not None:
        _log.info(
            "%s: accuracy %.1f%% [%.1f, %.1f], %s policy tokens",
            folder.path,
            *(100 * accuracy[key] for key in ("value", "low", "high")),
            f"{summary['usage']['policy_tokens']:,}",
        )
    for alarm in ("extraction_alarm", "step_alarm"):
        if summary[alarm]:
            _log.warning("%s: %s", folder.path, summary[alarm])
    missing = len(problems.problems) - len(rows)
    if missing or summary["failed"]:
        first = next((f", the first with {row['error']}" for row in rows if row["error"]), "")
        raise PolicyError(
            f"{folder.path}: {missing + len(summary['failed'])} problems failed{first}; "
            "run again to try them again; hydra.verbose=true shows where errors come from"
        )


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Everything that is logged goes into the run's own file too."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    except BaseException:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(traceback.format_exc())
        raise
    finally:
        root.removeHandler(handler)
        handler.close()
