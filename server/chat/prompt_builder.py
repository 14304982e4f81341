"""The work of a chat helper for one model: its capabilities, and conversations made ready for its engine.

Nothing of a model but its vocabulary is loaded.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache

from grammars import Compiled
from server.chat.arguments import ToolArguments
from server.chat.formats import recognise
from server.chat.grammar import build_constraint
from server.chat.history import check_reasoning, joined_system
from server.chat.images.inserter import ImageInserter, decode_images
from server.chat.parser import ParserSpec
from server.chat.schemas import ANY_OBJECT, check_tools, compile_answer, tool_arguments
from server.chat.stop import stop_criteria
from server.chat.template.capabilities import TemplateCapabilities, detect_capabilities
from server.chat.template.prompt import PromptWriter
from server.chat.template.provenance import ProvenanceStr
from server.chat.template.replay import PromptPart, TurnReplay, Write, last_text
from server.chat.template.template import Template, TemplateError
from server.chat.types import (
    Capabilities,
    ChatSettings,
    PreparedPrompt,
    PromptRequest,
)
from server.engine import Vocab
from server.engine.memory import gguf
from server.engine.types import Constraint, EngineError, StopCriteria
from server.wire.records import ImagePart, Message, NamedTool, Role, TextPart, Tool, ToolCallPart, WireError

_DEFAULT = ChatSettings()
_RESULT = "needleresult"
_DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
"""A PNG of one black pixel."""
_LOOP = PromptRequest(
    (
        Message("user", (TextPart("needleuser"),)),
        Message("assistant", (ToolCallPart("needle001", "needletool", {}),)),
        Message("toolResult", (TextPart(_RESULT),), tool_call_id="needle001", tool_name="needletool"),
    ),
    (Tool("needletool", None, ANY_OBJECT),),
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
        can = self.template_capabilities
        carried: dict[Role, bool] = {
            "user": can.images,
            "toolResult": can.result_images and not self.format.grammar_only,
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
        tools = self._callable(conversation)
        inserter = ImageInserter(conversation, self.image_roles if settings.projector else frozenset())
        conversation = inserter.conversation
        try:
            parts, replayed = self._parts(conversation, settings)
        except TemplateError as error:
            raise WireError("unsupported", str(error)) from None
        check_reasoning(conversation, settings, self.format, self.template_capabilities, replayed)
        prompt = inserter.tokenize(parts, self.vocab, settings.images)
        answer = compile_answer(conversation.format, conversation.response_schema)
        opening = self._opening(last_text(parts))
        return PreparedPrompt(
            tokens=prompt.tokens,
            images=prompt.images,
            places=prompt.places,
            constraint=self._constraint(conversation, tools, answer, opening),
            suppress_tokens=self.suppress_tokens if tools else self.suppress_tokens + self.call_tokens,
            parser=self._parser(conversation, tools, opening, json=answer is not None),
            tools_to_validate=self._to_validate(conversation, tools),
            validate_answer=conversation.response_schema is not None and answer is not None and bool(answer.unchecked),
            stop=self._stop(conversation, opening, calls=bool(tools)),
            replayed=replayed,
        )

    def _callable(self, conversation: PromptRequest) -> dict[str, ToolArguments]:
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

    def _constraint(
        self, conversation: PromptRequest, tools: Mapping[str, ToolArguments], answer: Compiled | None, opening: str
    ) -> Constraint | None:
        choice = conversation.tool_choice
        return build_constraint(
            self.format,
            tools=tools,
            required=choice != "auto",
            # Whoever names a tool wants that call; a small model offered another round of it takes all there are.
            single=isinstance(choice, NamedTool) or not conversation.parallel,
            answer=answer,
            tokens=self.tokens,
            prompt_opening=opening,
        )

    def _parser(
        self, conversation: PromptRequest, tools: Mapping[str, ToolArguments], opening: str, *, json: bool
    ) -> ParserSpec:
        plain = self.format.grammar_only and not conversation.tool_choice
        return ParserSpec(
            format=self.format,
            calls="allowed" if tools else "ignored" if plain else "refused",
            tools={name: given.types for name, given in tools.items()},
            json=json,
            prompt_opening=opening,
        )

    def _to_validate(self, conversation: PromptRequest, tools: Mapping[str, ToolArguments]) -> frozenset[str]:
        """The tools whose completed arguments the grammar alone does not hold to their schema."""
        # Text may part into a call that no grammar has seen: of a tagged format, or without its markers.
        unseen = self.format.always_tagged or (
            conversation.tool_choice == "auto" and any(calls.untagged_call for calls in self.format.calls)
        )
        return frozenset(name for name, given in tools.items() if given.checked or unseen)

    def _stop(self, conversation: PromptRequest, opening: str, *, calls: bool) -> StopCriteria | None:
        if not conversation.stop:
            return None
        if conversation.response_schema is not None or conversation.format == "json":
            raise WireError("unsupported", "stop sequences cannot end a JSON answer")
        return stop_criteria(self.format, conversation.stop, opening, calls=calls)

    def _parts(self, conversation: PromptRequest, settings: ChatSettings) -> tuple[list[PromptPart], frozenset[int]]:
        """The prompt, and the conversation's turns that stand in it as tokens.

        Raises `TemplateError`; WireError where a message has no place in it.
        """
        write = self._writer(conversation, settings)
        if not conversation.kept_tokens:
            return [write(conversation.messages, {}, None)], frozenset()
        return self.replay.write(write, conversation.messages, conversation.kept_tokens)

    def _writer(self, conversation: PromptRequest, settings: ChatSettings) -> Write:
        options = self.template_capabilities.reasoning.options(settings)
        # Of the whole conversation: the prompts of its earlier turns begin with it too.
        joined = joined_system(conversation, settings, self.template_capabilities)

        return PromptWriter(self.template, self.template_capabilities, self.format, conversation, options, joined).write

    @cached_property
    def replay(self) -> TurnReplay:
        ends = [self.vocab.text(token) for token in self.vocab.eog]
        found = TurnReplay(self.format, ends, self._detokenize, self._opening)
        # Where a template ends a turn of calls by something else, an end further on would hide the results.
        parts, replayed = found.write(self._writer(_LOOP, _DEFAULT), _LOOP.messages, {1: array("i")})
        return found if replayed and _RESULT in last_text(parts) else replace(found, eog_texts=())

    def _detokenize(self, tokens: array[int]) -> str:
        return b"".join(map(self.vocab.piece, tokens)).decode("utf-8", "replace")

    def _opening(self, prompt: ProvenanceStr) -> str:
        """The part of the prompt's end that belongs to the output: reasoning that the template has opened, or a tag."""
        thinking, end = self.format.reasoning_tags, prompt[-200:].rstrip()
        if thinking and end.endswith(thinking.open.strip()):
            return thinking.open
        opening = self.format.prompt_opening
        return opening if opening and end.endswith(opening) else ""


def _has_vision(projector: str) -> bool:
    """True where a projector's file says that it takes images; one for sound alone does not. Only loading it shows that
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


def prepare(path: str, settings: ChatSettings, conversation: PromptRequest) -> PreparedPrompt:
    """A conversation made ready for the model at this path. Raises WireError."""
    return prompt_builder(path, settings.template).prepare(conversation, settings)


def inspect(path: str, settings: ChatSettings) -> Capabilities:
    """The capabilities of the model at this path. Objects that are made once are made now, before a first prompt waits.

    Raises WireError.
    """
    found = prompt_builder(path, settings.template)
    capabilities = found.capabilities(settings)
    with suppress(WireError):
        found.prepare(_LOOP, replace(settings, reasoning_continuation="dropped"))
    if capabilities.images:
        decode_images([("", ImagePart("image/png", _DOT))], settings.images)
    return capabilities
