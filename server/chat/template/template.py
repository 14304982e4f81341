"""Chat templates: the Jinja program in a model's metadata that writes its prompt.

Rendered as Transformers does (`apply_chat_template`; llama.cpp follows it): an immutable sandbox, `trim_blocks` and
`lstrip_blocks`, loop controls, `{% generation %}`, `tojson`, `strftime_now`, `raise_exception`, `bos_token` and
`eos_token`. The result knows which characters the template wrote (`ProvenanceStr`). A template is work from a stranger:
whatever goes wrong in it is a `TemplateError`; time and memory are bounded by the process that renders (`HelperPool`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.chat.template.provenance import ProvenanceStr, from_template, join

MAX_OUTPUT = 8_000_000
"""Characters a rendered prompt may have; far beyond any context."""


class TemplateError(Exception):
    """The template does not compile, fails, or refuses the conversation. The text holds nothing of the conversation."""


class _Refused(jinja2.TemplateError):
    """`raise_exception` was called."""


class _Code(CodeGenerator):
    """Generates code in which the template's own text is control text."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.control({''.join(group)!r})"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        self.write(_constant(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(f"environment.control({str(node.as_const(frame.eval_ctx))!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


def _constant(value: Any) -> str:
    """Python code of a constant of the template, which may be a list or a dictionary of them."""
    if isinstance(value, str):
        return f"environment.control({value!r})"
    if isinstance(value, list):
        return f"[{', '.join(map(_constant, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(_constant(item) + ', ' for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_constant(key)}: {_constant(item)}' for key, item in value.items())}}}"
    return repr(value)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; rendering it is rendering its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Code
    control = staticmethod(lru_cache(maxsize=4096)(from_template))
    concat = staticmethod(lambda parts: join(_bounded(parts)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates queue ids in lists of their own (Kimi K2); llama.cpp lets them. All lists here are copies.
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`"…{}…".format(…)` keeping provenance for plain fields; anything else goes the sandbox's way."""
        sandboxed = super().wrap_str_format(value)
        source = getattr(value, "__self__", None)
        if sandboxed is None or not isinstance(source, ProvenanceStr) or value.__name__ != "format":
            return sandboxed
        pieces = source.split("{}")
        if any("{" in piece or "}" in piece for piece in pieces):
            return sandboxed

        def fill(*args: Any, **kwargs: Any) -> str:
            if len(args) < len(pieces) - 1:
                raise TypeError("too few arguments for format")
            filled = [part for pair in zip(pieces, map(str, args), strict=False) for part in pair]
            return join([*filled[: 2 * len(pieces) - 2], pieces[-1]])

        return fill


def _bounded(parts: Iterable[str]) -> Iterable[str]:
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_OUTPUT:
            raise _Refused(from_template("the prompt it writes has no end"))
        yield part


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> ProvenanceStr:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )
    return ProvenanceStr(text)


def _listed(value: Any) -> list[Any]:
    """A generator, which `map` and its kin give, as a list: llama.cpp writes it so."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError("not JSON")


def _raise(message: str = "") -> None:
    raise _Refused(message)


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> ProvenanceStr:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(_ENVIRONMENT, attribute), value)
    return ProvenanceStr.join(d if isinstance(d, ProvenanceStr) else ProvenanceStr(d), map(str, value))


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    return (value if isinstance(value, ProvenanceStr) else ProvenanceStr(value)).replace(old, new, count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(s, ProvenanceStr):
        return do_indent(s, width, first, blank)
    pad = from_template(width if isinstance(width, str) else " " * width)
    lines = ProvenanceStr.split(s, "\n")
    return from_template("\n").join(
        pad + line if (first if i == 0 else bool(line) or blank) else line for i, line in enumerate(lines)
    )


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], cache_size=0
    )
    environment.filters |= {
        "tojson": _tojson,
        "join": _join,
        "replace": _replace,
        "indent": _indent,
        "safe": lambda value: value,
        "string": lambda value: value if isinstance(value, str) else str(value),
    }
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


_ENVIRONMENT = _environment()


class Template:
    """One compiled chat template. `source` is Jinja; raises `TemplateError` where it does not compile."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        self.source = source
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError) as error:
            raise TemplateError("the chat template does not compile") from error
        self._tokens = {"bos_token": from_template(bos), "eos_token": from_template(eos)}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> ProvenanceStr:
        """The prompt for this conversation.

        Strings of `messages` and `tools` count as content unless they are control text. `options` are further
        variables of the template (`enable_thinking` and the like). Raises `TemplateError`.
        """
        variables = {
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "functions": _tojson(tools or [], indent=2),  # Firefunction's names for tools and date
            "datetime": datetime.now().strftime("%b %d %Y"),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **options,
        }
        try:
            context = self._template.new_context(variables)
            return join(_bounded(self._template.root_render_func(context)))
        except _Refused as refusal:
            reason = refusal.args[0] if refusal.args else ""
            told = f": {reason}" if isinstance(reason, ProvenanceStr) and reason and reason.is_from_template() else ""
            raise TemplateError(f"the chat template refuses this conversation{told}") from None
        except MemoryError:
            raise
        except Exception as error:  # a template is a program: it may raise anything at all
            raise TemplateError(f"the chat template fails on this conversation ({type(error).__name__})") from None
