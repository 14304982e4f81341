"""State of the server as its owner sees it: connections, endpoints, generations, decisions and tokens."""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from server.http import stream
from server.http.asgi import Send
from server.runtime import Endpoint, Runtime
from server.runtime.decisions import ConsentDecision, Decision
from server.runtime.generation import LiveGeneration
from server.runtime.served_model import ServedModel
from server.state import TokenStore
from server.wire import encode
from server.wire.results import write_part

PACE = 0.25
"""Seconds between two events at least, however much changes."""
LIVELY = 1.0
"""Seconds between two events while tokens are being generated."""
HEARTBEAT = 10.0


class OwnerState:
    """View of a runtime and its tokens, at once or as a stream of events."""

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        self._runtime = runtime
        self._tokens = tokens

    async def stream(self, send: Send) -> None:
        """Sends the state as an event, now and after every change, until the server ends."""
        last = b""
        wrote = 0.0
        closing = self._runtime.closing
        while not closing.is_set():
            version = self._runtime.changes.version
            state = encode(self.snapshot())
            now = time.monotonic()
            if state != last or now - wrote > HEARTBEAT:
                await send(
                    {
                        "type": "http.response.body",
                        "body": stream.event(state) if state != last else stream.COMMENT,
                        "more_body": True,
                    }
                )
                last, wrote = state, now
            with suppress(TimeoutError):
                async with asyncio.timeout(PACE):
                    await closing.wait()
            lively = next(self._runtime.live(), None) is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(LIVELY if lively else HEARTBEAT):
                    await self._runtime.changes.since(version)
        await send({"type": "http.response.body", "body": b""})

    def snapshot(self) -> dict[str, Any]:
        """The whole state, without content."""
        runtime = self._runtime
        handles = runtime.handles.endpoints()
        return {
            "connections": [self._connection(each) for each in runtime.connections],
            "endpoints": [
                {**_endpoint(each), "handles": handles.get(each, 0)}
                for each in sorted(runtime.endpoints(), key=lambda e: (e.token, e.identity, e.endpoint, e.account))
            ],
            "generations": [_generation(each) for each in runtime.live()],
            "decisions": [self._decision(each) for each in runtime.decisions.waiting()],
            "tokens": [
                {"name": each.name, "consent": each.consent, "select": each.select, "created": each.created}
                for each in self._tokens.list()
            ],
        }

    def _connection(self, connection: ServedModel) -> dict[str, Any]:
        engine = connection.loaded
        value: dict[str, Any] = {
            "key": connection.key,
            "name": connection.config.name,
            "model": connection.config.model,
            "route": self._runtime.route_of(connection),
            "enabled": connection.enabled,
            "state": "loaded" if engine is not None else "loading" if connection.lease.loading else "unloaded",
        }
        if engine is not None:
            stats = engine.stats()
            value |= {
                "alive": engine.alive,
                "memory": resident(engine.pid),
                "contextLength": engine.info.context_length,
                "slots": engine.info.slots,
                "active": stats.active,
                "queued": stats.queued,
                "workerActive": stats.worker_active,
                "workerQueued": stats.worker_queued,
                "outputTokens": stats.output_tokens,
                "forcedTokens": stats.jump_forward_tokens,
                "restarts": stats.restarts,
                "notes": list(engine.info.notes),
            }
        return value

    def _decision(self, decision: Decision) -> dict[str, Any]:
        value: dict[str, Any] = {
            "id": decision.id,
            "kind": decision.kind,
            "endpoint": _endpoint(decision.endpoint),
            "created": decision.created,
            "expires": decision.expires,
        }
        if isinstance(decision, ConsentDecision):
            value["disclosure"] = asdict(decision.disclosure)
        else:
            value["requirements"] = {k: v for k, v in asdict(decision.requirements).items() if v}
            chosen = [self._runtime.connection(key) for key in decision.choices]
            value["choices"] = [
                {"key": each.key, "name": each.config.name, "model": each.config.model} for each in chosen if each
            ]
        return value


def write_content(decision: ConsentDecision) -> dict[str, Any]:
    """Content of a pending generation, as its owner may read it before the decision."""
    request = decision.request
    content = {
        "messages": [
            {"role": message.role, "content": [write_part(part) for part in message.content]}
            for message in request.messages
        ],
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in request.tools
        ],
        "format": request.format,
        "continued": [{"message": index, "tokens": size} for index, size in decision.continued.items()],
    }
    return content if decision.schema is None else {**content, "schema": decision.schema}


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "id": endpoint.scope,
        "token": endpoint.token,
        "identity": endpoint.identity,
        "endpoint": endpoint.endpoint,
        "account": endpoint.account,
    }


def _generation(live: LiveGeneration) -> dict[str, Any]:
    seconds = time.time() - live.first_token if live.first_token is not None else 0.0
    return {
        "number": live.number,
        "endpoint": _endpoint(live.endpoint),
        "connection": live.connection,
        "stage": live.stage,
        "created": live.created,
        "outputTokens": live.output_tokens,
        "tokensPerSecond": round(live.output_tokens / seconds, 1) if seconds > 0 else None,
    }


def resident(pid: int) -> int | None:
    """Bytes of RAM of a worker, where the system tells (proc_pid_statm(5))."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * resource.getpagesize()
