"""What the distributions contain, and that the installed wheel works away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("search", "policies", "verifiers", "conf", "benchmarks")
BUILT = "STEPSEARCH_DIST"


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _expected() -> set[str]:
    """Every committed file that belongs in the package, by its path there."""
    listed = _run("git", "ls-files", *PACKAGES, "stepsearch", cwd=ROOT).splitlines()
    modules = {path for path in listed if path.endswith((".py", ".yaml", ".sh", "py.typed"))}
    adapters = {path for path in listed if "/adapters/" in path}
    return {
        path if path.startswith("stepsearch/") else f"stepsearch/{path}"
        for path in modules | adapters
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built from it."""
    if BUILT in os.environ:
        return ROOT / os.environ[BUILT]
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment that has the wheel, and this one's other packages."""
    folder = tmp_path_factory.mktemp("fresh")
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    site_packages = next(folder.glob("lib/python*/site-packages"))
    # A path file is not followed further, so that this checkout's editable install stays out.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index")
    _run(*command, "--no-deps", wheel, cwd=folder)
    return python


def test_wheel_has_every_committed_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    assert _expected() - names == set()


def test_wheel_puts_nothing_beside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        licenses = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert sorted(top.rpartition(".")[2] for top in tops) == ["dist-info", "stepsearch"]
    assert licenses


def test_source_distribution_holds_files_instead_of_links(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert _expected() | {"pyproject.toml", "LICENSE", "README.md"} <= names


def test_installed_wheel_finds_its_modules(installed: Path, tmp_path: Path) -> None:
    modules = sorted(
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in _expected()
        if path.endswith(".py")
    )
    script = (
        "import importlib.util, json, sys\n"
        "names = json.loads(sys.argv[1])\n"
        "print(json.dumps([importlib.util.find_spec(name).origin for name in names]))\n"
    )
    origins = json.loads(_run(installed, "-c", script, json.dumps(modules), cwd=tmp_path))
    fresh = installed.parents[1]
    assert len(origins) == len(modules)
    assert [origin for origin in origins if not Path(origin).is_relative_to(fresh)] == []


def test_installed_wheel_finds_its_configuration(installed: Path, tmp_path: Path) -> None:
    script = (
        "from hydra import compose, initialize_config_module\n"
        "with initialize_config_module('stepsearch.conf', version_base='1.3'):\n"
        "    print(compose('config').search)\n"
    )
    assert "_target_" in _run(installed, "-c", script, cwd=tmp_path)


def test_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    assert "solve" in _run(installed.with_name("stepsearch"), "--help", cwd=tmp_path)
