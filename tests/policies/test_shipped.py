"""The adapters that come with stepsearch."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from stepsearch import Problem
from stepsearch.api import engine_for
from stepsearch.policies.adapters import BASE, WEIGHTS
from stepsearch.policies.embedded import embedded_sha256
from stepsearch.policies.shipped import SHIPPED, find_adapter
from stepsearch.search.errors import ConfigurationError


def test_a_name_is_a_folder_of_ours_and_all_else_is_a_path() -> None:
    assert (find_adapter("embedded/prm") / WEIGHTS).is_file()
    assert find_adapter("./embedded/prm") == Path("embedded/prm")
    assert find_adapter(Path("embedded/prm")) == Path("embedded/prm")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="embedded/policy, embedded/prm, embedded/orm"):
        find_adapter("embedded/prn")


@pytest.mark.parametrize("name", SHIPPED)
def test_it_belongs_to_the_embedded_base_and_tells_where_it_comes_from(name: str) -> None:
    folder = find_adapter(f"embedded/{name}")
    assert json.loads((folder / BASE).read_text())["base_sha256"] == embedded_sha256()
    assert (folder / ("prompt_format.json" if name == "policy" else "verifier.json")).is_file()
    card = (folder / "README.md").read_text()
    for heading in ("Data", "Training", "Figures", "Limits"):
        assert f"## {heading}" in card
    for path in folder.glob("*.json"):
        assert not any(root in path.read_text() for root in ("/root", "/home", "/tmp"))
    with safe_open(folder / WEIGHTS, "pt") as weights:
        assert any(".lora_A." in key for key in weights.keys())  # noqa: SIM118


def test_together_they_are_small() -> None:
    files = [f for n in SHIPPED for f in find_adapter(f"embedded/{n}").iterdir()]
    assert sum(f.stat().st_size for f in files) <= 30e6


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["prm", "ensemble"])
def test_simple_questions_are_answered_right(verifier: str) -> None:
    questions = {
        "A baker makes 5 trays with 12 muffins each. He sells 38 muffins. How many are left?": "22",
        "Sara has 24 apples. She gives 9 apples to Ben. How many apples does she have left?": "15",
        "Ann read 12 pages on Monday and 15 pages on Tuesday. "
        "How many pages did she read in all?": "27",
    }
    engine = engine_for(search="beam", verifier=verifier)
    solved = list(engine.solve_many(Problem(text=q, id=q) for q in questions))
    right = [s for s in solved if s.answer == questions[s.problem.id]]
    # The model is small, and the last bits of its numbers differ between machines.
    assert len(right) >= 2
    assert all(s.score is not None and s.usage.verifier_tokens for s in solved)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prm", "orm"])
def test_the_verifiers_pass_their_self_check(name: str) -> None:
    from stepsearch.verifiers.trained import TrainedVerifier

    verifier = TrainedVerifier(model=f"embedded/{name}", selfcheck=True)
    assert verifier.spec.kind == ("step" if name == "prm" else "outcome")


@pytest.mark.slow
def test_all_share_one_base() -> None:
    from stepsearch.policies.transformers import TransformersPolicy
    from stepsearch.verifiers.trained import TrainedVerifier

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096

    if not Path("/proc/self/statm").is_file():
        pytest.skip("no /proc to read memory from")
    kept = [TransformersPolicy(model="embedded", adapter="embedded/policy")]
    before = resident()
    kept += [TrainedVerifier(model=f"embedded/{n}", selfcheck=False) for n in ("prm", "orm")]
    grown = resident() - before
    assert len(kept) == 3
    # A copy of the base takes at least 269 MB (bfloat16).
    assert grown < 250e6, f"two verifiers took {grown / 1e6:.0f} MB more"
