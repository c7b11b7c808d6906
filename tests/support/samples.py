"""Samples with scores as files, and rows of a reranking by their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepsearch.benchmarks.rerank import RerankSettings, as_json, rerank

QUICK = {"num_resamples": 100, "num_orders": 400}


def write(path: Path, problems: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(p) + "\n" for p in problems), encoding="utf-8")
    return path


def problem(name: str, gold: object, *samples: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    told = [{"text": text, "scores": scores} for text, scores in samples]
    return {"id": name, "problem": f"{name}?", "answer": gold, "samples": told}


def said(answer: object, **scores: object) -> tuple[str, dict[str, Any]]:
    return f"so it is\n#### {answer}", scores


def rows(samples: Path, *verifiers: str, **settings: object) -> dict[str, dict[str, Any]]:
    result = as_json(
        rerank(RerankSettings(samples=samples, verifiers=verifiers, **QUICK | settings))
    )
    return {row["label"]: row for row in result["rows"]}


def accuracy(row: dict[str, Any]) -> list[float]:
    return row["accuracy"]["value"]
