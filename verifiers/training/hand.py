"""Labels that people gave, and TRL's layout: into labelled solutions and out of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from stepsearch.search.errors import ConfigurationError
from stepsearch.verifiers.training.examples import Label
from stepsearch.verifiers.training.lines import Row

Layout = Literal["prm800k", "trl", "names"]
Taxonomy = Mapping[str, Label]
DEFAULT: Taxonomy = {"good": 1.0, "neutral": None, "bad": 0.0}


def load_taxonomy(path: str | Path) -> dict[str, Label]:
    """Names of labels with their values, from a YAML file: `good: 1`, `neutral: null`, `bad: 0`.

    Raises:
        ConfigurationError: the file cannot be read, or a value is no number from 0 to 1 or null.
    """
    import yaml

    try:
        found = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"taxonomy={path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ConfigurationError(f"taxonomy={path} must map names of labels to values")
    for name, value in found.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value <= 1):
            raise ConfigurationError(
                f"taxonomy={path}: {name}: {value!r} must be a number from 0 to 1, or null for "
                "steps that are not trained on"
            )
    return {str(name): None if v is None else float(v) for name, v in found.items()}


def from_hand(
    rows: Iterable[Mapping[str, Any]], layout: Layout, taxonomy: Taxonomy = DEFAULT
) -> Iterator[Row]:
    """Labelled rows out of rows that people labelled.

    Args:
        rows: `prm800k`: `question.problem` and `label.steps` with rated `completions`; `trl`:
            `prompt`, `completions` and `labels`; `names`: `problem`, `steps` and `labels`, which
            are names of the taxonomy.
        layout: which of them.
        taxonomy: values of named labels.

    Raises:
        ConfigurationError: a row has another form, or a label is not in the taxonomy.
    """
    read = {"prm800k": _from_prm800k, "trl": _from_trl, "names": _from_names}.get(layout)
    if read is None:
        raise ConfigurationError(f"layout={layout!r} must be prm800k, trl or names")
    for number, row in enumerate(rows, start=1):
        try:
            problem, gold, solution = read(row, taxonomy)
        except (KeyError, TypeError, IndexError) as error:
            raise ConfigurationError(
                f"row {number} is not of layout={layout}: {type(error).__name__} {error}"
            ) from error
        if len(solution["steps"]) != len(solution["labels"]):
            raise ConfigurationError(
                f"row {number} has {len(solution['steps'])} steps and "
                f"{len(solution['labels'])} labels"
            )
        yield {
            "id": str(row.get("id", number)),
            "group": problem,
            "problem": problem,
            "answer": gold,
            "solutions": [solution],
        }


_Read = tuple[str, str | None, dict[str, Any]]


def _solution(steps: list[str], labels: list[Label]) -> dict[str, Any]:
    """What people say of the last step is taken for the outcome: it holds the answer."""
    return {
        "steps": [step.rstrip() for step in steps],
        "labels": labels,
        "outcome": labels[-1] if labels else None,
        "answer": None,
    }


def _from_prm800k(row: Mapping[str, Any], _: Taxonomy) -> _Read:
    """Lightman et al. 2023: ratings 1, 0 and -1; 0 counts as right, as they trained with it.

    The chosen completion of each step is taken; where none was chosen, the first one, which ends
    the solution.
    """
    steps, labels = [], list[Label]()
    for step in row["label"]["steps"]:
        chosen = step.get("chosen_completion")
        if chosen is None and step.get("human_completion"):
            steps.append(step["human_completion"]["text"])
            labels.append(1.0)
            continue
        completion = step["completions"][0 if chosen is None else chosen]
        steps.append(completion["text"])
        rating = completion["rating"]
        labels.append(None if rating is None else float(rating >= 0))
        if chosen is None:
            break
    question = row["question"]
    solution = _solution(steps, labels)
    if row["label"].get("finish_reason") not in (None, "solution", "found_error"):
        solution["outcome"] = None
    return question["problem"], question.get("ground_truth_answer"), solution


def _from_trl(row: Mapping[str, Any], _: Taxonomy) -> _Read:
    labels: list[Label] = [None if mark is None else float(mark) for mark in row["labels"]]
    return row["prompt"], row.get("answer"), _solution(list(row["completions"]), labels)


def _from_names(row: Mapping[str, Any], taxonomy: Taxonomy) -> _Read:
    for name in row["labels"]:
        if name not in taxonomy:
            raise ConfigurationError(
                f"label {name!r} is not in the taxonomy, which has: {', '.join(taxonomy)}; add it "
                "to the YAML file"
            )
    labels = [taxonomy[name] for name in row["labels"]]
    return row["problem"], row.get("answer"), _solution(list(row["steps"]), labels)


def to_trl(rows: Iterable[Row], threshold: float = 0.5) -> Iterator[dict[str, Any]]:
    """Rows of TRL's stepwise supervision: `prompt`, `completions`, `labels`.

    TRL knows right and wrong only: soft labels are cut at the threshold, and a solution ends before
    its first step without a label.
    """
    for row in rows:
        for solution in row["solutions"]:
            labels = solution["labels"]
            known = labels.index(None) if None in labels else len(labels)
            if known:
                yield {
                    "prompt": row["problem"],
                    "completions": solution["steps"][:known],
                    "labels": [value >= threshold for value in labels[:known]],
                }
