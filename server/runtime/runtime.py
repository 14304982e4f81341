"""Runtime of NAP-LLM: selections, consent, generations and their settlement, for any API above it.

What ends a generation early is told by what was lost, at whatever stage it is (NAP-LLM, "Error Handling"):

| lost | outcome |
| --- | --- |
| the wish for it: the caller's cancel, its closed request, the owner's stop | `cancelled` |
| the authorization: its endpoint destroyed, its account ended, its token revoked | `cancelled` |
| the owner's leave to use the model: the connection disabled, the model unloaded | `cancelled` |
| what was selected: a file of the model replaced, or found to offer less than was told | `selection-expired` |
| the provider: its worker dead | `provider-error`, `reason` `engine` |
| the provider: its model cannot be loaded, or its file not be had | `provider-error`, `reason` `load` |
| the provider: the server itself ends | `provider-error`, `reason` `shutdown` |
| the time | `timeout` |

So do selections and descriptions that wait. But a connection that is taken away takes its handles along: describing it
is `selection-expired` then, and a selection goes on with the connections that are left.
"""

from __future__ import annotations

import asyncio
import secrets

from server.chat import ImageLimits
from server.config import Config
from server.runtime.changes import ChangeFeed
from server.runtime.clock import Clock, LoopClock
from server.runtime.continuation import Continuations
from server.runtime.decisions import PendingDecisions
from server.runtime.endpoint import Caller
from server.runtime.generation import LiveGeneration
from server.runtime.handles import Handles
from server.runtime.metrics import GenerationCounters
from server.runtime.options import GenerationOptions
from server.runtime.ports import ChatService, FetchFile, MakeParser, StartEngine
from server.runtime.registry import GenerationRegistry
from server.runtime.run import GenerationRun, RunServices
from server.runtime.selection import Selector
from server.runtime.served_model import ServedModel
from server.wire.records import GenerationRequest, Model, Requirements, WireError

_NO_OPTIONS = GenerationOptions()


class Runtime:
    """Facade of the room: selection, generation and their ends, between authenticated requests and the engines.

    All methods are called from one event loop. `machine` is the name under which others reach this server, None where
    only this machine does. `secret` seals continuations; without one they end with the process.
    """

    def __init__(
        self,
        config: Config,
        *,
        chat: ChatService,
        start_engine: StartEngine,
        make_parser: MakeParser,
        fetch_file: FetchFile,
        clock: Clock | None = None,
        machine: str | None = None,
        secret: bytes | None = None,
    ) -> None:
        clock = clock or LoopClock()
        self.config = config
        self.limits = config.server.limits
        self.changes = ChangeFeed()
        self.metrics = GenerationCounters()
        self.handles = Handles(self.limits.handles_per_token)
        self.decisions = PendingDecisions(self.changes.notify)
        self.registry = registry = GenerationRegistry(
            self.limits, clock=clock, changes=self.changes, handles=self.handles, metrics=self.metrics
        )
        self.connections = tuple(
            ServedModel(
                each,
                queue=self.limits.queue,
                patience=config.server.watchdog,
                chat=chat,
                start_engine=start_engine,
                fetch_file=fetch_file,
                clock=clock,
                changed=self.changes.notify,
                expired=registry.end_selections,
                make_room=self._make_room,
                images=ImageLimits(self.limits.image_pixels, self.limits.image_frames),
            )
            for each in config.connections
        )
        self.selector = Selector(
            config, self.connections, self.handles, self.decisions, changed=self.changes.notify, machine=machine
        )
        self.services = RunServices(
            config=config,
            chat=chat,
            make_parser=make_parser,
            continuations=Continuations(secret or secrets.token_bytes(32)),
            decisions=self.decisions,
            handles=self.handles,
            selector=self.selector,
            metrics=self.metrics,
        )
        # The ends that come from outside, and the views of what there is.
        self.cancel, self.stop, self.revoke = registry.cancel, registry.stop, registry.revoke
        self.end_endpoint, self.end_account = registry.end_endpoint, registry.end_account
        self.end_token, self.drain = registry.end_token, registry.drain
        self.live, self.endpoints, self.closing = registry.live, registry.endpoints, registry.closing
        self.connection, self.route_of = self.selector.connection, self.selector.route_of

    # --- operations of the wire; `cancel` is the registry's

    async def select(self, caller: Caller, requirements: Requirements) -> Model:
        """Raises `unsupported` where no connection meets the requirements, `user-cancelled` where the owner says no."""
        self.registry.check_open()
        self.registry.admit_operation(caller)
        work = self.selector.select(caller, requirements)
        model = await self.registry.operations.run(work, caller.endpoint, seconds=self.config.server.deadline)
        # It may have ended between the end of the work and now.
        self.handles.resolve(caller.endpoint, model.handle)
        return model

    async def describe(self, caller: Caller, handle: str) -> Model:
        """Raises `selection-expired`."""
        self.registry.admit_operation(caller)
        connection = self.handles.resolve(caller.endpoint, handle)
        work = connection.capabilities()
        capabilities = await self.registry.operations.run(
            work, caller.endpoint, connection, seconds=self.config.server.deadline
        )
        self.handles.resolve(caller.endpoint, handle)
        return self.selector.describe(handle, connection, capabilities)

    def generate(
        self, caller: Caller, id: str, request: GenerationRequest, options: GenerationOptions = _NO_OPTIONS
    ) -> LiveGeneration:
        """Registers the generation, starts its deadline and sets it going. Raises `invalid-request` on an id in use,
        `quota-exceeded` over a limit, and `provider-error` (reason: shutdown) where the server is about to end; every
        other failure is its outcome."""
        return self.registry.start(caller, id, request, options, seconds=self.config.server.deadline, run=self._run)

    async def _run(self, live: LiveGeneration, deadline: float) -> None:
        await GenerationRun(live, deadline, self.services).run()

    # --- the owner's hand on the models

    def unload(self, connection: ServedModel) -> None:
        """Gives the model's memory back at once. Its work ends; handles stay and load it again."""
        self.registry.settle_on(connection, WireError("cancelled", "the owner unloaded the model"), "unloaded")
        connection.unload()

    def disable(self, connection: ServedModel) -> None:
        """Takes the connection away: its work is cancelled and its handles end."""
        connection.enabled = False
        self.registry.settle_on(connection, WireError("cancelled", "the owner disabled the connection"), "disabled")
        connection.expire()

    def enable(self, connection: ServedModel) -> None:
        connection.enabled = True
        self.changes.notify()

    async def _make_room(self) -> bool:
        """Unloads every idle model, for one that does not load. Whether there was one."""
        idle = [connection for connection in self.connections if connection.lease.idle]
        await asyncio.gather(*(connection.release() for connection in idle))
        return bool(idle)

    # --- the end

    @property
    def draining(self) -> bool:
        """True once no more work is taken, because the server is about to end."""
        return self.registry.draining

    @property
    def retry_after(self) -> int:
        """Seconds after which a caller that was refused while the server ends may ask again."""
        return self.registry.retry_after

    async def close(self) -> None:
        """Ends everything and unloads all models."""
        await self.registry.close()
        await asyncio.gather(*(connection.close() for connection in self.connections))
