"""Typed errors of the schema compiler. None of them carries text of an instance."""

from __future__ import annotations


class UnsupportedSchema(ValueError):
    """A valid schema that this compiler cannot turn into a grammar.

    `path` is the JSON Pointer of the subschema, `keyword` the keyword in it, `limit` the name of the exceeded limit,
    where a limit is the reason.
    """

    def __init__(self, path: str, keyword: str, reason: str = "unsupported", limit: str | None = None) -> None:
        self.path, self.keyword, self.reason, self.limit = path, keyword, reason, limit
        super().__init__(f"{path or '/'}: {keyword}: {reason}" + (f" (limit: {limit})" if limit else ""))

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str | None]]:
        return type(self), (self.path, self.keyword, self.reason, self.limit)


class InvalidSchema(ValueError):
    """No JSON Schema: a keyword whose value has the wrong form, or a `$ref` that leads nowhere."""

    def __init__(self, path: str, keyword: str, reason: str) -> None:
        self.path, self.keyword, self.reason = path, keyword, reason
        super().__init__(f"{path or '/'}: {keyword}: {reason}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.path, self.keyword, self.reason)


class InvalidInstance(ValueError):
    """A value that violates the schema: the JSON Pointer of the offending part of the value and the keyword."""

    def __init__(self, path: str, keyword: str) -> None:
        self.path, self.keyword = path, keyword
        super().__init__(f"{path or '/'}: violates {keyword}")

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.path, self.keyword)
