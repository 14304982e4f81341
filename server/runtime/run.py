"""One generation's way from its handle to its outcome: checks, prompt, consent, decoding, validation."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from server.chat import Capabilities, MalformedOutput, PreparedPrompt, PromptRequest
from server.chat.events import BlockEnd, BlockStart
from server.config import Config
from server.engine.types import EngineRequest, Finished, TextChunk
from server.runtime.checks import check_fits, check_supported, check_temperature
from server.runtime.continuation import Continuations
from server.runtime.decisions import (
    ConsentDecision,
    Disclosure,
    PendingDecisions,
    count_continued,
    count_disclosed,
    count_schema,
)
from server.runtime.failures import engine_failure, malformed
from server.runtime.faults import log_fault
from server.runtime.generation import LiveGeneration, Outcome
from server.runtime.handles import Handles
from server.runtime.logprobs import AnswerLogprobs
from server.runtime.metrics import GenerationCounters
from server.runtime.ports import ChatService, MakeParser, ModelEngine, StreamParser
from server.runtime.selection import Selector
from server.runtime.served_model import ServedModel, selection_changed
from server.runtime.usage import count_reasoning
from server.wire import check_generation, strict_json
from server.wire.records import Generation, Part, TextPart, ToolCallPart, Usage, WireError

log = logging.getLogger(__name__)

NO_CHARGE = "no charge: the model runs on this server"


@dataclass(slots=True)
class RunServices:
    """Collaborators that all generations of a runtime share."""

    config: Config
    chat: ChatService
    make_parser: MakeParser
    continuations: Continuations
    decisions: PendingDecisions
    handles: Handles
    selector: Selector
    metrics: GenerationCounters


class GenerationRun:
    """Run of one live generation. `deadline`: when the engine gives it up, in seconds of the clock."""

    def __init__(self, live: LiveGeneration, deadline: float, services: RunServices) -> None:
        self._live = live
        self._deadline = deadline
        self._services = services
        self._chat = services.chat
        self._logprobs = AnswerLogprobs()
        # Nobody outside can tell by the time whether its prompt or its schemas were cached.
        shared = services.config.server.cache_scope == "shared"
        self._cache_scope = "" if shared else live.endpoint.scope

    async def run(self) -> None:
        """Settles the generation, whatever happens."""
        outcome: Outcome
        try:
            outcome = await self._generate()
        except WireError as error:
            outcome = error
        except Exception as error:
            log_fault(log, "a generation failed", error)
            outcome = WireError("provider-error", "the generation failed inside the server")
        self._live.settle(outcome)

    async def _generate(self) -> Generation:
        live, handles = self._live, self._services.handles
        handle = await self._services.selector.resolve(live)
        connection = handles.resolve(live.endpoint, handle)
        live.connection = connection.key
        capabilities = await connection.capabilities()
        await self._check(connection, capabilities)
        key = self._services.continuations.key(connection.fingerprint(capabilities))
        turns = await self._open_continuations(key)
        prepared = await self._prepare(connection, turns)
        # Preparing takes time: nobody is asked about a selection that has ended.
        handles.resolve(live.endpoint, handle)
        if prepared.images and live.caller.consent == "ask":
            await self._check_images_fit(handle, connection, prepared)
        await self._authorize(connection, {index: len(turns[index]) for index in prepared.replayed})
        live.stage = "loading"
        async with connection.in_use() as engine:
            check_fits(prepared, engine.info.context_length)
            # Consent and loading take time: the selection that was asked about must still be the one that is used.
            handles.resolve(live.endpoint, handle)
            request = self._engine_request(connection, prepared)
            generation = await self._consume(engine, request, prepared)
        if live.options.continuations is not None and generation.finish in ("stop", "toolUse"):
            live.continuation = self._services.continuations.seal(key, generation.content, live.tokens)
        return generation

    # --- before the engine

    async def _check(self, connection: ServedModel, capabilities: Capabilities) -> None:
        request = self._live.request
        try:
            check_supported(request, self._live.options, capabilities)
        except WireError:
            # What is malformed is invalid, whatever the connection supports.
            await self._chat.check_tools(request.tools, self._cache_scope)
            raise
        check_temperature(request, connection)

    async def _open_continuations(self, key: str) -> Mapping[int, array[int]]:
        """Tokens of the earlier turns that are put back as the model wrote them, by message."""
        given = self._live.options.continuations
        if not given:
            return {}
        # In a thread: the sender decides how large they are.
        return await asyncio.to_thread(self._services.continuations.open_all, given, key, self._live.request.messages)

    async def _prepare(self, connection: ServedModel, turns: Mapping[int, array[int]]) -> PreparedPrompt:
        request, options = self._live.request, self._live.options
        prepared = await self._chat.prepare(
            str(await connection.ready()),
            connection.settings,
            PromptRequest(
                request.messages,
                request.tools,
                request.tool_choice,
                request.format,
                options.response_schema,
                options.allowed_tools,
                options.parallel,
                options.stop,
                turns,
                frozenset(options.continuations or ()) - turns.keys(),
                options.lenient,
                options.names,
                self._cache_scope,
            ),
        )
        self._live.replayed = len(prepared.replayed)
        check_fits(prepared, connection.context_length)
        return prepared

    async def _check_images_fit(self, handle: str, connection: ServedModel, prepared: PreparedPrompt) -> None:
        """Raises, before the owner is asked, the error with which the engine would refuse the images.

        Only the loaded model knows how many tokens they take (`Engine.check`), so it is loaded for this: that
        discloses nothing, and the engine learns sizes alone. Where nobody is asked, submitting tells.
        """
        live = self._live
        live.stage = "loading"
        async with connection.in_use() as engine:
            if self._services.handles.resolve(live.endpoint, handle) is not connection:
                raise selection_changed()
            sizes = [(image.width, image.height) for _, image in prepared.images]
            refusal = await engine.check(len(prepared.tokens), sizes)
        if refusal is not None:
            raise engine_failure(refusal, prepared)

    def _engine_request(self, connection: ServedModel, prepared: PreparedPrompt) -> EngineRequest:
        live, request = self._live, self._live.request
        sampling = replace(connection.sampling, **live.options.sampling)
        if request.temperature is not None:
            sampling = replace(sampling, temperature=request.temperature)
        live.stage = "submitted"
        return EngineRequest(
            id=live.number,
            tokens=prepared.tokens,
            sampling=sampling,
            cache_salt=self._cache_scope,
            deadline=self._deadline,
            max_tokens=_lowest(
                request.max_tokens,
                self._services.config.server.limits.max_tokens,
                connection.supports.max_output_tokens,
            ),
            constraint=prepared.constraint,
            suppress_tokens=prepared.suppress_tokens,
            stop=prepared.stop,
            logprobs=live.options.logprobs,
            images=prepared.images,
        )

    async def _authorize(self, connection: ServedModel, continued: Mapping[int, int]) -> None:
        """The user's authorization of this one generation (NAP-LLM, "Shell Behavior"). `continued`: the tokens of each
        earlier turn that is put back as the model wrote it. Raises `user-cancelled`."""
        live = self._live
        policy = live.caller.consent
        if policy == "always" or (policy == "shell" and live.caller.granted):
            return
        allowed = False
        if policy == "ask":
            live.stage = "consent"
            asked = time.monotonic()
            allowed = await self._services.decisions.consent(
                ConsentDecision(
                    live.endpoint,
                    self._disclosure(connection, continued),
                    live.request,
                    live.created + self._services.config.server.deadline,
                    live.options.response_schema,
                    continued,
                )
            )
            live.decided_in += time.monotonic() - asked
        if not allowed:
            raise WireError("user-cancelled", "the user did not authorize this generation")

    def _disclosure(self, connection: ServedModel, continued: Mapping[int, int]) -> Disclosure:
        live, request = self._live, self._live.request
        roles, images, tools, results = count_disclosed(request)
        return Disclosure(
            connection=connection.config.name,
            key=connection.key,
            model=connection.config.model,
            route=self._services.selector.route_of(connection),
            charge=NO_CHARGE,
            messages=roles,
            images=images,
            tool_definitions=tools,
            tool_names=tuple(tool.name for tool in request.tools),
            tool_results=results,
            answer_schema=count_schema(live.options.response_schema),
            continuations=count_continued(continued),
        )

    # --- the engine's output

    async def _consume(self, engine: ModelEngine, request: EngineRequest, prepared: PreparedPrompt) -> Generation:
        live = self._live
        parser = self._services.make_parser(prepared.parser)
        live.on_settled.append(lambda: engine.cancel(request.id))
        try:
            async with aclosing(engine.generate(request)) as events:
                async for event in events:
                    if isinstance(event, TextChunk):
                        if live.blocks.refused:
                            live.output_tokens += event.tokens
                            continue  # of a refusal, only its cost is still wanted
                        self._take(event, parser)
                        if live.blocks.refused:
                            engine.finish(request.id)
                    elif isinstance(event, Finished):
                        return await self._finish(event, parser, prepared)
                    elif live.blocks.refused:
                        return self._partial("refusal", None)  # it stands, at whatever cost
                    else:
                        raise engine_failure(event, prepared)
        except MalformedOutput:
            raise malformed() from None
        raise WireError("provider-error", "the engine ended without a result")

    def _take(self, chunk: TextChunk, parser: StreamParser) -> None:
        live = self._live
        if live.first_token is None:
            live.stage, live.first_token = "decoding", time.time()
            self._services.metrics.began(live)
        live.output_tokens += chunk.tokens
        found = [*parser.feed(chunk.text)]
        if chunk.logprobs:
            live.logprobs += self._logprobs.of(chunk.logprobs, found)
        live.push(found)
        if parser.broken:
            raise malformed()

    async def _finish(self, end: Finished, parser: StreamParser, prepared: PreparedPrompt) -> Generation:
        live = self._live
        live.stage = "checking"
        live.tokens = end.tokens
        if not live.blocks.refused:
            # A stop sequence cuts an answer where the format may have had more to say.
            found = [*parser.finish("length" if end.stopped else end.finish_reason)]
            if live.options.logprobs is not None:
                live.logprobs += self._logprobs.of((), found)
            live.push(found)
        usage = Usage(
            input_tokens=end.prompt_tokens,
            output_tokens=end.output_tokens,
            cache_read_tokens=end.cache_read_tokens,
            reasoning_tokens=count_reasoning(end.ends, parser.thoughts) or None,
        )
        if live.blocks.refused:
            return self._partial("refusal", usage)
        if end.finish_reason == "length":
            return self._partial("length", usage)
        return await self._complete(prepared, usage)

    def _partial(self, finish: Literal["length", "refusal"], usage: Usage | None) -> Generation:
        generation = Generation(self._live.blocks.partial(), finish, usage)
        check_generation(self._live.request, generation)
        return generation

    async def _complete(self, prepared: PreparedPrompt, usage: Usage) -> Generation:
        live = self._live
        if live.blocks.empty:
            # An immediate end of output is one empty text part (http-binding).
            live.push((BlockStart(0, "text"), BlockEnd(0)))
        content = live.blocks.completed()
        calls = [part for part in content if isinstance(part, ToolCallPart)]
        generation = Generation(content, "toolUse" if calls else "stop", usage)
        check_generation(live.request, generation)
        if live.options.response_schema is not None and not calls:
            await self._check_answer(live.options.response_schema, content, validate=prepared.validate_answer)
        tools = {tool.name: tool for tool in live.request.tools}
        for call in calls:
            if call.name in prepared.tools_to_validate:
                await self._chat.validate(tools[call.name], call.arguments, self._cache_scope)
        return generation

    async def _check_answer(self, schema: Mapping[str, Any] | bool, content: Iterable[Part], *, validate: bool) -> None:
        """Raises `provider-error` where the answer is not the JSON that its schema describes."""
        try:
            answer = strict_json.parse("".join(part.text for part in content if isinstance(part, TextPart)).encode())
        except strict_json.NotJson:
            raise WireError("provider-error", "the answer is not JSON") from None
        if answer.violation:
            raise WireError("provider-error", "the answer is not strict JSON")
        if validate:
            await self._chat.validate_answer(schema, answer.value, self._cache_scope)


def _lowest(*limits: int | None) -> int | None:
    """The lowest of these limits, where 0 and None mean none."""
    return min(filter(None, limits), default=None)
