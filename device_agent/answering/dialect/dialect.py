"""How one model writes calls of tools and thoughts, read from its chat template unless a setting says it. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from device_agent.answering.dialect.call_formats import BY_NAME, USUAL, CallFormat, format_in, tells_tools
from device_agent.answering.dialect.call_parser import CallParser
from device_agent.answering.dialect.calls_in_text import MOST_CALLS, CallsInText
from device_agent.answering.dialect.reader import AnswerReader
from device_agent.answering.dialect.tagged_parser import TaggedParser
from device_agent.answering.dialect.thoughts import TAGS, Thoughts, begun_in, thinks_in
from wire.request_messages import Generate

AUTO: Final = "auto"
NONE: Final = "none"

SHORT_ID: Final = 9
_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Dialect:
    """How a model writes what is not text.

    Attributes:
        format: of calls of tools.
        calls: whether the model writes calls so of its own accord; where it does not, only calls that are forced are
            written so, and what an answer says is never taken for a call.
        tells: whether its chat template tells it of tools and of calls that were made.
        thinks: whether it thinks between tags.
        tools: whether requests may have tools at all.
    """

    format: CallFormat = USUAL
    calls: bool = False
    tells: bool = False
    thinks: bool = False
    tools: bool = True

    @classmethod
    def of(cls, template: str, calls: str = AUTO, thoughts: str = AUTO) -> Dialect:
        """The dialect of a model with this chat template.

        Args:
            calls: the name of a format, ``auto``, or ``none``.
            thoughts: ``think``, ``auto``, or ``none``.
        """
        found = format_in(template)
        format = BY_NAME.get(calls) if calls != AUTO else found
        if format is not None and found is not None and format.name == found.name:
            format = found  # Of Mistral's ways the one that the template has.
        thinks = thinks_in(template) if thoughts == AUTO else thoughts != NONE
        return cls(format or USUAL, format is not None, tells_tools(template), thinks, calls != NONE)

    def reader(self, request: Generate, ending: str) -> AnswerReader | None:
        """What reads one answer to a request; None where all of it is text.

        Args:
            ending: the end of the prompt's text.
        """
        thoughts = Thoughts(begun=begun_in(ending)) if request.thoughts and self.thinks else None
        calls = self._parser(request)
        return None if thoughts is None and calls is None else AnswerReader(thoughts, calls)

    def marks(self, request: Generate) -> frozenset[str]:
        """The tokens without a text of their own whose text is to be read in answers to a request."""
        calls = self.format.marks if self._reads_calls(request) else ()
        return frozenset((*calls, *(TAGS if request.thoughts and self.thinks else ())))

    def _reads_calls(self, request: Generate) -> bool:
        calling = request.calling
        return calling is not None and self.tools and (self.calls or calling.forced)

    def _parser(self, request: Generate) -> CallsInText | None:
        calling = request.calling
        if calling is None or not self._reads_calls(request):
            return None
        tools = {tool.name: tool.parameters for tool in request.rendering.tools if calling.name in ("", tool.name)}
        most = MOST_CALLS if calling.parallel and not calling.name else 1
        if self.format.tags is not None:
            return TaggedParser(self.format, tools, self._new_id, most)
        return CallParser(self.format, tools.keys(), self._new_id, most)

    def _new_id(self) -> str:
        if self.format.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(SHORT_ID))
        return f"call_{secrets.token_hex(12)}"
