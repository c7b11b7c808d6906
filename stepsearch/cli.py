"""The command line."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from stepsearch import bench, filtering, report, rerank, train, training_data
from stepsearch.progress import told
from stepsearch.search.errors import NOT_STARTED, ConfigurationError, StepsearchError
from stepsearch.search.provenance import version
from stepsearch.search.types import FAILURES
from stepsearch.show import render

if TYPE_CHECKING:
    from stepsearch.search.engine import Engine
    from stepsearch.search.types import Solution, Usage

_SETTING = r"(search|select|policy|verifier|task|budget|sampling|seed|settle|trace)(\.[\w.]+)?=\S*"
_CONF = Path(__file__).parent / "conf"
OK, NO_ANSWER, USAGE_ERROR, FAILED, INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    0: done; 1: no answer; 2: a wrong setting, or a model that is not there; 3: a model failed;
    130: Ctrl-C.
    """
    options = _parse(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return _reader_gone()
    except StepsearchError as error:
        print(f"stepsearch: {error}", file=sys.stderr)
        return USAGE_ERROR if isinstance(error, NOT_STARTED) else FAILED
    except KeyboardInterrupt:
        goes_on = options.command in ("bench", "sample", "label")
        after = "; the same command goes on where it ended" if goes_on else ""
        print(f"stepsearch: interrupted{after}", file=sys.stderr)
        return INTERRUPTED


def _reader_gone() -> int:
    """Whoever read the output (`| head`) has seen enough; nothing more can be written."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return OK


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Settings may stand before and after options; a Hydra application parses its own."""
    parser, commands = _parser()
    options, rest = parser.parse_known_args(arguments)
    if getattr(options, "passes_on", False):
        options.overrides = list(sys.argv[1:] if arguments is None else arguments)[1:]
        return options
    if unknown := [argument for argument in rest if argument.startswith("-")]:
        commands[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by name."""
    parser = argparse.ArgumentParser(
        prog="stepsearch",
        description="Test-time search for reasoning with language models.",
    )
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    solve = commands.add_parser(
        "solve",
        help="solve one question",
        description="Solve one question. Settings are Hydra overrides: search=best_of_n "
        "search.n=16 budget.policy_tokens=4096 select=majority ...",
        epilog=_choices(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    solve.add_argument("question", help="the question, or - to read it from standard input")
    solve.add_argument("overrides", nargs="*", default=[], metavar="SETTING=VALUE")
    solve.add_argument("--json", action="store_true", help="print one JSON object")
    solve.set_defaults(run=_solve)
    check = commands.add_parser(
        "check-verifier",
        help="check that a verifier is fed and read as its model was trained",
        description="Score probes with a verifier and say what came out: verifier=qwen_prm "
        "verifier.model=PATH ... The exit status is 3 when its scores must not be used.",
    )
    check.add_argument("overrides", nargs="*", default=[], metavar="SETTING=VALUE")
    check.set_defaults(run=_check_verifier)
    rerank.add_parser(commands)
    filtering.add_parser(commands)
    bench.add_parser(commands)
    report.add_parser(commands)
    training_data.add_parsers(commands)
    train.add_parser(commands)
    _add_processbench(commands)
    _add_audit(commands)
    return parser, commands.choices


def _choices() -> str:
    """What there is to choose from, by the names of the files that Hydra reads."""
    from stepsearch.conf.options import options

    lines = ["settings:"]
    for group in ("search", "policy", "verifier", "task"):
        text = textwrap.fill(" ".join(options(group)), width=66).replace("\n", "\n" + " " * 14)
        lines.append(f"  {group + '=':<12}{text}")
    lines.append(f"  all others are explained in {_CONF / 'config.yaml'} and the folders beside it")
    return "\n".join(lines)


def _add_processbench(commands: Any) -> None:
    command = commands.add_parser(
        "processbench",
        help="find the first wrong step of labelled solutions",
        description="How well a verifier finds first errors. Settings are Hydra overrides: "
        "verifier=line_prm verifier.adapter=FOLDER ...",
    )
    command.add_argument("source", help="folder with SPLIT.json files, or a data set on the hub")
    command.add_argument("overrides", nargs="*", default=[], metavar="SETTING=VALUE")
    command.add_argument(
        "--split", action="append", help="what is reported; may be repeated; default: all four"
    )
    command.add_argument("--tune", metavar="SPLIT", help="choose the threshold on this split")
    command.add_argument("--threshold", type=float, help="a threshold; default the verifier's own")
    command.add_argument("--json", action="store_true", help="print one JSON array")
    command.set_defaults(run=_processbench)


def _processbench(options: argparse.Namespace) -> int:
    from stepsearch.benchmarks.processbench import main as run

    return run(options)


def _add_audit(commands: Any) -> None:
    command = commands.add_parser(
        "audit",
        help="what moves a verifier's scores",
        description="Edit right solutions and see how a verifier's scores move. Settings are Hydra "
        "overrides: verifier=line_prm verifier.adapter=FOLDER ...",
    )
    command.add_argument("solutions", help="JSON lines with steps, samples or worked answers")
    command.add_argument("overrides", nargs="*", default=[], metavar="SETTING=VALUE")
    command.add_argument("--limit", type=int, default=200, help="most solutions")
    command.add_argument("--seed", type=int, default=0, help="of edits and intervals")
    command.add_argument("--plot", metavar="FILE", help="draw the effects, as PNG, SVG or PDF")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=_audit)


def _audit(options: argparse.Namespace) -> int:
    from stepsearch.benchmarks.output import require_file
    from stepsearch.conf.build import build_verifier
    from stepsearch.verifiers.training import audit

    if options.plot is not None:
        require_file("--plot", Path(options.plot))
        audit.require_plottable(options.plot)
    solutions = audit.load_solutions(options.solutions, options.limit)
    found = audit.audit(build_verifier(options.overrides), solutions, seed=options.seed)
    if options.plot is not None:
        audit.plot(found, options.plot)
        print(f"stepsearch: drew {options.plot}", file=sys.stderr)
    print(json.dumps(asdict(found)) if options.json else audit.render(found))
    return OK


def _solve(options: argparse.Namespace) -> int:
    from stepsearch.api import engine_for

    question = _question(options.question, options.overrides)
    # A model may take a minute to load, in which nothing else is shown.
    with told("stepsearch.api", "stepsearch: %(message)s"):
        engine = engine_for(overrides=options.overrides)
    solution = _watched(engine, question)
    if options.json:
        print(json.dumps(_plain(solution)))
    else:
        select = engine.settings.select
        print(render(solution, colour=sys.stdout.isatty(), select=select))
    if solution.stop == "cancelled":
        return INTERRUPTED
    if solution.stop in FAILURES:
        return FAILED
    return OK if solution.answer is not None else NO_ANSWER


def _question(given: str, overrides: Sequence[str]) -> str:
    """The question, once it is plain that the words behind it are settings, and that it is not."""
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise ConfigurationError(
                f"{override!r} is not of the form SETTING=VALUE; put the question in quotes"
            )
    if re.fullmatch(_SETTING, given):
        raise ConfigurationError(
            f"{given!r} is a setting, and there is no question; give it before the settings: "
            f'stepsearch solve "QUESTION" {given}'
        )
    question = sys.stdin.read() if given == "-" else given
    if not question.strip():
        raise ConfigurationError("the question is empty")
    return question


def _check_verifier(options: argparse.Namespace) -> int:
    from stepsearch.conf.build import build_verifier
    from stepsearch.verifiers.selfcheck import check

    # Here all of a check is shown, also what fails.
    report = check(build_verifier(options.overrides, selfcheck=False))
    print(report)
    return OK if report.is_ok else FAILED


def _watched(engine: Engine, question: str) -> Solution:
    """Solve with a progress bar of policy tokens on the terminal."""
    limit = engine.settings.budget.policy_tokens
    with tqdm(
        total=limit, unit="tok", desc="searching", leave=False, disable=not sys.stderr.isatty()
    ) as bar:

        def show(usage: Usage) -> None:
            bar.update(usage.policy_tokens - bar.n)

        return engine.solve(question, watch=show)


def _plain(solution: Solution) -> dict[str, Any]:
    return {
        "question": solution.problem.text,
        "answer": solution.answer,
        "score": solution.score,
        "stop": solution.stop,
        "error": solution.error,
        "steps": [asdict(step) for step in solution.steps],
        "candidates": [asdict(candidate) for candidate in solution.candidates],
        "usage": asdict(solution.usage),
        "chains_saved": solution.chains_saved,
    }
