"""vLLM's own server as a process of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stepsearch.policies.child import child, tail

NAME = "tiny"
_SECONDS = 900
"""What a start may take: it is half a minute of work, of which a crowded machine makes many."""


class Server(NamedTuple):
    """A server that was started, and may not be ready yet.

    Attributes:
        process: its process.
        port: where it listens.
        log: what it writes.
    """

    process: subprocess.Popen[str]
    port: int
    log: Path

    def url(self) -> str:
        """The address to ask, once it answers."""
        for _ in range(_SECONDS):
            if self.process.poll() is not None:
                pytest.fail(f"the server ended:\n{tail(self.log)}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return f"http://127.0.0.1:{self.port}/v1"
            time.sleep(1)
        pytest.fail(f"the server is not ready after {_SECONDS} s:\n{tail(self.log)}")


@contextlib.contextmanager
def serving(folder: Path, **options: object) -> Iterator[Server]:
    """Serve a model under `NAME` on a free port; several servers start side by side.

    Args:
        folder: the model.
        options: of the server, by their names.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "model": folder,
        "served-model-name": NAME,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "block-size": 32,
        "max-num-seqs": 64,
        "generation-config": "vllm",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--enforce-eager", "--disable-uvicorn-access-log", "--enable-prompt-tokens-details"]
    for name, value in (given | options).items():
        command += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    log = folder / "server.log"
    with child(command, {"VLLM_CPU_KVCACHE_SPACE": "1"}, log) as process:
        yield Server(process, port, log)
        process.terminate()
        process.wait(timeout=60)
