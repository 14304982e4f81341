"""Selection: which connection serves an endpoint (NAP-LLM, "Requirements"), by capability or by the owner's choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from server.chat import Capabilities
from server.config import Config
from server.runtime.decisions import PendingDecisions, SelectionDecision
from server.runtime.endpoint import Caller
from server.runtime.generation import LiveGeneration
from server.runtime.handles import Handles
from server.runtime.served_model import ServedModel, satisfies
from server.wire.records import Model, Requirements, WireError


class Selector:
    """Choice among the connections, and the handles that record it.

    `machine` is the name under which others reach this server, None where only this machine does.
    """

    def __init__(
        self,
        config: Config,
        connections: Sequence[ServedModel],
        handles: Handles,
        decisions: PendingDecisions,
        *,
        changed: Callable[[], None],
        machine: str | None = None,
    ) -> None:
        self._config = config
        self._connections = connections
        self._handles = handles
        self._decisions = decisions
        self._changed = changed
        self._route = f"llama.cpp on {machine}" if machine else "llama.cpp on this machine"

    def connection(self, key: str) -> ServedModel | None:
        """Connection of this key, disabled or not."""
        return next((each for each in self._connections if each.key == key), None)

    async def select(self, caller: Caller, requirements: Requirements) -> Model:
        able = await self.eligible(requirements, caller.select)
        if not able:
            raise WireError("unsupported", "no connection meets the requirements")
        connection, capabilities = able[0]
        if caller.select == "ask":
            expires = time.time() + self._config.server.deadline
            connection, capabilities = await self.ask_owner(caller, able, requirements, expires)
        handle = self._handles.issue(caller.endpoint, connection)
        self._changed()
        return self.describe(handle, connection, capabilities)

    async def eligible(self, requirements: Requirements, select: str) -> list[tuple[ServedModel, Capabilities]]:
        """The connections that meet the requirements. Where the owner's standing choice counts it is the first, and no
        other is looked at: its file may have to be fetched."""
        able = []
        broken: WireError | None = None
        for connection in self._connections:
            if not connection.enabled or requirements.model not in (None, connection.config.model):
                continue
            try:
                capabilities = await connection.capabilities()
            except WireError as error:
                broken = error if connection.enabled else broken
                continue
            if satisfies(connection.config, capabilities, requirements):
                able.append((connection, capabilities))
                if select == "default":
                    break
        if not able and broken is not None:
            raise broken
        return able

    async def ask_owner(
        self, caller: Caller, able: list[tuple[ServedModel, Capabilities]], requirements: Requirements, expires: float
    ) -> tuple[ServedModel, Capabilities]:
        """Owner's choice among connections. The question stands until `expires`, in seconds since the epoch."""
        choices = tuple(connection.key for connection, _ in able)
        key = await self._decisions.selection(SelectionDecision(caller.endpoint, requirements, choices, expires))
        if key is None:
            raise WireError("user-cancelled", "the user declined the selection")
        connection = next(each for each, _ in able if each.key == key)
        # Choosing takes time: the connection may be disabled by now, and its file another one.
        if not connection.enabled:
            raise WireError("unsupported", "the chosen connection has been disabled")
        capabilities = await connection.capabilities()
        if not satisfies(connection.config, capabilities, requirements):
            raise WireError("unsupported", "the chosen connection does not meet the requirements any more")
        return connection, capabilities

    async def resolve(self, live: LiveGeneration) -> str:
        """The request's handle; where the options name a connection or what it must do, the endpoint's own to that one.

        An owner who makes an endpoint's choices is asked before its first handle, as by `select`.
        """
        options = live.options
        if options.connection is None and options.requirements is None:
            return live.request.handle
        needs = options.requirements or Requirements()
        if options.connection is None:
            able = await self.eligible(needs, live.caller.select)
        else:
            named = self.connection(options.connection)
            if named is None or not named.enabled:
                raise WireError("unsupported", "no such connection is offered")
            capabilities = await named.capabilities()
            able = [(named, capabilities)] if satisfies(named.config, capabilities, needs) else []
            needs = replace(needs, model=named.config.model)
        if not able:
            raise WireError("unsupported", "no connection meets the requirements")
        connection = able[0][0]
        if live.caller.select == "ask":
            held = [each for each, _ in able if self._handles.held(live.endpoint, each)]
            asked = time.monotonic()
            expires = live.created + self._config.server.deadline
            connection = held[0] if held else (await self.ask_owner(live.caller, able, needs, expires))[0]
            live.decided_in += time.monotonic() - asked
        return self._handles.issue(live.endpoint, connection)

    def route_of(self, connection: ServedModel) -> str:
        """Place where a connection's work is done, as the owner is told before a disclosure."""
        return ", ".join((self._route, *connection.config.rpc))

    def describe(self, handle: str, connection: ServedModel, capabilities: Capabilities) -> Model:
        """Wire record of a selected connection (NAP-LLM, "Model")."""
        return Model(
            handle=handle,
            name=connection.config.name,
            model=connection.config.model,
            route=self.route_of(connection),
            images=capabilities.images,
            json=capabilities.json,
            tools=capabilities.tools,
            tool_choice_modes=capabilities.tool_choice_modes,
        )
