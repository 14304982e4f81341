"""Client of the NAP-LLM wire over HTTP and SSE (http-binding)."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from server.client.requests import write_request, write_requirements
from server.client.stream import Stream
from server.client.transport import TransportError, checked, events, read_delta, read_generation, read_model, refused
from server.wire import encode
from server.wire.records import Delta, Generation, GenerationRequest, Model, Requirements

PATH = "/nap/llm"


class Client:
    """Client of one endpoint. Failures that the wire reports are raised as WireError, others as TransportError.

    `consent` says that the authorization for each generation has been obtained (tokens of policy `shell`).
    `transport` takes the place of the network.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        identity: str = "",
        endpoint: str = "",
        account: str = "",
        consent: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {
            "Authorization": f"Bearer {token}",
            "Napplet-Identity": identity,
            "Napplet-Endpoint": endpoint,
            "Napplet-Account": account,
            "Napplet-Consent": "granted" if consent else "",
        }
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={name: value for name, value in headers.items() if value},
            # A prefill may take minutes without a byte; the server sends a comment every 15 s under SSE.
            timeout=httpx.Timeout(60.0, read=None),
            # A proxy set for the internet is no way to a server on this machine.
            trust_env=False,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; streams that are open end."""
        await self._http.aclose()

    async def select(self, requirements: Requirements | None = None) -> Model:
        """The model that the server selects for these requirements (NAP-LLM, `llm.select`)."""
        envelope: dict[str, Any] = {"type": "llm.select", "id": _id()}
        if requirements is not None:
            envelope["requirements"] = write_requirements(requirements)
        return read_model((await self._call(envelope))["model"])

    async def describe(self, handle: str) -> Model:
        """The model of a handle, as it is now (NAP-LLM, `llm.describe`)."""
        return read_model((await self._call({"type": "llm.describe", "id": _id(), "handle": handle}))["model"])

    async def cancel(self, request_id: str) -> bool:
        """Cancels a generation (NAP-LLM, `llm.cancel`). False: it was not running any more."""
        answer = await self._call({"type": "llm.cancel", "id": _id(), "requestId": request_id})
        return bool(answer["cancelled"])

    def generate(self, request: GenerationRequest, *, id: str | None = None) -> Stream:
        """The stream of a generation, which starts when its first event is asked for (NAP-LLM, `llm.generate`)."""
        id = id or _id()
        return Stream(id, self._events(id, request), self.cancel)

    async def _events(self, id: str, request: GenerationRequest) -> AsyncGenerator[Delta | Generation, None]:
        envelope = {"type": "llm.generate", "id": id, "request": write_request(request)}
        with _transport_errors():
            async with self._http.stream(
                "POST",
                PATH,
                content=encode(envelope),
                headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
            ) as response:
                if response.status_code != 200:
                    raise refused(response.status_code, await response.aread())
                async for event in events(response.aiter_bytes()):
                    if event["type"] == "llm.delta":
                        yield read_delta(event)
                    else:
                        yield read_generation(checked(event)["result"])
                        return
        raise TransportError("the stream ended without a result")

    async def _call(self, envelope: dict[str, Any]) -> Mapping[str, Any]:
        with _transport_errors():
            response = await self._http.post(
                PATH, content=encode(envelope), headers={"Content-Type": "application/json"}
            )
        if response.status_code != 200:
            raise refused(response.status_code, response.content)
        return checked(response.json())


@contextlib.contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise TransportError(str(error) or type(error).__name__) from error


def _id() -> str:
    return secrets.token_hex(8)
