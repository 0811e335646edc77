"""The form of an answer that may begin with thoughts, or is to call tools, as a grammar of llguidance. Pure.

Where calls are forced the answer is nothing but calls, written as the model writes them. Where they are not, but a tool
is ``strict``, calls of it are held to its schema and all else is free. Where a text has a form of its own, an answer is
of that form or calls. Where the model thinks, thoughts may come before all of this.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from device_agent.answering.dialect.dialect import Dialect
from device_agent.answering.dialect.tagged_form import TaggedForm
from device_agent.answering.dialect.thoughts import CLOSE, OPEN, TAGS, begun_in
from device_agent.answering.form import LENIENT, OPTIONS, Form, TokenOf, grammar_of, named, side_by_side
from wire.request_messages import Generate, Grammar
from wire.text_messages import Tool

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MOST_FORCED: Final = 16
"""Calls of an answer that has to have some: a small model might go on for ever."""

NOTHING: Final = '{"type":"object","properties":{},"additionalProperties":false}'
ANYTHING: Final = '{"type":"object"}'

_ANY: Final = r"/(.|\n)*/"
_BLANKS: Final = r"/[ \n]{0,4}/"
_BARE_CALL: Final = r'/[ \n\r\t]*(<think>|\{[ \n\r\t]*("name"|"type"[ ]*:[ ]*"function"))(.|\n)*/'
"""What free text does not begin with where a call stands by itself: a call, or thoughts that a call may follow."""
_NUMBER: Final = "/[0-9]{1,4}/"
_SIGN: Final = re.compile(r'"[^"]*"|[{}:,]')


def answer_form(dialect: Dialect, request: Generate, ending: str) -> Form | None:
    """Return the form of an answer to a request; None where it has none.

    Args:
        ending: the end of the prompt's text.
    """
    asked, tools = request.grammar, _held_tools(dialect, request)
    thinks, forced = request.thoughts and dialect.thinks, request.calling is not None and request.calling.forced
    if asked is None and not tools:
        return None
    if asked is not None and not tools and not thinks:
        return Form.of(asked)
    asked = None if forced else asked
    parts = [
        (Grammar("json", tool.parameters, tool.param), _options(tool))
        for tool in tools
        if tool.parameters and (forced or tool.strict)
    ]
    if asked is not None:
        parts.append((asked, OPTIONS))
    begun = begun_in(ending)

    def made(token_of: TokenOf) -> str:
        return _Words(dialect, request, tools, token_of).written(asked, thinks, begun)

    param = "tool_choice" if forced else asked.param if asked is not None else "tools"
    key = repr((dialect.format, request.calling, tools, asked, thinks and begun, thinks))
    return Form(param, key, tuple(parts), made, may_be_left=not forced and asked is None)


def _held_tools(dialect: Dialect, request: Generate) -> list[Tool]:
    """The tools whose calls are part of the form; none where calls are free, or there are none."""
    calling, tools = request.calling, request.rendering.tools
    if calling is None:
        return []
    if calling.forced:
        return [tool for tool in tools if calling.name in ("", tool.name)]
    held = dialect.calls and (request.grammar is not None or any(tool.strict for tool in tools))
    return list(tools) if held else []


def _options(tool: Tool) -> JsonCompileOptions:
    return OPTIONS if tool.strict else LENIENT


class _Words:
    """The grammar of one form.

    Args:
        tools: those that may be called.
    """

    def __init__(self, dialect: Dialect, request: Generate, tools: list[Tool], token_of: TokenOf) -> None:
        self._format = dialect.format
        self._calling = request.calling
        self._tools = tools
        self._token_of = token_of
        self._marks = re.compile("(" + "|".join(map(re.escape, (*dialect.format.marks, *TAGS))) + ")")
        self._rules = [f"ANY: {_ANY}"]
        self._inside: list[str] = []
        """Of each tool the terms of its arguments."""

    def written(self, asked: Grammar | None, thinks: bool, begun: bool) -> str:
        """All of it; see ``answer_form``."""
        forced = self._calling is not None and self._calling.forced
        others = [each for at, tool in enumerate(self._tools) for each in self._arguments(at, tool, forced)]
        if asked is not None:
            others.append(named("asked", grammar_of(asked.kind, asked.text)))
        rest = "@asked"
        if self._tools:
            beside = asked is not None and self._format.bare
            ways = map(self._call_beside if beside else self._call, range(len(self._tools)))
            self._rules.append("call: " + " | ".join(ways))
            rest = "call" if beside else self._calls(together=True)
            if not forced and asked is not None:
                rest = f"({rest} | @asked)"
        if self._tools and not forced and asked is None:
            rest = self._calls_in_text()
        elif thinks:
            rest = f"{_BLANKS} {rest}"
        thoughts = self._thoughts(begun) if thinks else ""
        return side_by_side("\n".join([f"start: {thoughts} {rest}", *self._rules]), others)

    def _arguments(self, at: int, tool: Tool, forced: bool) -> list[dict[str, Any]]:
        """The grammars of a tool's arguments, and into ``_inside`` the terms that they make."""
        free, tags = not forced and not tool.strict, self._format.tags
        schema: dict[str, Any] = json.loads(ANYTHING if free else tool.parameters or NOTHING)
        schema.setdefault("type", "object")
        options = OPTIONS if free else _options(tool)
        if tags is None:
            self._inside.append(f"@args_{at}")
            return [named(f"args_{at}", grammar_of("json", json.dumps(schema), options))]
        freely = self._until(tags.close, "value", "ANY")
        written = TaggedForm(
            tags, f"value_{at}", schema, strict=tool.strict, options=options, said=self._text, freely=freely
        )
        self._inside.append(written.terms())
        return written.others

    def _call(self, at: int) -> str:
        """A call of one tool, from its name on."""
        format = self._format
        name = self._tools[at].name
        before = self._text(name + format.middle)
        if format.numbered:
            before = f"{self._text(name + format.numbered)} {_NUMBER} {self._text(format.middle)}"
        return f"{before} {self._inside[at]} {self._text(format.end)}"

    def _call_beside(self, at: int) -> str:
        """A call that a JSON text may stand for: the same signs, each by itself, since llguidance takes the longest one
        and does not come back."""
        format = self._format
        signs = _SIGN.findall(f"{format.lead}{self._tools[at].name}{format.middle}")
        return f"{' '.join(map(json.dumps, signs))} {self._inside[at]} {json.dumps(format.end)}"

    def _calls(self, *, together: bool, behind: str = "") -> str:
        """A call, or several that stand ``together``; what goes up to ``behind`` is not said again."""
        format, calling, more = self._format, self._calling, ""
        assert calling is not None
        if together and calling.parallel and not calling.name and not format.single:
            more = f"({self._text(format.between + format.lead)} call){{0,{MOST_FORCED - 1}}}"
        before = format.first + format.lead
        before = before.partition(behind)[2] if behind else before
        return f"{self._text(before)} call {more} {self._text(format.last)}"

    def _calls_in_text(self) -> str:
        """Any text, with calls in it; the mark that they begin with does not come otherwise."""
        format = self._format
        if format.bare:
            token = self._token_of(format.opener)
            # Blanks belong to the sign behind them, since free text may begin with them too.
            self._rules += [f"FREE: {_ANY} & ~{_BARE_CALL}", f"LEAD: {_BLANKS} {json.dumps(format.lead)}"]
            marked = "" if token is None else f"| {_BLANKS} <[{token}]> {self._text(format.lead)} call"
            return f"(FREE | LEAD call {marked})"
        openers = "|".join(map(re.escape, format.openers))
        self._rules.append(f"FREE: {_ANY} & ~/(.|\\n)*({openers})(.|\\n)*/")
        ways = [
            f"{self._until(each, f'opened_{at}', 'FREE')} {self._calls(together=bool(format.first), behind=each)}"
            for at, each in enumerate(format.openers)
        ]
        return f"({' | '.join(ways)})* FREE"

    def _thoughts(self, begun: bool) -> str:
        """Thoughts and the tag behind them; at will, with the one before them, where the prompt has not begun them."""
        inside = self._until(CLOSE, "thought", "ANY")
        return inside if begun else f"({self._text(OPEN)} {inside})?"

    def _until(self, mark: str, name: str, free: str) -> str:
        """Free text, and the mark that ends it."""
        own = self._marks.search(mark)
        token = None if own is None else self._token_of(own.group())
        if own is None or token is None:
            self._rule(f"{name}[lazy]: {_ANY} {json.dumps(mark)}")
            return name
        if before := mark[: own.start()]:  # Part of the text, whose rule goes as far as it can.
            longer = f"{free}_{before.encode().hex().upper()}"
            self._rule(f"{longer}: {free} {json.dumps(before)}")
            free = longer
        return f"{free} <[{token}]> {self._text(mark[own.end() :])}"

    def _rule(self, rule: str) -> None:
        self._rules += [] if rule in self._rules else [rule]

    def _text(self, text: str) -> str:
        """A text, in which marks may be tokens of their own."""
        terms = []
        for each in filter(None, self._marks.split(text)):
            token = self._token_of(each) if self._marks.fullmatch(each) else None
            terms.append(json.dumps(each) if token is None else f"<[{token}]>")
        return f"({' '.join(terms)})" if terms else ""
