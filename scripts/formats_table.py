"""The table of chat templates in `server/chat/README.md`.

`python scripts/formats_table.py DIRECTORY` writes it anew from the `*.jinja` there; a test holds it to the code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from server.chat.formats import recognise
from server.chat.template.capabilities import TemplateCapabilities, detect_capabilities
from server.chat.template.template import Template

README = Path(__file__).parent.parent / "server/chat/README.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

UNRECOGNISED = {
    "google-gemma-2-2b-it": "knows no tools",
    "llama-cpp-rwkv-world": "knows no tools",
    "microsoft-Phi-3.5-mini-instruct": "knows no tools",
}
"""Why a template has the generic format."""

_LATER = {"native": "", "first": ", later: joins the first", "none": ", later: refused"}

_HEADER = """| template | format | system | tools | calls | text beside | results | images | thinking | set by |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table(templates: Mapping[str, str]) -> str:
    """The table: a row for each template (name → source), in the order of their names."""
    return _HEADER + "".join(_row(name, templates[name]) for name in sorted(templates, key=str.lower))


def _row(name: str, source: str) -> str:
    traits = detect_capabilities(Template(source))
    format = recognise(source, traits.sample)
    label = f"{format.name} ({UNRECOGNISED[name]})" if format.grammar_only else format.name
    native = traits.tools and not format.grammar_only
    thinking = ""
    if format.reasoning_tags is not None:
        replay = " wanted back" if format.needs_reasoning_history else " taken back" if traits.replay else ""
        thinking = f"`{format.reasoning_tags.open.strip()}`{replay}"
    cells = [
        name,
        label,
        ("native" if traits.system else "first user turn") + _LATER[traits.later_system],
        "native" if native else "system turn",
        _calls(traits, native=not format.grammar_only),
        "native" if traits.text_with_calls else "turn of its own" if traits.apart else "spelled" if native else "",
        _results(traits, native=not format.grammar_only),
        _images(traits, native=not format.grammar_only),
        thinking,
        _set_by(traits),
    ]
    return f"| {' | '.join(cells)} |\n".replace("<|", "<\\|").replace("|>", "\\|>")


def _calls(traits: TemplateCapabilities, *, native: bool) -> str:
    if not native or traits.arguments is None:
        return "spelled"
    return f"{traits.arguments}s" + ("" if traits.parallel else ", one a turn")


def _results(traits: TemplateCapabilities, *, native: bool) -> str:
    if not (native and traits.results):
        return "user turn"
    return "native" if traits.answered else "native, before a user's message: user turn"


def _images(traits: TemplateCapabilities, *, native: bool) -> str:
    if not traits.images:
        return "none"
    return "users, results" if native and traits.result_images else "users"


def _set_by(traits: TemplateCapabilities) -> str:
    """The template's variables that a connection's `thinking` and `reasoning_effort` fill."""
    reasoning = traits.reasoning
    names = [*([reasoning.switch[0]] if reasoning.switch else []), *([reasoning.effort] if reasoning.effort else [])]
    return ", ".join(f"`{name}`" for name in names)


def write(templates: Mapping[str, str]) -> None:
    """Replace the table in the README."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    README.write_text(f"{before}{BEGIN}{table(templates)}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write({path.stem: path.read_text() for path in Path(sys.argv[1]).glob("*.jinja")})
