"""The work a chat helper does for one model: what it can do, and a conversation made ready for its engine.

Nothing of a model but its vocabulary is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from grammars import Compiled, InvalidInstance, InvalidSchema, UnsupportedSchema, compile_schema
from server.chat.constraint import constraint
from server.chat.conversation import Capabilities, Conversation, Grammar, Prepared
from server.chat.formats import recognise
from server.chat.parser import ParserSpec
from server.chat.probe import Traits, probe
from server.chat.prompt import write_prompt
from server.chat.template import Template, TemplateError
from server.engine import Vocab
from server.engine.messages import EngineError
from server.wire.records import ImagePart, NamedTool, Tool, WireError

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Model:
    """A model's vocabulary and template. Raises WireError where it has no usable template."""

    def __init__(self, path: str, template: str | None) -> None:
        try:
            self.vocab = Vocab.load(path)
        except EngineError as error:
            raise WireError("provider-error", "the model's vocabulary cannot be read") from error
        source = template if template is not None else self.vocab.metadata.get("tokenizer.chat_template")
        if source is None:
            raise WireError("unsupported", "this model has no chat template")
        bos, eos = (None if token is None else self.vocab.text(token) for token in (self.vocab.bos, self.vocab.eos))
        try:
            self.template = Template(source, bos=bos or "", eos=eos or "")
            self.traits: Traits = probe(self.template)
        except TemplateError as error:
            raise WireError("unsupported", str(error)) from None
        self.format = recognise(source)
        self.tokens = {self.vocab.text(token): token for token in self.vocab.controls}
        markers = self.format.markers
        self.banned = tuple(sorted(token for text, token in self.tokens.items() if text not in markers))

    def capabilities(self) -> Capabilities:
        return Capabilities(images=False, json=True, tools=True, tool_choice_modes=("auto", "none", "required", "tool"))

    def prepare(self, conversation: Conversation) -> Prepared:
        """Raises WireError: `unsupported` and `invalid-request` name what they are about, never its values."""
        if any(isinstance(part, ImagePart) for message in conversation.messages for part in message.content):
            raise WireError("unsupported", "this connection does not accept images")
        try:
            prompt = write_prompt(self.template, self.traits, self.format, conversation)
        except TemplateError as error:
            raise WireError("unsupported", str(error)) from None
        choice = conversation.tool_choice
        callable_tools = {
            tool.name: compiled(tool)
            for tool in conversation.tools
            if choice != "none" and (not isinstance(choice, NamedTool) or choice.name == tool.name)
        }
        json = conversation.format == "json"
        return Prepared(
            tokens=self.vocab.tokenize(prompt.segments()),
            constraint=constraint(
                self.format,
                tools=callable_tools,
                choice="auto" if choice == "auto" else "required",
                answer=_compile(_ANY_OBJECT) if json else None,
                tokens=self.tokens,
            ),
            banned=self.banned,
            parser=ParserSpec(
                format=self.format,
                calls="allowed" if callable_tools else "refused" if conversation.tools else "ignored",
                tools=frozenset(callable_tools),
                json=json,
            ),
            checked_tools=frozenset(name for name, schema in callable_tools.items() if schema.checks),
        )


@lru_cache(maxsize=8)
def model(path: str, template: str | None) -> Model:
    return Model(path, template)


def compiled(tool: Tool) -> Compiled:
    """The compiled schema of a tool's arguments. Raises WireError naming tool, path and keyword."""
    try:
        schema = _compile(tool.parameters)
    except UnsupportedSchema as error:
        raise WireError("unsupported", f"tool {tool.name}: {error}") from None
    except InvalidSchema as error:
        raise WireError("invalid-request", f"tool {tool.name}: {error}") from None
    if not schema.satisfiable:
        raise WireError("unsupported", f"tool {tool.name}: no arguments satisfy its schema")
    return schema


def _compile(schema: Mapping[str, Any]) -> Compiled:
    return compile_schema(schema, style="spaced")


def grammar(schema: Mapping[str, Any]) -> Grammar:
    """What the sampler obeys while it writes arguments of this schema, for a person to read. Raises WireError."""
    try:
        compiled = _compile(schema)
    except UnsupportedSchema as error:
        raise WireError("unsupported", str(error), path=error.path, keyword=error.keyword) from None
    except InvalidSchema as error:
        raise WireError("invalid-request", str(error), path=error.path, keyword=error.keyword) from None
    if not compiled.satisfiable:
        raise WireError("unsupported", "no value satisfies this schema")
    return Grammar(compiled.gbnf, tuple((check.path, check.keyword) for check in compiled.checks))


def validate(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Check completed arguments against all of the tool's schema. Raises WireError("provider-error")."""
    try:
        compiled(tool).validate(arguments)
    except InvalidInstance as error:
        raise WireError("provider-error", f"tool {tool.name}: arguments violate its schema: {error}") from None
