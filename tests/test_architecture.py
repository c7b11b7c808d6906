"""Who may import whom. The tables below are the architecture; the tests hold the code to them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each package imports only packages before it. `stepsearch` stands for the modules of the face.
FLOORS = ("search", "policies", "verifiers", "conf", "benchmarks", "stepsearch")

# Inside search, a module reaches only modules of its own rung or before it, itself and through
# the helper modules that have no rung.
RUNGS = (
    ("types", "errors"),
    ("contracts",),
    ("tree",),
    ("session",),
    ("strategies",),
    ("engine",),
)

# What a package may import from others when it is itself imported.
THIRD_PARTY = {
    "search": {"numpy"},
    "policies": {"filelock", "numpy", "packaging", "tqdm"},
    "verifiers": {"numpy", "packaging", "tqdm"},
    "conf": {"hydra", "omegaconf"},
    "benchmarks": {"hydra", "numpy", "omegaconf", "tqdm", "yaml"},
    "stepsearch": {"hydra", "omegaconf", "tqdm"},
}

# The only modules that may import a model library when they are imported.
MODEL_LIBRARIES = {
    *("huggingface_hub", "jinja2", "peft", "safetensors", "tokenizers", "torch", "transformers"),
}
RUNS_MODELS = {
    "policies": {
        *(
            "adapters",
            "attention",
            "causal",
            "chunks",
            "decode",
            "description",
            "kv_pool",
            "kv_slots",
        ),
        *("loading", "model", "noise", "packing", "prefill", "prompt", "reading", "sampling"),
        *("starts", "text", "transformers", "worker"),
    },
    "verifiers": {
        *("body", "generative", "heads", "implicit", "model_verifier", "outcome", "training"),
        *("openai_body", "openai_routes", "transformers", "vllm_body"),
    },
    "benchmarks": {"perf"},
}

# Libraries that these modules alone may import, even inside a function.
ONLY_IN = {
    "vllm": {"policies.vllm_engine", "benchmarks.perf.gpu_tax"},
    "math_verify": {"search.equality_worker"},
    "sympy": {"search.equality_worker"},
}

# Programs that measure other projects, each in an environment of its own.
PEERS = "benchmarks.perf.peers."

HEAVY = ("torch", "transformers", "vllm", "hydra", "omegaconf", "sympy", "math_verify")


class Import(NamedTuple):
    """One import statement's target.

    Attributes:
        target: dotted name of what is imported, names taken from a module included.
        line: line number.
        when: at `import`, inside a function (`later`), or for type checkers only (`typing`).
    """

    target: str
    line: int
    when: str


def _imports(node: ast.AST, when: str = "import") -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            start = "." * child.level + (child.module or "")
            yield from (Import(f"{start}.{a.name}", child.lineno, when) for a in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for statement in child.body:
                yield from _imports(ast.Module([statement], []), "typing")
            for statement in child.orelse:
                yield from _imports(ast.Module([statement], []), when)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _imports(child, "typing" if when == "typing" else "later")
        else:
            yield from _imports(child, when)


@cache
def _modules() -> dict[str, tuple[Import, ...]]:
    """Imports by module, named from the root: `search.tree`, `stepsearch.cli`."""
    found = {}
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if name.startswith(PEERS):
                continue
            if floor == "stepsearch" and name.split(".")[1] in FLOORS:
                continue  # reached through a link
            name = name.removesuffix(".__init__")
            found[name] = tuple(_imports(ast.parse(path.read_text(encoding="utf-8"))))
    return found


def _where(module: str, found: Import) -> str:
    return f"{module}:{found.line} imports {found.target}"


def _our_floor(target: str) -> str | None:
    """The floor that an import reaches; None for other people's packages."""
    parts = target.split(".")
    if parts[0] != "stepsearch":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in FLOORS else "stepsearch"


def _all() -> Iterator[tuple[str, str, Import]]:
    for module, imports in _modules().items():
        for found in imports:
            yield module.split(".")[0], module, found


def test_there_is_something_to_check() -> None:
    modules = _modules()
    assert {module.split(".")[0] for module in modules} == set(FLOORS)
    assert any(found.target.startswith("stepsearch.") for found in modules["search.tree"])


def test_every_package_imports_only_those_below() -> None:
    wrong = []
    for floor, module, found in _all():
        reached = _our_floor(found.target)
        if reached is not None and FLOORS.index(reached) > FLOORS.index(floor):
            wrong.append(_where(module, found))
    assert wrong == []


def test_imports_are_absolute() -> None:
    wrong = [_where(m, found) for _, m, found in _all() if found.target.startswith(".")]
    assert wrong == []


@cache
def _search_graph() -> dict[str, set[str]]:
    """For every module of search, the modules of search it imports, typing aside."""
    graph: dict[str, set[str]] = {m: set() for m in _modules() if m.startswith("search.")}
    for module in graph:
        for found in _modules()[module]:
            if found.when == "typing":
                continue
            whole = found.target.removeprefix("stepsearch.")
            graph[module] |= {whole, whole.rpartition(".")[0]} & graph.keys()
        graph[module] -= {module}
    return graph


def _reached(module: str) -> set[str]:
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        new = _search_graph()[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return seen


def _rung(module: str) -> int | None:
    name = module.split(".")[1]
    return next((i for i, rung in enumerate(RUNGS) if name in rung), None)


def test_search_is_a_ladder() -> None:
    wrong = []
    for module in _search_graph():
        rung = _rung(module)
        if rung is None:
            continue
        for other in _reached(module):
            above = _rung(other)
            if above is not None and above > rung:
                wrong.append(f"{module} reaches {other}")
    assert wrong == []


def test_search_has_no_import_cycle() -> None:
    assert [module for module in _search_graph() if module in _reached(module)] == []


def _library(found: Import) -> str | None:
    name = found.target.split(".")[0]
    return None if name in ("", "stepsearch") or name in sys.stdlib_module_names else name


def test_libraries_are_imported_where_the_tables_say() -> None:
    wrong = []
    for floor, module, found in _all():
        library = _library(found)
        if library is None or found.when == "typing":
            continue
        if library in ONLY_IN:
            if module not in ONLY_IN[library]:
                wrong.append(_where(module, found))
            continue
        if found.when == "later" and floor != "search":
            continue
        allowed = set(THIRD_PARTY[floor])
        if module.partition(".")[2].split(".")[0] in RUNS_MODELS.get(floor, ()):
            allowed |= MODEL_LIBRARIES
        if library not in allowed:
            wrong.append(_where(module, found))
    assert wrong == []


@pytest.mark.parametrize("module", ["stepsearch", "stepsearch.search.engine"])
def test_import_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_links_are_relative_and_committed_as_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "stepsearch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    links = {
        line.split("\t")[1] for line in listed.stdout.splitlines() if line.startswith("120000 ")
    }
    assert links == {f"stepsearch/{floor}" for floor in FLOORS if floor != "stepsearch"}
    for link in links:
        assert (ROOT / link).readlink() == Path("..") / Path(link).name
