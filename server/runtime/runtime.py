"""The runtime of NAP-LLM: selections, consent, generations and their settlement, for any projection above it.

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
import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from server.chat import Capabilities, ImageLimits, MalformedOutput, PreparedPrompt, PromptRequest
from server.chat.events import BlockEnd, BlockStart
from server.config import Config, Limits
from server.engine.types import EngineRequest, Failed, Finished, TextChunk
from server.logs import FIELDS
from server.runtime.changes import ChangeFeed
from server.runtime.clock import Clock, LoopClock
from server.runtime.continuation import Continuations
from server.runtime.decisions import (
    ConsentDecision,
    Disclosure,
    PendingDecisions,
    SelectionDecision,
    count_continued,
    count_disclosed,
    count_schema,
)
from server.runtime.endpoint import Caller, Endpoint
from server.runtime.faults import log_fault
from server.runtime.generation import Cause, LiveGeneration, Outcome
from server.runtime.handles import Handles
from server.runtime.limits import Rates, check_places
from server.runtime.logprobs import AnswerLogprobs
from server.runtime.metrics import GenerationCounters
from server.runtime.operations import Operations
from server.runtime.options import GenerationOptions
from server.runtime.ports import ChatService, FetchFile, MakeParser, ModelEngine, StartEngine
from server.runtime.served_model import ServedModel, satisfies, selection_changed
from server.runtime.usage import count_reasoning
from server.wire import check_generation, strict_json
from server.wire.records import (
    Generation,
    GenerationRequest,
    ImagePart,
    Model,
    NamedTool,
    Part,
    Requirements,
    TextPart,
    ToolCallPart,
    Usage,
    WireError,
)

log = logging.getLogger(__name__)

_NO_OPTIONS = GenerationOptions()
NO_CHARGE = "no charge: the model runs on this server"


class Runtime:
    """Everything between an authenticated, well-formed request and the engine.

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
        self.config = config
        self.limits = config.server.limits
        self.clock: Clock = clock or LoopClock()
        self.changes = ChangeFeed()
        self.metrics = GenerationCounters()
        self.connections = tuple(
            ServedModel(
                each,
                queue=self.limits.queue,
                patience=config.server.watchdog,
                chat=chat,
                start_engine=start_engine,
                fetch_file=fetch_file,
                clock=self.clock,
                changed=self.changes.notify,
                expired=self._selections_ended,
                make_room=self._make_room,
                images=ImageLimits(self.limits.image_pixels, self.limits.image_frames),
            )
            for each in config.connections
        )
        self.handles = Handles(self.limits.handles_per_token)
        self.decisions = PendingDecisions(self.changes.notify)
        self._chat = chat
        self._continuations = Continuations(secret or secrets.token_bytes(32))
        self._make_parser = make_parser
        self.route = f"llama.cpp on {machine}" if machine else "llama.cpp on this machine"
        self._rates = Rates(self.limits)
        self._live: dict[Endpoint, dict[str, LiveGeneration]] = {}
        self._operations = Operations(self.clock, _timeout)
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained_by: float | None = None
        self.closing = asyncio.Event()
        """Set once everything ends."""

    # --- the four operations

    async def select(self, caller: Caller, requirements: Requirements) -> Model:
        """Raises `unsupported` where no connection meets the requirements, `user-cancelled` where the owner says no."""
        self._check_open()
        self._admit_operation(caller)
        work = self._select(caller, requirements)
        model = await self._operations.run(work, caller.endpoint, seconds=self.config.server.deadline)
        # It may have ended between the end of the work and now.
        self.handles.resolve(caller.endpoint, model.handle)
        return model

    async def _select(self, caller: Caller, requirements: Requirements) -> Model:
        able = await self._eligible(requirements, caller.select)
        if not able:
            raise WireError("unsupported", "no connection meets the requirements")
        connection, capabilities = able[0]
        if caller.select == "ask":
            expires = time.time() + self.config.server.deadline
            connection, capabilities = await self._ask_owner(caller, able, requirements, expires)
        handle = self.handles.issue(caller.endpoint, connection)
        self.changes.notify()
        return self._model(handle, connection, capabilities)

    async def describe(self, caller: Caller, handle: str) -> Model:
        """Raises `selection-expired`."""
        self._admit_operation(caller)
        connection = self.handles.resolve(caller.endpoint, handle)
        work = connection.capabilities()
        capabilities = await self._operations.run(
            work, caller.endpoint, connection, seconds=self.config.server.deadline
        )
        self.handles.resolve(caller.endpoint, handle)
        return self._model(handle, connection, capabilities)

    def _admit_operation(self, caller: Caller) -> None:
        self._rates.admit(caller.endpoint, self.clock.now())
        check_places(self._operations.endpoints(), caller.endpoint, self.limits, "selections")

    def generate(
        self, caller: Caller, id: str, request: GenerationRequest, options: GenerationOptions = _NO_OPTIONS
    ) -> LiveGeneration:
        """Registers the generation, starts its deadline and sets it going. Raises `invalid-request` on an id in use,
        `quota-exceeded` over a limit, and `provider-error` (reason: shutdown) where the server is about to end; every
        other failure is its outcome."""
        try:
            self._admit(caller, id, request)
        except WireError as error:
            self.metrics.refused(error)
            raise
        live = LiveGeneration(caller, id, request, next(self._numbers), options)
        self._live.setdefault(caller.endpoint, {})[id] = live
        deadline = self.clock.now() + self.config.server.deadline
        live.timer = self.clock.call_later(self.config.server.deadline, lambda: live.settle(_timeout()))
        live.on_settled.append(lambda: self._unregister(live))
        live.task = asyncio.create_task(self._guarded_run(live, deadline))
        self.changes.notify()
        self._tasks.add(live.task)
        live.task.add_done_callback(self._tasks.discard)
        return live

    def _admit(self, caller: Caller, id: str, request: GenerationRequest) -> None:
        self._check_open()
        own = self._live.get(caller.endpoint, {})
        if id in own:
            raise WireError("invalid-request", "a generation with this id is active")
        self._rates.admit(caller.endpoint, self.clock.now())
        check_places((live.endpoint for live in self.live()), caller.endpoint, self.limits, "generations")
        _check_images(request, self.limits)

    def _check_open(self) -> None:
        if self.draining:
            raise _shutdown()

    def cancel(self, endpoint: Endpoint, request_id: str) -> bool:
        """Whether an active generation of this endpoint was found and cancelled."""
        live = self._live.get(endpoint, {}).get(request_id)
        return live is not None and live.settle(WireError("cancelled", "the generation was cancelled"), "caller")

    # --- ends that come from outside

    def revoke(self, ends: Callable[[Endpoint], bool]) -> None:
        """Cancels all work and ends all handles of the endpoints for which `ends` holds."""
        self.handles.end(ends)
        self._settle(lambda live: ends(live.endpoint), _revoked(), "revoked")
        self._operations.end(lambda operation: ends(operation.endpoint), _revoked())
        self.changes.notify()

    def end_endpoint(self, endpoint: Endpoint) -> None:
        self.revoke(lambda each: each == endpoint)

    def end_account(self, token: str, account: str) -> None:
        self.revoke(lambda each: each.token == token and each.account == account)

    def end_token(self, token: str) -> None:
        self.revoke(lambda each: each.token == token)

    def stop(self, number: int) -> bool:
        """The owner's own cancel. Whether such a generation was active."""
        return self._settle(
            lambda live: live.number == number, WireError("cancelled", "the owner stopped this generation"), "owner"
        )

    def endpoints(self) -> set[Endpoint]:
        """Endpoints with handles, work or an open question."""
        return {*self.handles.endpoints(), *self._live, *self._operations.endpoints()}

    def live(self) -> Iterator[LiveGeneration]:
        for own in self._live.values():
            yield from own.values()

    def _settle(self, which: Callable[[LiveGeneration], bool], outcome: WireError, cause: Cause | None = None) -> bool:
        settled = [live.settle(outcome, cause) for live in [*self.live()] if which(live)]
        return any(settled)

    # --- the owner's hand on the models

    def connection(self, key: str) -> ServedModel | None:
        return next((each for each in self.connections if each.key == key), None)

    def unload(self, connection: ServedModel) -> None:
        """Gives the model's memory back at once. Its work ends; handles stay and load it again."""
        self._settle_on(connection, WireError("cancelled", "the owner unloaded the model"), "unloaded")
        connection.unload()

    def disable(self, connection: ServedModel) -> None:
        """Takes the connection away: its work is cancelled and its handles end."""
        connection.enabled = False
        self._settle_on(connection, WireError("cancelled", "the owner disabled the connection"), "disabled")
        connection.expire()

    def enable(self, connection: ServedModel) -> None:
        connection.enabled = True
        self.changes.notify()

    def _selections_ended(self, connection: ServedModel) -> None:
        """What was selected is no longer what would be used, or what is being used."""
        self._settle_on(connection, selection_changed())
        self._operations.end(lambda operation: operation.connection is connection, selection_changed())

    async def _make_room(self) -> bool:
        """Unloads every idle model, for one that does not load. Whether there was one."""
        idle = [connection for connection in self.connections if connection.idle]
        await asyncio.gather(*(connection.release() for connection in idle))
        return bool(idle)

    def _settle_on(self, connection: ServedModel, outcome: WireError, cause: Cause | None = None) -> None:
        self._settle(lambda live: live.connection == connection.key, outcome, cause)

    # --- the end

    @property
    def draining(self) -> bool:
        """Whether no more work is taken, because the server is about to end."""
        return self._drained_by is not None or self.closing.is_set()

    @property
    def retry_after(self) -> int:
        """Seconds after which whoever was refused while the server ends may find its successor, at the latest."""
        left = (self._drained_by or 0.0) - time.monotonic()
        return max(1, math.ceil(left))

    async def drain(self, seconds: float) -> bool:
        """Takes no more work and lets what was accepted come to its end, for so many seconds at most. Whether all of
        it has; `close` settles the rest."""
        self._drained_by = time.monotonic() + seconds
        self.changes.notify()
        try:
            async with asyncio.timeout(seconds):
                while self._live:
                    await self.changes.since(self.changes.version)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends everything and unloads all models."""
        self.closing.set()
        self.changes.notify()
        self._settle(lambda _: True, _shutdown())
        self._operations.end(lambda _: True, _shutdown())
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(connection.close() for connection in self.connections))

    # --- selection

    async def _eligible(self, requirements: Requirements, select: str) -> list[tuple[ServedModel, Capabilities]]:
        """The connections that meet the requirements. Where the owner's standing choice counts it is the first, and no
        other is looked at: its file may have to be fetched."""
        able = []
        broken: WireError | None = None
        for connection in self.connections:
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

    async def _ask_owner(
        self, caller: Caller, able: list[tuple[ServedModel, Capabilities]], requirements: Requirements, expires: float
    ) -> tuple[ServedModel, Capabilities]:
        """Asks the owner, for as long as what needs the answer waits for it: until `expires` at most, in seconds since
        the epoch."""
        choices = tuple(connection.key for connection, _ in able)
        key = await self.decisions.selection(SelectionDecision(caller.endpoint, requirements, choices, expires))
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

    async def _resolve(self, live: LiveGeneration) -> str:
        """The request's handle; where the options name a connection or what it must do, the endpoint's own to that one.

        An owner who makes an endpoint's choices is asked before its first handle, as by `select`.
        """
        options = live.options
        if options.connection is None and options.requirements is None:
            return live.request.handle
        needs = options.requirements or Requirements()
        if options.connection is None:
            able = await self._eligible(needs, live.caller.select)
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
            held = [each for each, _ in able if self.handles.held(live.endpoint, each)]
            asked = time.monotonic()
            expires = live.created + self.config.server.deadline
            connection = held[0] if held else (await self._ask_owner(live.caller, able, needs, expires))[0]
            live.decided_in += time.monotonic() - asked
        return self.handles.issue(live.endpoint, connection)

    def route_of(self, connection: ServedModel) -> str:
        """Where a connection's work is done, for those who decide on what it discloses."""
        return ", ".join((self.route, *connection.config.rpc))

    def _model(self, handle: str, connection: ServedModel, capabilities: Capabilities) -> Model:
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

    # --- generation

    def _unregister(self, live: LiveGeneration) -> None:
        self.metrics.ended(live)
        live.context.run(_log_end, live)
        self.changes.notify()
        own = self._live[live.endpoint]
        del own[live.id]
        if not own:
            del self._live[live.endpoint]
        if live.task is not None and live.task is not asyncio.current_task():
            live.task.cancel()

    async def _guarded_run(self, live: LiveGeneration, deadline: float) -> None:
        outcome: Outcome
        try:
            outcome = await self._run(live, deadline)
        except WireError as error:
            outcome = error
        except Exception as error:
            log_fault(log, "a generation failed", error)
            outcome = WireError("provider-error", "the generation failed inside the server")
        live.settle(outcome)

    async def _run(self, live: LiveGeneration, deadline: float) -> Generation:
        request = live.request
        handle = await self._resolve(live)
        connection = self.handles.resolve(live.endpoint, handle)
        live.connection = connection.key
        capabilities = await connection.capabilities()
        try:
            _check_supported(request, live.options, capabilities)
        except WireError:
            # What is malformed is invalid, whatever the connection supports.
            await self._chat.check_tools(request.tools, self._scope(live))
            raise
        _check_temperature(request, connection)
        key = self._continuations.key(connection.fingerprint(capabilities))
        given = live.options.continuations
        # In a thread: whoever sends them says how large they are.
        turns = await asyncio.to_thread(self._continuations.open_all, given, key, request.messages) if given else {}
        prepared = await self._chat.prepare(
            str(await connection.ready()),
            connection.settings,
            PromptRequest(
                request.messages,
                request.tools,
                request.tool_choice,
                request.format,
                live.options.response_schema,
                live.options.allowed_tools,
                live.options.parallel,
                live.options.stop,
                turns,
                frozenset(given or ()) - turns.keys(),
                live.options.lenient,
                live.options.names,
                self._scope(live),
            ),
        )
        live.replayed = len(prepared.replayed)
        _check_fits(prepared, connection.context_length)
        # Preparing takes time: nobody is asked about a selection that has ended.
        self.handles.resolve(live.endpoint, handle)
        if prepared.images and live.caller.consent == "ask":
            await self._check_images_fit(live, handle, connection, prepared)
        await self._authorize(live, connection, {index: len(turns[index]) for index in prepared.replayed})
        live.stage = "loading"
        async with connection.in_use() as engine:
            _check_fits(prepared, engine.info.context_length)
            # Consent and loading take time: the selection that was asked about must still be the one that is used.
            self.handles.resolve(live.endpoint, handle)
            job = self._job(live, connection, prepared, deadline)
            generation = await self._consume(live, engine, job, prepared)
        if live.options.continuations is not None and generation.finish in ("stop", "toolUse"):
            live.continuation = self._continuations.seal(key, generation.content, live.tokens)
        return generation

    async def _check_images_fit(
        self, live: LiveGeneration, handle: str, connection: ServedModel, prepared: PreparedPrompt
    ) -> None:
        """Raises, before the owner is asked, what the engine would refuse the images for.

        Only the loaded model knows how many tokens they take (`Engine.check`), so it is loaded for this: that
        discloses nothing, and all that it is told of the prompt are sizes. Where nobody is asked, submitting tells.
        """
        live.stage = "loading"
        async with connection.in_use() as engine:
            if self.handles.resolve(live.endpoint, handle) is not connection:
                raise selection_changed()
            sizes = [(picture.width, picture.height) for _, picture in prepared.images]
            refusal = await engine.check(len(prepared.tokens), sizes)
        if refusal is not None:
            raise _engine_failure(refusal, prepared)

    def _scope(self, live: LiveGeneration) -> str:
        """Under what its prompt and its schemas are kept: nobody outside can tell by the time whether they were."""
        return "" if self.config.server.cache_scope == "shared" else live.endpoint.scope

    def _job(
        self, live: LiveGeneration, connection: ServedModel, prepared: PreparedPrompt, deadline: float
    ) -> EngineRequest:
        request = live.request
        sampling = replace(connection.sampling, **live.options.sampling)
        if request.temperature is not None:
            sampling = replace(sampling, temperature=request.temperature)
        live.stage = "submitted"
        return EngineRequest(
            id=live.number,
            tokens=prepared.tokens,
            sampling=sampling,
            cache_salt=self._scope(live),
            deadline=deadline,
            max_tokens=_lowest(request.max_tokens, self.limits.max_tokens, connection.supports.max_output_tokens),
            constraint=prepared.constraint,
            suppress_tokens=prepared.suppress_tokens,
            stop=prepared.stop,
            logprobs=live.options.logprobs,
            images=prepared.images,
        )

    async def _authorize(self, live: LiveGeneration, connection: ServedModel, continued: Mapping[int, int]) -> None:
        """The user's authorization of this one generation (NAP-LLM, "Shell Behavior"). `continued`: the tokens of each
        earlier turn that is put back as the model wrote it. Raises `user-cancelled`."""
        policy = live.caller.consent
        if policy == "always" or (policy == "shell" and live.caller.granted):
            return
        allowed = False
        if policy == "ask":
            live.stage = "consent"
            asked = time.monotonic()
            allowed = await self.decisions.consent(
                ConsentDecision(
                    live.endpoint,
                    self._disclosure(connection, live, continued),
                    live.request,
                    live.created + self.config.server.deadline,
                    live.options.response_schema,
                    continued,
                )
            )
            live.decided_in += time.monotonic() - asked
        if not allowed:
            raise WireError("user-cancelled", "the user did not authorize this generation")

    def _disclosure(self, connection: ServedModel, live: LiveGeneration, continued: Mapping[int, int]) -> Disclosure:
        request = live.request
        roles, images, tools, results = count_disclosed(request)
        return Disclosure(
            connection=connection.config.name,
            key=connection.key,
            model=connection.config.model,
            route=self.route_of(connection),
            charge=NO_CHARGE,
            messages=roles,
            images=images,
            tool_definitions=tools,
            tool_names=tuple(tool.name for tool in request.tools),
            tool_results=results,
            answer_schema=count_schema(live.options.response_schema),
            continuations=count_continued(continued),
        )

    async def _consume(
        self, live: LiveGeneration, engine: ModelEngine, job: EngineRequest, prepared: PreparedPrompt
    ) -> Generation:
        parser = self._make_parser(prepared.parser)
        logprobs = AnswerLogprobs()
        live.on_settled.append(lambda: engine.cancel(job.id))
        try:
            async with aclosing(engine.generate(job)) as events:
                async for event in events:
                    if isinstance(event, TextChunk):
                        if live.first_token is None:
                            live.stage, live.first_token = "decoding", time.time()
                            self.metrics.began(live)
                        live.output_tokens += event.tokens
                        if live.blocks.refused:
                            continue  # of a refusal, only what it took is still wanted
                        found = [*parser.feed(event.text)]
                        if event.logprobs:
                            live.logprobs += logprobs.of(event.logprobs, found)
                        live.push(found)
                        if parser.broken:
                            raise _malformed()
                        if live.blocks.refused:
                            engine.finish(job.id)
                    elif isinstance(event, Finished):
                        live.stage = "checking"
                        live.tokens = event.tokens
                        if not live.blocks.refused:
                            # A stop sequence cuts an answer where the format may have had more to say.
                            found = [*parser.finish("length" if event.stopped else event.finish_reason)]
                            if live.options.logprobs is not None:
                                live.logprobs += logprobs.of((), found)
                            live.push(found)
                        usage = Usage(
                            input_tokens=event.prompt_tokens,
                            output_tokens=event.output_tokens,
                            cache_read_tokens=event.cache_read_tokens,
                            reasoning_tokens=count_reasoning(event.ends, parser.thoughts) or None,
                        )
                        if live.blocks.refused:
                            return self._partial(live, "refusal", usage)
                        if event.finish_reason == "length":
                            return self._partial(live, "length", usage)
                        return await self._complete(live, prepared, usage)
                    elif live.blocks.refused:
                        return self._partial(live, "refusal", None)  # it stands, at whatever cost
                    else:
                        raise _engine_failure(event, prepared)
        except MalformedOutput:
            raise _malformed() from None
        raise WireError("provider-error", "the engine ended without a result")

    def _partial(self, live: LiveGeneration, finish: Literal["length", "refusal"], usage: Usage | None) -> Generation:
        generation = Generation(live.blocks.partial(), finish, usage)
        check_generation(live.request, generation)
        return generation

    async def _complete(self, live: LiveGeneration, prepared: PreparedPrompt, usage: Usage) -> Generation:
        if live.blocks.empty:
            # An immediate end of output is one empty text part (http-binding).
            live.push((BlockStart(0, "text"), BlockEnd(0)))
        content = live.blocks.completed()
        calls = [part for part in content if isinstance(part, ToolCallPart)]
        generation = Generation(content, "toolUse" if calls else "stop", usage)
        check_generation(live.request, generation)
        if live.options.response_schema is not None and not calls:
            await self._check_answer(live, live.options.response_schema, content, checked=prepared.validate_answer)
        tools = {tool.name: tool for tool in live.request.tools}
        for call in calls:
            if call.name in prepared.tools_to_validate:
                await self._chat.validate(tools[call.name], call.arguments, self._scope(live))
        return generation

    async def _check_answer(
        self, live: LiveGeneration, schema: Mapping[str, Any] | bool, content: Iterable[Part], *, checked: bool
    ) -> None:
        """Raises `provider-error` where the answer is not the JSON that its schema describes."""
        try:
            answer = strict_json.parse("".join(part.text for part in content if isinstance(part, TextPart)).encode())
        except strict_json.NotJson:
            raise WireError("provider-error", "the answer is not JSON") from None
        if answer.violation:
            raise WireError("provider-error", "the answer is not strict JSON")
        if checked:
            await self._chat.validate_answer(schema, answer.value, self._scope(live))


def _log_end(live: LiveGeneration) -> None:
    outcome = live.outcome
    assert outcome is not None
    ending = outcome.finish if isinstance(outcome, Generation) else outcome.code
    fields = {
        "generation": live.number,
        "connection": live.connection,
        "ending": ending if live.cause is None else f"{ending} ({live.cause})",
        "output_tokens": live.output_tokens,
        "seconds": round(time.monotonic() - live.arrived, 3),
    }
    log.info("generation %d on %s: %s, %d tokens in %.3f s", *fields.values(), extra={FIELDS: fields})


def _check_supported(request: GenerationRequest, options: GenerationOptions, capabilities: Capabilities) -> None:
    """Raises `unsupported` where the connection cannot do what the request needs."""
    if (request.format == "json" or options.response_schema is not None) and not capabilities.json:
        raise WireError("unsupported", "this connection does not support format json")
    if not capabilities.images and any(isinstance(part, ImagePart) for m in request.messages for part in m.content):
        raise _blind()
    if request.tools:
        if not capabilities.tools:
            raise WireError("unsupported", "this connection does not support tools")
        choice = request.tool_choice or "auto"
        mode = "tool" if isinstance(choice, NamedTool) else choice
        if mode not in capabilities.tool_choice_modes:
            raise WireError("unsupported", f"this connection does not support the tool choice mode {mode}")


def _check_temperature(request: GenerationRequest, connection: ServedModel) -> None:
    """Raises `unsupported` where the connection's model does not take the temperature that is asked for."""
    supports = connection.supports
    if request.temperature is None:
        return
    if not supports.temperature:
        raise WireError("unsupported", "this connection does not support temperature")
    if connection.parameters.reasons and not supports.temperature_with_reasoning:
        raise WireError("unsupported", "this connection does not support temperature while its model reasons")
    if not 0 <= request.temperature <= supports.temperature_max:
        raise WireError("unsupported", f"temperature must be from 0 to {supports.temperature_max:g}")


def _check_images(request: GenerationRequest, limits: Limits) -> None:
    """Raises `quota-exceeded`."""
    images = [part for m in request.messages for part in m.content if isinstance(part, ImagePart)]
    if len(images) > limits.images:
        raise WireError("quota-exceeded", f"the request has more than {limits.images} images", reason="images")
    if any(image.size > limits.image_bytes for image in images):
        raise WireError("quota-exceeded", f"an image is larger than {limits.image_bytes} bytes", reason="images")


def _check_fits(prepared: PreparedPrompt, context_length: int) -> None:
    # One place must be left for the first token of the answer. Before the model is loaded, nobody may know. How many
    # tokens an image takes the engine alone knows; it takes one at least.
    if 0 < context_length <= len(prepared.tokens) + len(prepared.images):
        raise _too_long()


def _lowest(*limits: int | None) -> int | None:
    """The lowest of these limits, where 0 and None mean none."""
    return min(filter(None, limits), default=None)


_FAILURES = {
    "constraint": "the engine failed to hold the model to the form of this output",
    "decode": "the engine failed to compute a step of this generation",
    "encode": "the engine failed to encode an image",
    "memory": "the engine failed for want of memory for this generation",
    "worker": "the engine failed during this generation: the model's process ended",
}
"""What is said of each kind of a provider's error (`Failed`)."""


def _engine_failure(failed: Failed, prepared: PreparedPrompt) -> WireError:
    """The engine's failure in our own words: nothing it says reaches a caller."""
    reason = failed.extra.get("reason", "")
    match failed.code, reason:
        case "quota-exceeded", "context":
            return _too_long()
        case "quota-exceeded", "queue":
            return WireError("quota-exceeded", "too many generations wait for this model", reason="queue")
        case "unsupported", "vision":
            return _blind()
        case "unsupported", "image":
            place = prepared.places[int(failed.extra["image"])]
            return WireError("unsupported", f"{place}: this connection does not accept an image of this size or shape")
        case "timeout", _:
            return _timeout()
        case "cancelled", _:
            return WireError("cancelled", "the generation was cancelled")
        case "provider-error", _:
            said = _FAILURES.get(reason, "the engine failed during this generation")
            return WireError("provider-error", said, reason="engine")
    return WireError(failed.code, "the engine refused this generation")


def _malformed() -> WireError:
    return WireError("provider-error", "the model's output breaks its own format")


def _revoked() -> WireError:
    return WireError("cancelled", "the authorization of this endpoint has ended")


def _shutdown() -> WireError:
    return WireError("provider-error", "the server is shutting down", reason="shutdown")


def _blind() -> WireError:
    return WireError("unsupported", "this connection does not accept images")


def _too_long() -> WireError:
    return WireError("quota-exceeded", "the prompt does not fit the model's context", reason="context")


def _timeout() -> WireError:
    return WireError("timeout", "the deadline of the request has passed")
