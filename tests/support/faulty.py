"""A server that speaks OpenAI's interface, writes numbers, and misbehaves when it is told to."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from stepsearch.search.background import BackgroundLoop

EOS = 2


class FaultyServer:
    """Writes words and lines drawn from the request's seed.

    Args:
        tokenizer: what turns ids into text.
        sends: what an answer holds beside its text: `ids`, `stop_reason`, `logprobs`, `usage`.

    Attributes:
        faults: what goes wrong with the next requests, first come first served.
        bodies: the requests.
        most_at_once: most requests that were in flight together.
        gathers: no request is answered before so many were in flight together.
        change: what the fault `changed` makes of an answer; a text is sent as it is.
        listed: what /models answers, one after the other; the last stays. A number is a status,
            `cut` breaks the connection.
        moved: whether /models redirects.
    """

    def __init__(self, tokenizer: Any, sends: set[str]) -> None:
        self._tokenizer = tokenizer
        self.sends = sends
        self.faults: deque[str] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = 0
        self.most_at_once = 0
        self.gathers = 0
        self.dropped = 0
        self.url = ""
        self.change: Callable[[Any], object] = lambda answer: answer
        self.moved = False
        self.listed: deque[object] = deque([{"data": [{"id": "tiny", "max_model_len": 512}]}])

    def change_next(self, change: Callable[[Any], object], times: int = 1) -> None:
        """The next answers are what `change` makes of them."""
        self.change = change
        self.faults.extend(["changed"] * times)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method_path = head.split(b" ", 2)
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = json.loads(await reader.readexactly(length)) if length else {}
                self.in_flight += 1
                self.most_at_once = max(self.most_at_once, self.in_flight)
                try:
                    await self._answer(method_path[1].decode(), body, writer)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: Any, writer: asyncio.StreamWriter) -> None:
        if path.endswith("/models"):
            if self.moved:
                return await self._send(writer, 307, "", Location="/elsewhere")
            listed = self.listed.popleft() if len(self.listed) > 1 else self.listed[0]
            if listed == "cut":
                raise ConnectionError("cut off")
            if isinstance(listed, int):
                return await self._send(writer, listed, "no", **{"Retry-After": "0.01"})
            return await self._send(writer, 200, json.dumps(listed))
        self.bodies.append(body)
        fault = self.faults.popleft() if self.faults else "none"
        if fault == "slow":
            try:
                await asyncio.sleep(30)
            finally:
                self.dropped += 1
        if fault.isdigit():
            extra = {"Location": "/elsewhere"} if fault[0] == "3" else {"Retry-After": "0.01"}
            return await self._send(writer, int(fault), "no", **extra)
        if fault == "empty":
            return await self._send(writer, 200, json.dumps({"choices": []}))
        if fault == "html":
            return await self._send(writer, 200, "<html>")
        if fault == "blank":
            return await self._send(writer, 200, "")
        await asyncio.sleep(0.001)
        while self.most_at_once < self.gathers:
            await asyncio.sleep(0.001)
        answer: Any = self._write(path, body)
        if fault == "changed":
            answer = self.change(answer)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        if fault in ("drip", "endless"):
            await self._trickle(writer, *((1, 0.1) if fault == "drip" else (4096, 0.0)))
        if fault == "cut":
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n"
            writer.write((head + text[: len(text) // 2]).encode())
            await writer.drain()
            raise ConnectionError("cut off")
        await self._send(writer, 200, text)

    async def _trickle(self, writer: asyncio.StreamWriter, size: int, pause: float) -> None:
        """Parts of a body that never ends, until nobody reads them."""
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(f"{size:x}\r\n{' ' * size}\r\n".encode())
            await writer.drain()
            await asyncio.sleep(pause)
        raise ConnectionError("nobody reads any more")

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, text: str, **headers: str
    ) -> None:
        data = text.encode()
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(
            f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data
        )
        await writer.drain()

    def _write(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body.get("prompt", "")
        given = prompt if isinstance(prompt, list) else self._encode(prompt)
        draw = random.Random(f"{body.get('seed')}:{len(given)}")
        ids: list[int] = []
        by: Any = None
        finish = "length"
        while len(ids) < body["max_tokens"]:
            piece = draw.choice(["1", "2", "+", " x", "\n", "\n", "eos", "ab"])
            new = [EOS] if piece == "eos" else self._encode(piece)
            ids += new[: body["max_tokens"] - len(ids)]
            if ids[-1] == EOS:
                finish, by = "stop", None
                break
            if ids[-1] in body.get("stop_token_ids", ()):
                finish, by = "stop", ids[-1]
                break
            if any(self._decode(ids).endswith(stop) for stop in body.get("stop", ())):
                finish, by = "stop", body["stop"][0]
                break
        return self._reply(path, ids, finish, by, len(given))

    def _reply(self, path: str, ids: list[int], finish: str, by: Any, given: int) -> dict[str, Any]:
        pieces = ["" if i == EOS else self._decode([i]) for i in ids]
        text = "".join(pieces).removesuffix(by if isinstance(by, str) else "")
        choice: dict[str, Any] = {"finish_reason": finish}
        if "stop_reason" in self.sends:
            choice["stop_reason"] = by
        if "ids" in self.sends:
            choice["token_ids"] = ids
        answer: dict[str, Any] = {"choices": [choice]}
        if "usage" in self.sends:
            answer["usage"] = {
                "completion_tokens": len(ids),
                "prompt_tokens": given,
                "prompt_tokens_details": {"cached_tokens": given // 2},
            }
        if path.endswith("chat/completions"):
            choice["message"] = {"content": text}
            if "logprobs" in self.sends:
                content = [{"token": piece, "logprob": -1.0} for piece in pieces]
                choice["logprobs"] = {"content": content}
        else:
            choice["text"] = text
        return answer

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        assert isinstance(text, str)
        return text


@contextmanager
def running(server: FaultyServer) -> Iterator[FaultyServer]:
    """Serve on a free port while the block runs."""
    loop = BackgroundLoop()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(server.handle, "127.0.0.1", 0)

    async def stop(listening: asyncio.Server) -> None:
        listening.close()

    listening = loop.submit(start()).result()
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        loop.submit(stop(listening)).result()
        loop.close()


@contextmanager
def dropping_connections() -> Iterator[str]:
    """The address of a host that lets attempts to connect pass unanswered: its queue is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            queued = stack.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
