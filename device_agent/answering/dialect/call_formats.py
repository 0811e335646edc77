"""How models write calls of tools, as data, and which way a chat template means. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class CallFormat:
    """One way to write calls: ``first``, the calls with ``between`` between them, ``last``; of each call ``lead``, its
    name, ``middle``, its arguments, ``end``.

    Attributes:
        opener: what calls begin with in a text, wherever it is; it stands at the beginning of ``first`` or ``lead``, if
            an answer cannot begin without it.
        closer: what ends a call that is written between tags; empty: none does.
        bare: an answer that is nothing but calls may begin without the opener.
        separator: between calls; empty: none.
        lists: calls may stand in a list.
        named: a name may stand outside of the JSON, before it.
        single: chat templates know one call a message.
        short_ids: ids have nine letters and digits.
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
    closer: str = ""
    bare: bool = False
    separator: str = ""
    lists: bool = False
    named: bool = False
    single: bool = False
    short_ids: bool = False
    marks: tuple[str, ...] = ()


HERMES: Final = CallFormat(
    name="hermes",
    opener="<tool_call>",
    lead='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    between="\n",
    closer="</tool_call>",
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
    named=True,
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
    named=True,
    short_ids=True,
    marks=MISTRAL.marks,
)
"""Mistral from version 11 on: each call behind a mark of its own."""

USUAL: Final = HERMES
"""Calls that are forced are written so where a model has no way of its own that is known here."""

BY_NAME: Final = {each.name: each for each in (HERMES, LLAMA3, MISTRAL)}
"""What a setting may name."""

_OTHERS: Final = ("<function=", "<arg_key>")
"""What stands between Hermes' tags where it is no JSON: Qwen3-Coder's way, and GLM's."""

_TOOLS: Final = re.compile(r"\btools\b")


def format_in(template: str) -> CallFormat | None:
    """Return how a chat template has calls written; None where it does not say, or in a way that is not known here."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        return None if any(each in template for each in _OTHERS) else HERMES
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and "ipython" in template):
        return LLAMA3
    return None


def tells_tools(template: str) -> bool:
    """Whether a chat template tells the model which tools there are."""
    return _TOOLS.search(template) is not None
