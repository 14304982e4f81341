"""The canonical message of the mhome LLM contract, version 1, as JSON Schema (draft 2020-12): what is served of it.

`wire.complete` reads by hand, for errors that name fields; tests hold the two together.
"""

from __future__ import annotations

from typing import Any, Final


def _record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with these members and no others."""
    record: dict[str, Any] = {"type": "object", "additionalProperties": False}
    if required:
        record["required"] = list(required)
    return {**record, "properties": {**required, **(optional or {})}}


def _defined(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


_TEXT: Final = {"type": "string"}
_NOT_EMPTY: Final = {"type": "string", "minLength": 1}
_CALL: Final = {"id": _defined("identifier"), "name": _defined("identifier"), "arguments": True}

MESSAGE_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:mhome:llm:message:v1",
    "title": "Canonical model message v1",
    "$ref": "#/$defs/message",
    "$defs": {
        "identifier": _NOT_EMPTY,
        "tool_call": _record(_CALL),
        "content_part": {
            "oneOf": [
                _record({"type": {"const": "text"}, "text": _TEXT}),
                _record(
                    {
                        "type": {"const": "artifact"},
                        "uri": {"type": "string", "pattern": "^meow-artifact://v1/"},
                        "mime_type": _NOT_EMPTY,
                    }
                ),
                _record({"type": {"const": "tool_call"}, **_CALL}),
                _record(
                    {
                        "type": {"const": "tool_result"},
                        "call_id": _defined("identifier"),
                        "result": True,
                        "is_error": {"type": "boolean"},
                    }
                ),
                _record({"type": {"const": "image"}, "image": _defined("image")}),
            ]
        },
        "message": _record(
            {
                "role": {"enum": ["system", "user", "assistant", "tool"]},
                "content": {"type": "array", "items": _defined("content_part")},
            },
            {"continuation": _defined("continuation")},
        ),
        "continuation": _record({"format": _NOT_EMPTY, "compatibility_key": _NOT_EMPTY, "payload": True}),
        "image": _record({}, {"url": _TEXT, "base64": _TEXT, "mimeType": _TEXT, "createdAt": {"type": "integer"}}),
    },
}
