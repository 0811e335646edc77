"""How models write calls of tools, as data, and which way a chat template means. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

GAP: Final = r"\s{0,16}"
NAME: Final = r"([A-Za-z0-9_-]{1,64})"
"""In expressions for what a call begins with: what may stand between its signs, and a tool's name as a group."""


@dataclass(frozen=True)
class Tags:
    """How arguments are written one by one: texts as they are, all else as JSON, each between tags.

    Attributes:
        key: before an argument's name. value: between it and its value. close: behind the value.
        ends: what the arguments of a call end with.
        padded: a line end stands before the value, and one behind it, which are no part of it.
        after: behind an argument.
        json: in place of ``value`` where the value is JSON; empty: the same. What may be a text or something else is
            forced as JSON then.
    """

    key: str
    value: str
    close: str
    ends: tuple[str, ...]
    padded: bool = False
    after: str = "\n"
    json: str = ""


@dataclass(frozen=True)
class CallFormat:
    """One way to write calls: ``first``, the calls with ``between`` between them, ``last``; of each call ``lead``, its
    name, ``middle``, its arguments, ``end``.

    Attributes:
        opener: what calls begin with in a text, wherever it is; it stands at the beginning of ``first`` or ``lead``, if
            an answer cannot begin without it.
        also: what stands behind the opener, and begins a call too where a model leaves the opener out; empty: nothing.
        closers: what may stand behind a call, in this order.
        bare: an answer that is nothing but calls may begin without the opener.
        separator: between calls; empty: none.
        lists: calls may stand in a list.
        head: a call from its beginning on, its name as the first group, up to its arguments; None: the name stands in
            the JSON.
        tags: how arguments are written; None: as a JSON object.
        single: chat templates know one call a message.
        short_ids: ids have nine letters and digits.
        numbered: what stands between a name and the number that the call has in its conversation, counted from 0; both
            are its id, with what stands before them and is no mark. Empty: no id is written.
        marks: texts that may be tokens of their own.
    """

    name: str
    opener: str
    lead: str
    middle: str
    end: str
    first: str = ""
    between: str = ""
    last: str = ""
    also: str = ""
    closers: tuple[str, ...] = ()
    bare: bool = False
    separator: str = ""
    lists: bool = False
    head: re.Pattern[str] | None = None
    tags: Tags | None = None
    single: bool = False
    short_ids: bool = False
    numbered: str = ""
    marks: tuple[str, ...] = ()

    @property
    def openers(self) -> tuple[str, ...]:
        """All that a call may begin with in a text."""
        return (self.opener, self.also) if self.also else (self.opener,)

    def id_of(self, name: str, number: int) -> str:
        """The id of a call where calls are ``numbered``."""
        return f"{self.lead.removeprefix(self.also)}{name}{self.numbered}{number}"


HERMES: Final = CallFormat(
    name="hermes",
    opener="<tool_call>",
    lead='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    between="\n",
    closers=("</tool_call>",),
    marks=("<tool_call>", "</tool_call>"),
)
"""Nous' Hermes, Qwen 2.5 and 3."""

LLAMA3: Final = CallFormat(
    name="llama3_json",
    opener="<|python_tag|>",
    lead='{"name": "',
    middle='", "parameters": ',
    end="}",
    bare=True,
    separator=";",
    between="; ",
    single=True,
    marks=("<|python_tag|>",),
)
"""Llama 3.1 to 3.3."""

_MISTRAL_HEAD: Final = re.compile(rf"{NAME}{GAP}(?:\[CALL_ID\]{GAP}\w{{1,64}}{GAP})?(?:\[ARGS\])?{GAP}(?=\{{)")

MISTRAL: Final = CallFormat(
    name="mistral",
    opener="[TOOL_CALLS]",
    first="[TOOL_CALLS][",
    lead='{"name": "',
    middle='", "arguments": ',
    end="}",
    between=", ",
    last="]",
    separator=",",
    lists=True,
    head=_MISTRAL_HEAD,
    short_ids=True,
    marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
"""Mistral, as its tokenizers write calls up to version 7: a list."""

MISTRAL_NAMED: Final = CallFormat(
    name="mistral",
    opener="[TOOL_CALLS]",
    lead="[TOOL_CALLS]",
    middle="[ARGS]",
    end="",
    lists=True,
    separator=",",
    head=_MISTRAL_HEAD,
    short_ids=True,
    marks=MISTRAL.marks,
)
"""Mistral from version 11 on: each call behind a mark of its own."""


def _token(words: str) -> str:
    """One of DeepSeek's own tokens: between wide bars, with low blocks for blanks."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


_CALLS, _ALL_CALLED = _token("tool calls begin"), _token("tool calls end")
_CALL, _SEP, _CALLED = _token("tool call begin"), _token("tool sep"), _token("tool call end")

DEEPSEEK_V3: Final = CallFormat(
    name="deepseek_v3",
    opener=_CALLS,
    also=_CALL,
    first=_CALLS,
    lead=f"{_CALL}function{_SEP}",
    middle="\n```json\n",
    end=f"\n```{_CALLED}",
    between="\n",
    last=_ALL_CALLED,
    closers=("```", _CALLED, _ALL_CALLED),
    head=re.compile(
        rf"(?:{_CALL}{GAP})?(?:function{GAP}{_SEP}{GAP})?{NAME}{GAP}(?:{_SEP}{GAP})?(?:```(?:json)?)?{GAP}(?=\{{)"
    ),
    marks=(_CALLS, _CALL, _SEP, _CALLED, _ALL_CALLED),
)
"""DeepSeek V3 and R1: a kind, which is always the same, a name, and the arguments in a fence."""

DEEPSEEK_V31: Final = CallFormat(
    name="deepseek_v31",
    opener=_CALLS,
    also=_CALL,
    first=_CALLS,
    lead=_CALL,
    middle=_SEP,
    end=_CALLED,
    last=_ALL_CALLED,
    closers=DEEPSEEK_V3.closers,
    head=DEEPSEEK_V3.head,
    marks=DEEPSEEK_V3.marks,
)
"""DeepSeek V3.1."""

_DSML: Final = "\uff5cDSML\uff5c"

DEEPSEEK_V32: Final = CallFormat(
    name="deepseek_v32",
    opener=f"<{_DSML}function_calls>",
    also=f"<{_DSML}invoke name=",
    first=f"<{_DSML}function_calls>\n",
    lead=f'<{_DSML}invoke name="',
    middle='">\n',
    end=f"</{_DSML}invoke>\n",
    last=f"</{_DSML}function_calls>",
    closers=(f"</{_DSML}function_calls>",),
    head=re.compile(rf'(?:<{_DSML}function_calls>{GAP})?<{_DSML}invoke name={GAP}"?{NAME}"?{GAP}>'),
    tags=Tags(
        f'<{_DSML}parameter name="',
        '" string="true">',
        f"</{_DSML}parameter>",
        ends=(f"</{_DSML}invoke>", f"</{_DSML}function_calls>"),
        json='" string="false">',
    ),
    marks=(_DSML,),
)
"""DeepSeek V3.2: each argument says whether it is a text."""

QWEN3_CODER: Final = CallFormat(
    name="qwen3_coder",
    opener="<tool_call>",
    also="<function=",
    lead="<tool_call>\n<function=",
    middle=">\n",
    end="</function>\n</tool_call>",
    between="\n",
    closers=("</tool_call>",),
    head=re.compile(rf"(?:<tool_call>{GAP})?<function={GAP}{NAME}{GAP}>"),
    tags=Tags("<parameter=", ">\n", "</parameter>", ends=("</function>", "</tool_call>"), padded=True),
    marks=("<tool_call>", "</tool_call>"),
)
"""Qwen3-Coder."""

GLM45: Final = CallFormat(
    name="glm45",
    opener="<tool_call>",
    lead="<tool_call>",
    middle="\n",
    end="</tool_call>",
    between="\n",
    head=re.compile(rf"<tool_call>{GAP}{NAME}{GAP}(?=<arg_key>|</tool_call>)"),
    tags=Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", ends=("</tool_call>",)),
    marks=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
"""GLM 4.5 and 4.6."""

KIMI_K2: Final = CallFormat(
    name="kimi_k2",
    opener="<|tool_calls_section_begin|>",
    also="<|tool_call_begin|>",
    first="<|tool_calls_section_begin|>",
    lead="<|tool_call_begin|>functions.",
    middle="<|tool_call_argument_begin|>",
    end="<|tool_call_end|>",
    last="<|tool_calls_section_end|>",
    closers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    head=re.compile(
        rf"(?:<\|tool_call_begin\|>{GAP})?(?:functions\.)?{NAME}:[0-9]{{1,6}}{GAP}(?:<\|tool_call_argument_begin\|>)?{GAP}(?=\{{)"
    ),
    numbered=":",
    marks=(
        *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    ),
)
"""Kimi K2."""

MINIMAX_M2: Final = CallFormat(
    name="minimax_m2",
    opener="<minimax:tool_call>",
    also="<invoke name=",
    first="<minimax:tool_call>\n",
    lead='<invoke name="',
    middle='">\n',
    end="</invoke>\n",
    last="</minimax:tool_call>",
    closers=("</minimax:tool_call>",),
    head=re.compile(rf'(?:<minimax:tool_call>{GAP})?<invoke name={GAP}"?{NAME}"?{GAP}>'),
    tags=Tags('<parameter name="', '">', "</parameter>", ends=("</invoke>", "</minimax:tool_call>")),
    marks=("<minimax:tool_call>", "</minimax:tool_call>"),
)
"""MiniMax M2."""

USUAL: Final = HERMES
"""Calls that are forced are written so where a model has no way of its own that is known here."""

_DEEPSEEKS: Final = (DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32)

BY_NAME: Final = {
    each.name: each for each in (HERMES, LLAMA3, MISTRAL, *_DEEPSEEKS, QWEN3_CODER, GLM45, KIMI_K2, MINIMAX_M2)
}
"""What a setting may name."""

_TOOLS: Final = re.compile(r"\btools\b")


def format_in(template: str) -> CallFormat | None:
    """Return how a chat template has calls written; None where it does not say, or in a way that is not known here."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if _DSML in template:
        return DEEPSEEK_V32
    if _CALL in template:
        return DEEPSEEK_V3 if "```json" in template else DEEPSEEK_V31
    for each in (KIMI_K2, MINIMAX_M2):
        if each.opener in template:
            return each
    if "<tool_call>" in template:  # Between the same tags each has its own.
        return QWEN3_CODER if "<function=" in template else GLM45 if "<arg_key>" in template else HERMES
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and "ipython" in template):
        return LLAMA3
    return None


def tells_tools(template: str) -> bool:
    """Whether a chat template tells the model which tools there are."""
    return _TOOLS.search(template) is not None
