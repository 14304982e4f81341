"""Drives a server and takes the time: a small HTTP/1.1 client for event streams that costs both sides the same.

On a small machine what the client burns is taken from the server's decode. So one `asyncio.Protocol` per request,
nothing decoded but the last event, and the same code for every kind of server.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

HERE = Path(__file__).parent

RUN = f"{int(time.time()) % 1_000_000:06d}"
"""Begins what is fresh: a server that has met an earlier run's prompts has not met this one's."""


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
    """UTF-8 bytes of what the events carried, counted alike for every kind of server."""
    finish: str = ""
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.events[0] - self.began

    @property
    def seconds(self) -> float:
        """From the request's departure to the end of its answer."""
        return self.ended - self.began

    @property
    def gaps(self) -> list[float]:
        """Seconds between an event and the next."""
        return [later - former for former, later in pairwise(self.events)]

    @property
    def good(self) -> bool:
        return bool(self.events) and not self.error


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
    def read(self, event: dict[str, Any], outcome: Outcome) -> None:
        """Takes usage or the error from the final event."""

    @abstractmethod
    def text(self, event: dict[str, Any]) -> str:
        """The output that an event carries."""


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

    def text(self, event: dict[str, Any]) -> str:
        return str(event["text"])


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

    def text(self, event: dict[str, Any]) -> str:
        delta = event["choices"][0]["delta"]
        calls = (call["function"].get("arguments") or "" for call in delta.get("tool_calls") or ())
        return (delta.get("content") or "") + "".join(calls)


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
        self.given_up = False
        self._asked = asked
        self._payload = payload
        self._head = b""
        self._lines = b""
        self._chunked: _Chunks | None = None
        self._in_body = False
        self._output: list[bytes] = []
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
                self._output.append(line)
                self.first.set()
            if self._asked.final in line:
                self._final = line

    def connection_lost(self, error: Exception | None) -> None:
        self.outcome.ended = time.perf_counter()
        self.outcome.output_bytes = sum(len(self._asked.text(_event(line)).encode()) for line in self._output)
        if self._final and not self.outcome.error:
            self._asked.read(_event(self._final), self.outcome)
        elif not self.outcome.error:
            self.outcome.error = "the stream ended without a result"
        self.first.set()
        self.done.set()

    def close(self) -> None:
        """Gives the request up, as a caller who has gone."""
        if self._transport is not None and not self.done.is_set():
            self.given_up = True
            self._transport.abort()


def _event(line: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line.removeprefix(b"data:"))
    return event


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


async def start_body(asked: Server, body: Mapping[str, Any] | bytes) -> Stream:
    """Sends a request as it stands in `body`, or in its JSON text; the stream goes on by itself."""
    payload = _payload(asked, body, "text/event-stream")
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(asked, payload), *asked.address)
    return stream


async def ask(asked: Server, request: Request) -> Outcome:
    """The request from start to end."""
    return await ask_body(asked, asked.body(request))


async def ask_body(asked: Server, body: Mapping[str, Any] | bytes) -> Outcome:
    """The same, of a request as it stands in `body`."""
    stream = await start_body(asked, body)
    await stream.done.wait()
    return stream.outcome


async def post(asked: Server, body: Mapping[str, Any]) -> dict[str, Any]:
    """A call with a plain JSON answer."""
    return (await timed_post(asked, body))[0]


async def timed_post(asked: Server, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """The same, and what the server says of its own times, in milliseconds (W3C Server Timing, 2)."""
    head, answer = await _call(asked, _payload(asked, body, "application/json"))
    lines = re.findall(rb"^server-timing:(.*?)\r?$", head, re.IGNORECASE | re.MULTILINE)
    metrics = re.findall(rb"([\w-]+)\s*;\s*dur=([0-9.]+)", b",".join(lines))
    return answer, {name.decode(): float(value) for name, value in metrics}


async def owner_state(asked: Server, owner_token: str) -> dict[str, Any]:
    """What the owner's API says the server holds and does now."""
    lines = [
        "GET /owner/state HTTP/1.1",
        f"Host: {urlsplit(asked.url).netloc}",
        f"Authorization: Bearer {owner_token}",
        "Connection: close",
    ]
    return (await _call(asked, "\r\n".join([*lines, "", ""]).encode()))[1]


async def _call(asked: Server, payload: bytes) -> tuple[bytes, dict[str, Any]]:
    """Head and JSON body of the answer. Raises RuntimeError where it is an error."""
    reader, writer = await asyncio.open_connection(*asked.address)
    writer.write(payload)
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
    return head, answer


def _payload(asked: Server, body: Mapping[str, Any] | bytes, accept: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
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
        self.fresh: str | None = self._facts.get("fresh")
        """Whose prompts begin alike with a number of their own: each `request`'s, or those of a `round`."""

    def request(self, round: int, index: int, temperature: float = 0.0) -> Request:
        """The request that stands at `index` of the round. Rounds differ only where prompts are fresh."""
        prompts = self._facts["prompts"]
        number = {"request": f"Case {RUN}-{round}-{index}. ", "round": f"Case {RUN}-{round}. "}.get(
            self.fresh or "", ""
        )
        return Request(
            user=prompts[index % len(prompts)],
            system=number + self._system if self._system else None,
            max_tokens=self.max_tokens,
            temperature=temperature,
            answer=self.answer,
            tool=self._tool,
        )


def save(figures: Mapping[str, Any], path: Path | None) -> None:
    """Write figures as JSON, where that is asked for."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def percentile(values: list[float], percent: float) -> float:
    """By linear interpolation between the closest ranks; not-a-number where there is no value."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, minimum and maximum; nothing where there is no value."""
    if not values:
        return {}
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def machine() -> dict[str, Any]:
    """Where a measurement was taken, so that its figures can be read later."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        asked = subprocess.run(query, capture_output=True, text=True, check=False)
        gpus = asked.stdout.split("\n")[:-1] if asked.returncode == 0 else []
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": names[0] if names else platform.processor() or platform.machine(), "cpus": cpus, "gpus": gpus}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
