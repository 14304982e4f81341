"""The table in the room's README is what the code says."""

from __future__ import annotations

from server.chat.table import README, table


def test_the_table_is_current(templates: dict[str, str]) -> None:
    assert table(templates) in README.read_text()
