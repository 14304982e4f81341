"""A new syntax of arguments is one class: the grammar, the parser, histories and prompts take it as it is."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from server.chat.arguments import ArgumentGrammar, ArgumentSyntax, ArgumentTypes, ToolArguments, Types
from server.chat.arguments.json import read_json, to_json
from server.chat.arguments.syntax import MALFORMED, compile_schema
from server.chat.formats import FORMATS
from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ARGUMENTS, NAME, ChatFormat, ToolCallFormat
from server.chat.gbnf import quote, sequence
from server.chat.grammar import build_constraint
from server.chat.parser import MalformedOutput, ParserSpec
from server.chat.prompt_builder import PromptBuilder
from server.chat.reader import Reader, Steps
from server.chat.template.provenance import ProvenanceStr, from_template, join
from server.chat.types import PromptRequest
from server.engine import Vocab
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolCallPart
from tests.chat.blocks import read
from tests.chat.matching import Matcher


@dataclass(frozen=True, slots=True)
class MarkedArguments(ArgumentSyntax):
    """Arguments as a row of `mark` key `=` JSON, in the order of the schema."""

    mark: str

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.mark,)

    def openings(self, after: str) -> tuple[str, ...]:
        return (self.mark, after)

    def grammar(self, schema: Mapping[str, Any], types: ArgumentTypes) -> ArgumentGrammar:
        whole = compile_schema(schema)
        members = [(name, compile_schema(member)) for name, member in schema["properties"].items()]

        def rules(prefix: str) -> str:
            parts = [
                f"({quote(f'{self.mark}{name}=')} {prefix}{index}-root){'' if name in schema['required'] else '?'}"
                for index, (name, _) in enumerate(members)
            ]
            values = [member.rules(f"{prefix}{index}-") for index, (_, member) in enumerate(members)]
            return "\n".join([f"{prefix}root ::= {sequence(parts)}", *values])

        return ArgumentGrammar(rules, whole.satisfiable, not whole.unchecked)

    def read(self, reader: Reader, emit: Callable[[str], None], types: Types, after: str, end: str = "") -> Steps[str]:
        emit("{")
        first = True
        while (choice := (yield from reader.choose([self.mark, after]))) == 0:
            key = yield from reader.text_until("=")
            emit(f"{'' if first else ', '}{to_json(key)}: ")
            first = False
            yield from read_json(reader, emit)
        if choice is None:
            yield from reader.wrong(MALFORMED)
        emit("}")
        return ""

    def render(self, arguments: Mapping[str, Any]) -> ProvenanceStr:
        mark = from_template(self.mark)
        return join(join([mark, ProvenanceStr(f"{key}={to_json(value)}")]) for key, value in arguments.items())

    def is_exact(self, types: ArgumentTypes) -> bool:
        return types.complete


MARK = "<|im_start|>"
"""A control token of the tests' vocabulary."""
SYNTAX = MarkedArguments(MARK)
FORMAT = ChatFormat(
    name="marked",
    template_markers=(("<call>",),),
    calls=(ToolCallFormat(call=("<call>", NAME, ":", ARGUMENTS, "</call>"), syntax=SYNTAX),),
)
TEMPLATE = """
{%- for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}
{%- if false %}<call>{% endif %}[assistant]"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
VALUES: list[dict[str, Any]] = [
    {"city": "Oslo"},
    {"city": 'say "=</call>"', "days": 3},
    {"city": MARK, "days": 9, "tags": ["a", "b"]},
]
TOOL = Tool("travel", "Travels.", SCHEMA)


def written(arguments: Mapping[str, Any]) -> str:
    return str.__str__(render_tool_calls(FORMAT.calls[0], [("travel", "", arguments)]))


@pytest.fixture
def builder(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> PromptBuilder:
    monkeypatch.setitem(FORMATS, FORMAT.name, FORMAT)
    return PromptBuilder(vocab, TEMPLATE)


@pytest.fixture
def grammar() -> str:
    constraint = build_constraint(FORMAT, tools={"travel": ToolArguments(SCHEMA, [SYNTAX])}, required=True, tokens={})
    assert constraint is not None
    return constraint.grammar


@pytest.mark.parametrize("arguments", VALUES, ids=str)
def test_rendered_calls_are_allowed_and_read(matcher: Matcher, grammar: str, arguments: dict[str, Any]) -> None:
    output = written(arguments)
    assert matcher.accepts(grammar, output)
    spec = pickle.loads(pickle.dumps(ParserSpec(FORMAT, "allowed", {"travel": ToolArguments(SCHEMA, [SYNTAX]).types})))
    for pieces in ([output], list(output)):
        assert read(spec, pieces).calls == [("travel", arguments)]


@pytest.mark.parametrize(
    "arguments", [{}, {"city": 1}, {"city": "x", "days": 10}, {"city": "x", "tags": ["c"]}, {"city": "x", "no": 1}]
)
def test_the_grammar_holds_the_schema(matcher: Matcher, grammar: str, arguments: dict[str, Any]) -> None:
    assert not matcher.accepts(grammar, written(arguments))


def test_whatever_the_grammar_writes_is_read(matcher: Matcher, grammar: str) -> None:
    alphabet = sorted(set(f"{written(VALUES[-1])}{'}}'}0123456789".encode()))
    tokens = [matcher.vocab.byte_tokens[byte] for byte in alphabet]
    ended = 0
    for seed in range(40):
        walk = matcher.start(grammar)
        assert all(walk.step(matcher.vocab.byte_tokens[byte]) for byte in f'<call>travel:{MARK}city="'.encode())
        rest = walk.random(random.Random(seed), tokens)
        if rest is None:
            continue
        ended += 1
        output = f'<call>travel:{MARK}city="{rest}'
        ((name, given),) = read(ParserSpec(FORMAT, "allowed", {"travel": {}}), [output]).calls
        assert name == "travel" and given["city"] is not None and given.keys() <= SCHEMA["properties"].keys()
    assert ended >= 5


def test_calls_are_recognised_by_what_their_arguments_begin_with() -> None:
    refused = ParserSpec(FORMAT, "refused")
    for output in (written(VALUES[0]), written({})):
        with pytest.raises(MalformedOutput):
            read(refused, [output])
    text = "<call>travel: it is a word of mine"
    assert read(refused, [text]).of("text") == text


def test_validation_follows_the_syntax() -> None:
    assert not ToolArguments(SCHEMA, [SYNTAX]).checked
    assert ToolArguments({**SCHEMA, "minProperties": 1}, [SYNTAX]).checked
    impossible = {**SCHEMA, "properties": {**SCHEMA["properties"], "city": False}}
    assert not ToolArguments(impossible, [SYNTAX]).satisfiable


def test_a_prompt_holds_the_calls_and_its_constraint_the_grammar(builder: PromptBuilder, matcher: Matcher) -> None:
    assert builder.format is FORMAT
    history = (
        Message("user", (TextPart("Go."),)),
        Message("assistant", (ToolCallPart("a", "travel", VALUES[1]),)),
        Message("toolResult", (TextPart("Done."),), tool_call_id="a", tool_name="travel"),
    )
    prepared = builder.prepare(PromptRequest(history, (TOOL,), NamedTool("travel")))
    assert written(VALUES[1]) in b"".join(map(builder.vocab.piece, prepared.tokens)).decode()
    assert prepared.constraint is not None and not prepared.tools_to_validate
    # The mark's token is named in the grammar: the engine bans control tokens that no grammar names.
    mark = builder.tokens[MARK]
    assert f"<[{mark}]>" in prepared.constraint.grammar and mark not in prepared.suppress_tokens
    assert matcher.accepts(prepared.constraint.grammar, written(VALUES[0]))
    assert read(prepared.parser, [written(VALUES[0])]).calls == [("travel", VALUES[0])]
