"""The work a chat helper does for one model: what it can do, and a conversation made ready for its engine.

Nothing of a model but its vocabulary is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

from grammars import Compiled, InvalidInstance, InvalidSchema, UnsupportedSchema, check_schema
from server.chat.arguments import grammar as arguments
from server.chat.arguments.grammar import Arguments
from server.chat.formats import recognise
from server.chat.formats.spec import ArgumentSyntax
from server.chat.grammar import build_constraint
from server.chat.history import check_reasoning, joined_system
from server.chat.images.placeholders import ImagePlaceholder, check_placeholders, insert_placeholders
from server.chat.parser import ParserSpec
from server.chat.template.capabilities import TemplateCapabilities, detect_capabilities
from server.chat.template.messages import write_prompt
from server.chat.template.provenance import ProvenanceStr
from server.chat.template.replay import PromptPart, Sentinel, TurnReplay, Write, last_text
from server.chat.template.template import Template, TemplateError
from server.chat.types import (
    Capabilities,
    ChatSettings,
    CompiledSchema,
    ImageLimits,
    PreparedPrompt,
    PromptRequest,
)
from server.engine import Vocab
from server.engine.memory import gguf
from server.engine.types import EngineError, RgbImage, StopCriteria
from server.wire.records import ImagePart, Message, NamedTool, Role, TextPart, Tool, ToolCallPart, WireError

_DEFAULT = ChatSettings()
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_RESULT = "needleresult"
_DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
"""A PNG of one black pixel."""
_LOOP = PromptRequest(
    (
        Message("user", (TextPart("needleuser"),)),
        Message("assistant", (ToolCallPart("needle001", "needletool", {}),)),
        Message("toolResult", (TextPart(_RESULT),), tool_call_id="needle001", tool_name="needletool"),
    ),
    (Tool("needletool", None, _ANY_OBJECT),),
    "auto",
)


class PromptBuilder:
    """A model's vocabulary and template. Raises WireError where it has no usable template."""

    def __init__(self, vocab: Vocab, template: str | None = None) -> None:
        self.vocab = vocab
        source = template if template is not None else self.vocab.metadata.get("tokenizer.chat_template")
        if source is None:
            raise WireError("unsupported", "this model has no chat template")
        bos, eos = (None if token is None else self.vocab.text(token) for token in (self.vocab.bos, self.vocab.eos))
        try:
            self.template = Template(source, bos=bos or "", eos=eos or "")
            self.template_capabilities: TemplateCapabilities = detect_capabilities(self.template)
        except TemplateError as error:
            raise WireError("unsupported", str(error)) from None
        self.format = recognise(source, self.template_capabilities.sample)
        self.tokens = {self.vocab.text(token): token for token in self.vocab.controls}
        markers = self.format.markers
        self.suppress_tokens = tuple(
            sorted(token for text, token in self.tokens.items() if not any(text in marker for marker in markers))
        )
        called = {calls.marker for calls in self.format.calls}
        carried: dict[Role, bool] = {
            "user": self.template_capabilities.images,
            "toolResult": self.template_capabilities.result_images and not self.format.grammar_only,
        }
        self.image_roles = frozenset(role for role, carries in carried.items() if carries)
        """The roles whose messages may hold images, with a projector."""
        self.call_tokens = tuple(token for text in called if (token := self.vocab.token_of(text)) is not None)

    def capabilities(self, settings: ChatSettings = _DEFAULT) -> Capabilities:
        """Raises WireError where the projector's file cannot be read."""
        try:
            images = (
                self.template_capabilities.images and settings.projector is not None and _has_vision(settings.projector)
            )
        except EngineError as error:
            raise WireError("provider-error", error.reason) from None
        reasoning = self.template_capabilities.reasoning
        return Capabilities(
            images=images,
            json=True,
            tools=True,
            tool_choice_modes=("auto", "none", "required", "tool"),
            thinking=reasoning.switch is not None,
            reasoning_efforts=reasoning.efforts,
            format=self.format.name,
            fingerprint=self.fingerprint,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that turns a conversation into tokens here, and tokens into a turn."""
        digest = hashlib.sha256(repr((self.template.source, self.format)).encode())
        digest.update(repr(sorted(self.vocab.metadata.items())).encode())
        for piece in self.vocab.pieces:
            digest.update(b"%d:%b" % (len(piece), piece))
        return digest.hexdigest()

    def prepare(self, conversation: PromptRequest, settings: ChatSettings = _DEFAULT) -> PreparedPrompt:
        """Raises WireError: `unsupported` and `invalid-request` name what they are about, never its values."""
        callable_tools = self._callable(conversation)
        messages, places = insert_placeholders(conversation, self.image_roles if settings.projector else frozenset())
        conversation = replace(conversation, messages=messages)
        try:
            runs, replayed = self._runs(conversation, settings)
        except TemplateError as error:
            raise WireError("unsupported", str(error)) from None
        check_reasoning(conversation, settings, self.format, self.template_capabilities, replayed)
        tokens, order, offsets = self._tokenize(runs, places)
        pictures = _decode([(place.at, place.part) for place in places], settings.images) if places else []
        choice = conversation.tool_choice
        answer = _answer(conversation)
        lead = self._lead(last_text(runs))
        # Text may run into a call that no grammar has seen: of a framed format, or without its markers.
        unseen = self.format.always_tagged or (
            choice == "auto" and any(calls.untagged_call for calls in self.format.calls)
        )
        return PreparedPrompt(
            tokens=tokens,
            images=tuple((offset, pictures[number]) for offset, number in zip(offsets, order, strict=True)),
            places=tuple(places[number].at for number in order),
            constraint=build_constraint(
                self.format,
                tools=callable_tools,
                required=choice != "auto",
                # Whoever names a tool wants that call; a small model offered another round of it takes all there are.
                single=isinstance(choice, NamedTool) or not conversation.parallel,
                answer=answer,
                tokens=self.tokens,
                lead=lead,
            ),
            suppress_tokens=self.suppress_tokens if callable_tools else self.suppress_tokens + self.call_tokens,
            parser=ParserSpec(
                format=self.format,
                calls="allowed"
                if callable_tools
                else "ignored"
                if self.format.grammar_only and not choice
                else "refused",
                tools={name: given.types for name, given in callable_tools.items()},
                json=answer is not None,
                prompt_opening=lead,
            ),
            tools_to_validate=frozenset(name for name, given in callable_tools.items() if given.checked or unseen),
            validate_answer=conversation.response_schema is not None and answer is not None and bool(answer.unchecked),
            stop=self._stop(conversation, lead, calls=bool(callable_tools)) if conversation.stop else None,
            replayed=replayed,
        )

    def _callable(self, conversation: PromptRequest) -> dict[str, Arguments]:
        """The tools that may be called here; the others' schemas are not compiled. Raises WireError."""
        choice, allowed = conversation.tool_choice, conversation.allowed_tools
        check_tools(conversation.tools)
        syntaxes = tuple(dict.fromkeys(calls.syntax for calls in self.format.calls))
        return {
            tool.name: tool_arguments(tool, syntaxes)
            for tool in conversation.tools
            if choice != "none"
            and (not isinstance(choice, NamedTool) or choice.name == tool.name)
            and (allowed is None or tool.name in allowed)
        }

    def _stop(self, conversation: PromptRequest, lead: str, *, calls: bool) -> StopCriteria:
        """Where the format lets an answer be ended by the texts that are asked for."""
        if conversation.response_schema is not None or conversation.format == "json":
            raise WireError("unsupported", "stop sequences cannot end a JSON answer")
        format = self.format
        forced = format.grammar_only and calls
        frames = () if format.grammar_only and not calls else format.answer_tags
        skip = [f'{frame.open}"' if forced else frame.open for frame in frames]
        skip += [*(frame.close for frame in frames if not forced), *format.ignored_markers, format.separator]
        return StopCriteria(
            # A forced answer is written as a JSON string.
            tuple(json.dumps(text, ensure_ascii=False)[1:-1] if forced else text for text in conversation.stop),
            (format.reasoning_tags.open.strip(), format.reasoning_tags.close.strip())
            if format.reasoning_tags
            else None,
            tuple(each.marker for each in format.calls if calls and not each.only_at_start),
            tuple(each.marker for each in format.calls if calls and each.only_at_start),
            tuple(dict.fromkeys(filter(None, map(str.strip, skip)))),
            lead,
        )

    def _tokenize(
        self, runs: Sequence[PromptPart], places: Sequence[ImagePlaceholder]
    ) -> tuple[array[int], Sequence[int], Sequence[int]]:
        """The prompt's tokens, the numbers of its images in the order in which they stand there, and where.

        Texts between images are tokenized apart, as llama.cpp does (`mtmd_tokenize`).
        """
        tokens: array[int] = array("i")
        order: list[int] = []
        offsets: list[int] = []
        for number, run in enumerate(runs):
            if isinstance(run, array):
                tokens += run
                continue
            (first, *others), images = run.split_images()
            order += images
            tokens += self.vocab.tokenize(first.segments(), begins=number == 0, follows=number > 0)
            for text in others:
                offsets.append(len(tokens))
                tokens += self.vocab.tokenize(text.segments(), begins=False)
        check_placeholders(order, places)
        if offsets and offsets[-1] == len(tokens):
            raise places[order[-1]].refused("this model's chat template ends the prompt with the image")
        return tokens, order, offsets

    def _runs(self, conversation: PromptRequest, settings: ChatSettings) -> tuple[list[PromptPart], frozenset[int]]:
        """The prompt, and which of the conversation's turns stand in it as tokens. Raises `TemplateError`; WireError
        where a message has no place in it."""
        write = self._writer(conversation, settings)
        if not conversation.kept_tokens:
            return [write(conversation.messages, {}, None)], frozenset()
        return self.replay.write(write, conversation.messages, conversation.kept_tokens)

    def _writer(self, conversation: PromptRequest, settings: ChatSettings) -> Write:
        options = self.template_capabilities.reasoning.options(settings)
        # Of the whole conversation: the prompts of its earlier turns begin with it too.
        joined = joined_system(conversation, settings, self.template_capabilities)

        def write(messages: Sequence[Message], ids: Mapping[str, str], stand_in: Sentinel | None) -> ProvenanceStr:
            part = replace(conversation, messages=tuple(messages))
            return write_prompt(
                self.template,
                self.template_capabilities,
                self.format,
                part,
                options,
                joined=joined,
                ids=ids,
                stand_in=stand_in,
            )

        return write

    @cached_property
    def replay(self) -> TurnReplay:
        ends = [self.vocab.text(token) for token in self.vocab.eog]
        found = TurnReplay(self.format, ends, self._detokenize, self._lead)
        # Where a template ends a turn of calls by something else, an end further on would hide the results.
        runs, replayed = found.write(self._writer(_LOOP, _DEFAULT), _LOOP.messages, {1: array("i")})
        return found if replayed and _RESULT in last_text(runs) else replace(found, eog_texts=())

    def _detokenize(self, tokens: array[int]) -> str:
        return b"".join(map(self.vocab.piece, tokens)).decode("utf-8", "replace")

    def _lead(self, prompt: ProvenanceStr) -> str:
        """What of the prompt's end belongs to the output: thinking that the template has opened, or a frame."""
        thinking, end = self.format.reasoning_tags, prompt[-200:].rstrip()
        if thinking and end.endswith(thinking.open.strip()):
            return thinking.open
        return (
            self.format.prompt_opening
            if self.format.prompt_opening and end.endswith(self.format.prompt_opening)
            else ""
        )


def _decode(images: Sequence[tuple[str, ImagePart]], limits: ImageLimits) -> list[RgbImage]:
    from server.chat.images.decode import decode  # whoever sees no images need not load what decodes them

    return decode(images, limits)


def _has_vision(projector: str) -> bool:
    """Whether a projector's file says that it takes images; one for sound alone does not. Only loading it shows whether
    it does (`ModelInfo.vision`). Raises EngineError where it is no GGUF."""
    return gguf.read(projector).metadata.get("clip.has_vision_encoder") is True


def prompt_builder(path: str, template: str | None) -> PromptBuilder:
    """The model that is at this path now, with its own template or another. Raises WireError."""
    try:
        now = os.stat(path)
        return _prompt_builder(path, (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns), template)
    except (EngineError, OSError) as error:
        raise WireError("provider-error", "the model's vocabulary cannot be read") from error


@lru_cache(maxsize=8)
def _prompt_builder(path: str, state: tuple[int, ...], template: str | None) -> PromptBuilder:
    """`state` tells one file at this path from the next."""
    return PromptBuilder(Vocab.load(path), template)


def inspect(path: str, settings: ChatSettings) -> Capabilities:
    """What the model at this path can do. What is only made once is made now, not when the first prompt waits for it.

    Raises WireError.
    """
    found = prompt_builder(path, settings.template)
    capabilities = found.capabilities(settings)
    with suppress(WireError):
        found.prepare(_LOOP, replace(settings, reasoning_continuation="dropped"))
    if capabilities.images:
        _decode([("", ImagePart("image/png", _DOT))], settings.images)
    return capabilities


def _answer(conversation: PromptRequest) -> Compiled | None:
    """The rules of a JSON answer, where one is asked for. Raises WireError naming path and keyword."""
    if conversation.response_schema is None:
        return arguments.compile_arguments(_ANY_OBJECT) if conversation.format == "json" else None
    try:
        found = arguments.compile_arguments(conversation.response_schema)
    except UnsupportedSchema as error:
        raise WireError("unsupported", f"the answer's schema: {error}") from None
    except InvalidSchema as error:
        raise WireError("invalid-request", f"the answer's schema: {error}") from None
    if not found.satisfiable:
        raise WireError("unsupported", "the answer's schema: no value satisfies it")
    return found


def tool_arguments(tool: Tool, syntaxes: Iterable[ArgumentSyntax]) -> Arguments:
    """A tool's arguments as the format writes them. Raises WireError naming tool, path and keyword."""
    with _naming(tool):
        found = Arguments(tool.parameters, syntaxes)
    if not found.satisfiable:
        raise WireError("unsupported", f"tool {tool.name}: no arguments satisfy its schema")
    return found


def check_tools(tools: Iterable[Tool]) -> None:
    """Whether every tool's schema is well-formed, be it supported or not, and called or not (NAP-LLM, "Tools").

    Raises WireError naming tool, path and keyword.
    """
    for tool in tools:
        with _naming(tool):
            check_schema(tool.parameters)


@contextmanager
def _naming(tool: Tool) -> Iterator[None]:
    try:
        yield
    except UnsupportedSchema as error:
        raise WireError("unsupported", f"tool {tool.name}: {error}") from None
    except InvalidSchema as error:
        raise WireError("invalid-request", f"tool {tool.name}: {error}") from None


def grammar(schema: Mapping[str, Any]) -> CompiledSchema:
    """What the sampler obeys while it writes arguments of this schema, for a person to read. Raises WireError."""
    try:
        found = arguments.compile_arguments(schema)
    except UnsupportedSchema as error:
        raise WireError("unsupported", str(error), path=error.path, keyword=error.keyword) from None
    except InvalidSchema as error:
        raise WireError("invalid-request", str(error), path=error.path, keyword=error.keyword) from None
    if not found.satisfiable:
        raise WireError("unsupported", "no value satisfies this schema")
    return CompiledSchema(found.gbnf, tuple((check.path, check.keyword) for check in found.unchecked))


def validate(tool: Tool, arguments_given: Mapping[str, Any]) -> None:
    """Check completed arguments against all of the tool's schema. Raises WireError("provider-error")."""
    try:
        arguments.compile_arguments(tool.parameters).validate(arguments_given)
    except InvalidInstance as error:
        raise WireError("provider-error", f"tool {tool.name}: arguments violate its schema: {error}") from None


def validate_answer(schema: Mapping[str, Any] | bool, answer: Any) -> None:
    """Check a completed answer against all of its schema. Raises WireError("provider-error")."""
    try:
        arguments.compile_arguments(schema).validate(answer)
    except InvalidInstance as error:
        raise WireError("provider-error", f"the answer violates its schema: {error}") from None
