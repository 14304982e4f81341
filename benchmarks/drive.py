"""Drives a server and takes the time: a small HTTP/1.1 client for event streams that costs both sides the same.

On a small machine what the client burns is taken from the server's decode. So one `asyncio.Protocol` per request,
nothing decoded but the last event, and the same code for every kind of server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

HERE = Path(__file__).parent


@dataclass(slots=True)
class Request:
    """One question, for any kind of server."""

    user: str
    system: str | None
    max_tokens: int
    temperature: float
    answer: str
    """`text`, `json`, or `tool`: the workloads' tool, forced."""
    tool: Mapping[str, Any]


@dataclass(slots=True)
class Outcome:
    """What came of one request; times in seconds of `time.perf_counter`."""

    began: float
    ended: float = 0.0
    events: list[float] = field(default_factory=list)
    """When each event with output arrived."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    output_bytes: int = 0
    finish: str = ""
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.events[0] - self.began


class Server(ABC):
    """A kind of server: how it is asked, and how its last event is read."""

    path: ClassVar[str]
    output: ClassVar[re.Pattern[bytes]]
    """Matches an event that carries output."""
    final: ClassVar[bytes]
    """Stands in the event that carries usage or the error."""

    def __init__(self, url: str, token: str, model: str | None = None) -> None:
        self.url = url
        self.model = model
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"{url!r} is no URL of a server")
        self.address = (parts.hostname, parts.port or 80)

    async def prepare(self) -> None:
        """What is needed once before requests. Raises OSError where no server answers."""
        _, writer = await asyncio.open_connection(*self.address)
        writer.close()

    @abstractmethod
    def body(self, request: Request) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, event: dict[str, Any], outcome: Outcome) -> None: ...


class Nap(Server):
    """A server of the NAP-LLM wire."""

    path = "/nap/llm"
    output = re.compile(rb'"event":\s?"delta"')
    final = b'"llm.generate.result"'

    def __init__(self, url: str, token: str, model: str | None = None) -> None:
        super().__init__(url, token, model)
        self.headers["Napplet-Consent"] = "granted"
        self.handle = ""
        self._count = 0

    async def prepare(self) -> None:
        requirements = {"model": self.model} if self.model else {}
        answer = await post(self, {"type": "llm.select", "id": self.id(), "requirements": requirements})
        self.handle = answer["model"]["handle"]

    def id(self) -> str:
        self._count += 1
        return f"b{self._count}"

    def body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": "user", "content": [{"type": "text", "text": request.user}]}]
        if request.system:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": request.system}]})
        generation: dict[str, Any] = {
            "handle": self.handle,
            "messages": messages,
            "maxTokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.answer == "json":
            generation["format"] = "json"
        if request.answer == "tool":
            generation["tools"] = [request.tool]
            generation["toolChoice"] = {"type": "tool", "name": request.tool["name"]}
        return {"type": "llm.generate", "id": self.id(), "request": generation}

    def read(self, event: dict[str, Any], outcome: Outcome) -> None:
        if error := event.get("error"):
            outcome.error = f"{error['code']}: {error['message']}"
            return
        result = event["result"]
        outcome.finish = result["finish"]
        usage = result.get("usage", {})
        outcome.prompt_tokens = usage.get("inputTokens", 0)
        outcome.cached_tokens = usage.get("cacheReadTokens", 0)
        outcome.output_tokens = usage.get("outputTokens", 0)
        for part in result["content"]:
            text = part["text"] if "text" in part else json.dumps(part["arguments"], separators=(",", ":"))
            outcome.output_bytes += len(text.encode())


class OpenAI(Server):
    """A peer with the OpenAI chat API, such as llama-server."""

    path = "/v1/chat/completions"
    output = re.compile(rb'"content":\s?"[^"]|"arguments":\s?"[^"]')
    final = b'"usage"'

    def body(self, request: Request) -> dict[str, Any]:
        messages = [{"role": "user", "content": request.user}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        body: dict[str, Any] = {
            "messages": messages,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model:
            body["model"] = self.model
        if request.answer == "json":
            body["response_format"] = {"type": "json_object"}
        if request.answer == "tool":
            schema = {"name": request.tool["name"], "schema": request.tool["parameters"], "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def read(self, event: dict[str, Any], outcome: Outcome) -> None:
        usage = event["usage"]
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        outcome.output_tokens = usage["completion_tokens"]


KINDS: dict[str, type[Server]] = {"nap": Nap, "openai": OpenAI}


def server(text: str, token: str, model: str | None) -> Server:
    """`nap:http://host:port` or `openai:http://host:port`."""
    kind, _, url = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"{text!r} is not nap:URL or openai:URL")
    return KINDS[kind](url, token, model)


class Stream(asyncio.Protocol):
    """One request and its event stream. `done` is set at the end, however it comes."""

    def __init__(self, asked: Server, payload: bytes) -> None:
        self.outcome = Outcome(time.perf_counter())
        self.done = asyncio.Event()
        self.first = asyncio.Event()
        self._asked = asked
        self._payload = payload
        self._head = b""
        self._lines = b""
        self._chunked: _Chunks | None = None
        self._in_body = False
        self._final = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, but speak like them.
        self._transport = cast(asyncio.Transport, transport)
        # The clock starts when the request leaves.
        self.outcome.began = time.perf_counter()
        self._transport.write(self._payload)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._in_body:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._in_body = True
            if b"chunked" in head.lower():
                self._chunked = _Chunks()
            status = head.split(b" ", 2)[1].decode()
            if status != "200":
                self.outcome.error = f"status {status}"
        if self._chunked is not None:
            data = self._chunked.take(data)
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            if self._asked.output.search(line):
                self.outcome.events.append(now)
                self.first.set()
            if self._asked.final in line:
                self._final = line

    def connection_lost(self, error: Exception | None) -> None:
        self.outcome.ended = time.perf_counter()
        if self._final and not self.outcome.error:
            self._asked.read(json.loads(self._final.removeprefix(b"data:")), self.outcome)
        elif not self.outcome.error:
            self.outcome.error = "the stream ended without a result"
        self.first.set()
        self.done.set()

    def close(self) -> None:
        """Gives the request up, as a caller who has gone."""
        if self._transport is not None:
            self._transport.abort()


class _Chunks:
    """Takes chunked framing off (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0

    def take(self, data: bytes) -> bytes:
        data = self._rest + data
        body = []
        while data:
            if self._left > 0:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                body.append(piece)
                continue
            size, found, after = data.lstrip(b"\r\n").partition(b"\r\n")
            if not found:
                break
            self._left, data = int(size.split(b";")[0], 16), after
            if self._left == 0:
                data = b""
        self._rest = data
        return b"".join(body)


async def start_body(asked: Server, body: Mapping[str, Any]) -> Stream:
    """Sends a request as it stands in `body`; the stream goes on by itself."""
    payload = _payload(asked, body, "text/event-stream")
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(asked, payload), *asked.address)
    return stream


async def ask(asked: Server, request: Request) -> Outcome:
    """The request from start to end."""
    stream = await start_body(asked, asked.body(request))
    await stream.done.wait()
    return stream.outcome


async def post(asked: Server, body: Mapping[str, Any]) -> dict[str, Any]:
    """A call with a plain JSON answer."""
    reader, writer = await asyncio.open_connection(*asked.address)
    writer.write(_payload(asked, body, "application/json"))
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if b"chunked" in head.lower():
        content = _Chunks().take(content)
    status = head.split(b" ", 2)[1].decode()
    if status != "200":
        raise RuntimeError(f"{asked.url} answered {status}: {content.decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(content)
    if error := answer.get("error"):
        raise RuntimeError(f"{asked.url} answered {error['code']}: {error['message']}")
    return answer


def _payload(asked: Server, body: Mapping[str, Any], accept: str) -> bytes:
    content = json.dumps(body).encode()
    headers = {
        "Host": urlsplit(asked.url).netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Accept": accept,
        "Connection": "close",
        **asked.headers,
    }
    lines = [f"POST {asked.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + content


class Workload:
    """A named list of requests, the same for every server."""

    def __init__(self, name: str, file: Path = HERE / "workloads.json") -> None:
        document = json.loads(file.read_text(encoding="utf-8"))
        if name not in document["workloads"]:
            raise ValueError(f"no workload is named {name}; there are {', '.join(document['workloads'])}")
        self._facts = document["workloads"][name]
        self._tool = document["tool"]
        self._system = document["long_system"] if self._facts.get("system") == "long" else None
        self.max_tokens: int = self._facts["max_tokens"]
        self.answer: str = self._facts["answer"]

    def request(self, round: int, index: int, temperature: float = 0.0) -> Request:
        """The request that stands at `index` of the round. Rounds differ only where prompts are fresh."""
        prompts = self._facts["prompts"]
        number = {"request": f"Case {round}-{index}. ", "round": f"Case {round}. "}.get(self._facts.get("fresh"), "")
        return Request(
            user=prompts[index % len(prompts)],
            system=number + self._system if self._system else None,
            max_tokens=self.max_tokens,
            temperature=temperature,
            answer=self.answer,
            tool=self._tool,
        )


def percentile(values: list[float], percent: float) -> float:
    """By linear interpolation between the closest ranks; not-a-number where there is no value."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
