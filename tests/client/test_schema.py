"""JSON Schemas of Python functions, judged by `jsonschema`, and what docstrings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import pytest

from server.client import FunctionTool
from server.client.schema import parameters_of, read_docstring, schema_of
from server.client.tools import Toolbox
from server.wire.records import Tool


class Guest(TypedDict):
    name: str
    age: NotRequired[int]


class Place(TypedDict, total=False):
    street: str


def test_a_function_becomes_a_tool() -> None:
    def book(restaurant: str, guests: int = 2, smoking: bool | None = None, area: Literal["in", "out"] = "in") -> str:
        """Books a table.

        By telephone, so it takes a while.

        Args:
            restaurant (str): Its name,
                as on the door.
            guests: How many.
            area: Where to sit.

        Returns:
            What they said: a time.
        """
        return ""

    tool = FunctionTool.of(book)
    assert tool.definition == Tool(
        "book",
        "Books a table.\n\nBy telephone, so it takes a while.",
        {
            "type": "object",
            "properties": {
                "restaurant": {"type": "string", "description": "Its name, as on the door."},
                "guests": {"type": "integer", "description": "How many.", "default": 2},
                "smoking": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
                "area": {"enum": ["in", "out"], "description": "Where to sit.", "default": "in"},
            },
            "additionalProperties": False,
            "required": ["restaurant"],
        },
    )
    assert tool.handler is book


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (str, ["a"], [1, None]),
        (int, [1], [1.5, "1", True]),
        (float, [1, 1.5], ["1"]),
        (bool, [True], [1]),
        (None, [None], [0]),
        (list, [[1, "a"]], [{}]),
        (list[int], [[], [1]], [["a"], "a"]),
        (Sequence[list[str]], [[["a"]]], [["a"]]),
        (dict, [{"a": 1}], [[]]),
        (dict[str, int], [{"a": 1}], [{"a": "b"}]),
        (Mapping[str, Any], [{"a": []}], [1]),
        (str | int | None, ["a", 1, None], [1.5, []]),
        (Literal["a", 1, None], ["a", 1, None], ["b", 2]),
        (Guest, [{"name": "a"}, {"name": "a", "age": 3}], [{}, {"name": "a", "more": 1}, {"name": "a", "age": "3"}]),
        (Place, [{}, {"street": "a"}], [{"street": 1}]),
        (Annotated[int, "years", {"minimum": 0}], [0], [-1, "a"]),
        (Any, [None, 1, {}], []),
    ],
    ids=str,
)
def test_annotations(hint: Any, good: list[Any], bad: list[Any]) -> None:
    hint = type(None) if hint is None else hint
    validator = jsonschema.Draft202012Validator(schema_of(hint))
    jsonschema.Draft202012Validator.check_schema(validator.schema)
    assert all(validator.is_valid(value) for value in good)
    assert not any(validator.is_valid(value) for value in bad)


def test_annotated_words_win_over_the_docstring() -> None:
    def f(a: Annotated[int, "from the annotation"]) -> None:
        """F.

        :param a: from the docstring
        """

    assert parameters_of(f)["properties"]["a"]["description"] == "from the annotation"


def test_further_keywords_and_none_at_all() -> None:
    def none() -> None: ...
    def anything(**rest: Any) -> None: ...
    def numbers(first: int, **rest: float) -> None: ...

    assert parameters_of(none) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert parameters_of(anything)["additionalProperties"] is True
    assert parameters_of(numbers)["additionalProperties"] == {"type": "number"}
    assert parameters_of(numbers)["required"] == ["first"]


def test_a_default_that_json_cannot_say_makes_the_argument_optional_all_the_same() -> None:
    def f(a: Any = object()) -> None: ...  # noqa: B008

    assert parameters_of(f) == {"type": "object", "properties": {"a": {}}, "additionalProperties": False}


def positional(a: int, /) -> None: ...
def several(*a: int) -> None: ...
def bytes_(a: bytes) -> None: ...
def keys(a: dict[int, str]) -> None: ...
def nested(a: list[set[int]]) -> None: ...
def strange(a: Literal[b"x"]) -> None: ...


@pytest.mark.parametrize("function", [positional, several, bytes_, keys, nested, strange])
def test_what_cannot_be_said_is_refused_by_name(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"tool {function.__name__}: parameter a: "):
        FunctionTool.of(function)
    # One's own schema takes its place.
    given = FunctionTool.of(function, name="f", description="d", parameters={"type": "object"})
    assert given.definition == Tool("f", "d", {"type": "object"})


class Counter:
    """Counts."""

    def __call__(self, by: int) -> int:
        return by

    def reset(self, to: int) -> None:
        """Resets it."""


def test_methods_and_objects() -> None:
    assert FunctionTool.of(Counter().reset).definition.parameters["required"] == ["to"]
    tool = FunctionTool.of(Counter()).definition
    assert (tool.name, tool.description) == ("Counter", "Counts.")
    assert tool.parameters["properties"] == {"by": {"type": "integer"}}


SPHINX = """Does it.

:param int a: The first,
    with more.
:param b: The second.
:returns: Nothing.
    Really.
:raises ValueError: never"""

GOOGLE = """Does it:
  twice.

Args:
    a: One.

    **b: Two: three.
Raises:
    c: No."""


def test_docstrings() -> None:
    assert read_docstring(SPHINX) == ("Does it.", {"a": "The first, with more.", "b": "The second."})
    assert read_docstring(GOOGLE) == ("Does it:\n  twice.", {"a": "One.", "b": "Two: three."})
    assert read_docstring("") == ("", {})


def test_a_toolbox_takes_all_kinds() -> None:
    wire = Tool("wire", None, {"type": "object"})

    def plain() -> None: ...

    box = Toolbox([wire, plain, FunctionTool.of(plain, name="other")])
    assert [tool.name for tool in box.definitions] == ["wire", "plain", "other"]
