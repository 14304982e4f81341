"""The pages of the documentation: links lead to pages and headings that exist, and the README stays a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "server/**/*.md", "grammars/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
MOST_BYTES = 6 * 1024
"""Of the README."""


def prose(path: Path) -> Iterator[str]:
    """The lines outside fenced blocks."""
    fenced = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


def anchors(path: Path) -> set[str]:
    """The headings, as links name them."""
    titles = [match[1].lower() for line in prose(path) if (match := re.match(r"#+ (.+)", line))]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken(path: Path) -> list[str]:
    """Links within the repository that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(path))):
        if re.match(r"\w+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = path.parent / place if place else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_what_exists(page: str) -> None:
    assert not broken(ROOT / page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`: Three\n[a](#one-two-three) [b](#two) [c](no.md) [d](https://e.f) [e](page.md#none)\n")
    assert broken(page) == ["#two", "no.md", "page.md#none"]


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"({page})" in text for page in PAGES if page.startswith("docs/"))
    assert len(text.encode()) <= MOST_BYTES
