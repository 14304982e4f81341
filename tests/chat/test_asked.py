"""What projections beside NAP-LLM ask of a conversation, on every format: a schema, some tools, one call, an end."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from server.chat.parser import MalformedOutput, make_parser
from server.chat.prompt_builder import PromptBuilder
from server.chat.schemas import validate_answer
from server.chat.types import PreparedPrompt, PromptRequest
from server.engine import Vocab
from server.engine.sampling.stop import StopMatcher
from server.wire.records import NamedTool, WireError
from tests.chat.blocks import Reading, read
from tests.chat.matching import Matcher
from tests.chat.test_choices import ASK, LOOK, STOP, answer, calls
from tests.chat.test_formats import ONE_EACH

LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
VALUES: list[tuple[Any, str, str]] = [
    (LIST, "[1, 22]", "[]"),
    ({"type": "object", "properties": {"a": {"const": "}"}}, "required": ["a"]}, '{"a": "}"}', "{}"),
    ({"enum": ['say "}"', "b"]}, r'"say \"}\""', '"c"'),
    ({"type": "integer"}, "-12", "1.5"),
    ({"type": ["boolean", "null"]}, "null", "0"),
]


@pytest.fixture(scope="module")
def models(vocab: Vocab, templates: dict[str, str]) -> dict[str, PromptBuilder]:
    return {name: PromptBuilder(vocab, source) for name, source in templates.items()}


@pytest.mark.parametrize("name", ONE_EACH)
def test_an_answer_is_the_json_of_its_schema(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    for tools, choice in (((), None), ((LOOK, STOP), "auto")):
        for schema, good, bad in VALUES:
            prepared = model.prepare(PromptRequest((ASK,), tools, choice, response_schema=schema))  # type: ignore[arg-type]
            assert prepared.constraint is not None
            said = answer(model, prepared, good, forced=bool(tools))
            assert matcher.accepts(prepared.constraint.grammar, said)
            assert not matcher.accepts(prepared.constraint.grammar, answer(model, prepared, bad, forced=bool(tools)))
            assert not matcher.accepts(prepared.constraint.grammar, answer(model, prepared, "Hi", forced=bool(tools)))
            for pieces in (list(said), [said]):
                reading = read(prepared.parser, pieces)
                assert reading.of("text") == good and not reading.calls
            if tools:
                given = calls(model, prepared, "look")
                assert matcher.accepts(prepared.constraint.grammar, given)


def test_what_a_grammar_leaves_open_is_validated(models: dict[str, PromptBuilder]) -> None:
    model = models[ONE_EACH[0]]
    tight = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    assert not model.prepare(PromptRequest((ASK,), response_schema=tight)).validate_answer
    loose = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert model.prepare(PromptRequest((ASK,), response_schema=loose)).validate_answer
    validate_answer(loose, [1, 2])
    with pytest.raises(WireError) as raised:
        validate_answer(loose, [1, 1])
    assert raised.value.code == "provider-error" and "uniqueItems" in raised.value.message


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "invalid-request"),
        ({"type": "strange"}, "invalid-request"),
        (False, "unsupported"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "unsupported"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused(models: dict[str, PromptBuilder], schema: Any, code: str) -> None:
    with pytest.raises(WireError) as raised:
        models[ONE_EACH[0]].prepare(PromptRequest((ASK,), response_schema=schema))
    assert raised.value.code == code and "answer's schema" in raised.value.message


@pytest.mark.parametrize("name", ONE_EACH)
def test_some_of_the_tools_may_be_called(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    plain = model.prepare(PromptRequest((ASK,), (LOOK, STOP), "required"))
    prepared = model.prepare(PromptRequest((ASK,), (LOOK, STOP), "required", allowed_tools=frozenset({"stop"})))
    assert prepared.constraint is not None
    # All are described, so that the prompt stays what it was.
    assert prepared.tokens == plain.tokens
    assert matcher.accepts(prepared.constraint.grammar, calls(model, prepared, "stop"))
    assert not matcher.accepts(prepared.constraint.grammar, calls(model, prepared, "look"))
    # Whatever wrote it: where a brace may be mere text, it is text.
    with contextlib.suppress(MalformedOutput):
        assert not read(prepared.parser, [calls(model, prepared, "look")]).calls


@pytest.mark.parametrize("name", ONE_EACH)
def test_one_call_a_turn_where_they_may_not_be_parallel(
    models: dict[str, PromptBuilder], matcher: Matcher, name: str
) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest((ASK,), (LOOK, STOP), "required", parallel=False))
    assert prepared.constraint is not None
    for tool in ("look", "stop"):
        assert matcher.accepts(prepared.constraint.grammar, calls(model, prepared, tool))
    assert not matcher.accepts(prepared.constraint.grammar, calls(model, prepared, "look", "stop"))


def stopped(prepared: PreparedPrompt, output: str) -> tuple[Reading, bool]:
    """What a reader sees of an output that the engine ends at a stop sequence, as it does character by character."""
    assert prepared.stop is not None
    search = StopMatcher(prepared.stop)
    shown = b"".join(search.feed(character.encode()) for character in output) + search.finish()
    parser = make_parser(prepared.parser)
    reading = Reading()
    reading.take(parser.feed(shown.decode()))
    reading.take(parser.finish("length" if search.found else "stop"))
    return reading, search.found


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_stop_sequence_ends_the_answer_and_nothing_else(models: dict[str, PromptBuilder], name: str) -> None:
    model = models[name]
    for tools in ((), (LOOK, STOP)):
        forced = bool(tools) and model.format.grammar_only
        # Each is found in markers of some format, in arguments, or is written otherwise in a string.
        for text in ("\n\nx", '"', "final", "response", "message", "END", "<", "é"):
            conversation = PromptRequest((ASK,), tools, "auto" if tools else None, stop=(text,))
            prepared = model.prepare(conversation)
            said = f'"one{text}two"'[1:-1]
            if forced:
                said = '"' + said.replace('"', '\\"').replace("\n", "\\n") + '"'
            reading, found = stopped(prepared, answer(model, prepared, said, forced=forced))
            assert (reading.of("text"), found) == ("one", True), text
            quiet = '"one two"' if forced else "one two"
            reading, found = stopped(prepared, answer(model, prepared, quiet, forced=forced))
            assert (reading.of("text"), found) == ("one two", False), text
            if tools:
                reading, found = stopped(prepared, calls(model, prepared, "look"))
                assert (reading.calls, found) == ([("look", {"place": "x"})], False), text


def test_a_json_answer_cannot_be_ended(models: dict[str, PromptBuilder]) -> None:
    model = models[ONE_EACH[0]]
    for conversation in (
        PromptRequest((ASK,), response_schema=LIST, stop=("x",)),
        PromptRequest((ASK,), format="json", stop=("x",)),
    ):
        with pytest.raises(WireError) as raised:
            model.prepare(conversation)
        assert raised.value.code == "unsupported" and "stop" in raised.value.message
    assert model.prepare(PromptRequest((ASK,), (LOOK,), NamedTool("look"))).stop is None
