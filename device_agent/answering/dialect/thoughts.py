"""What a model thinks before it answers, between tags, apart from the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from device_agent.answering.dialect.pieces import Piece, Said, Thought, joined

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
TAGS: Final = (OPEN, CLOSE)


def thinks_in(template: str) -> bool:
    """Whether a chat template is that of a model that thinks between tags."""
    return CLOSE in template


def begun_in(prompt: str) -> bool:
    """Whether a prompt ends where the model is to think."""
    return prompt.rstrip().endswith(OPEN)


def open_in(text: str) -> bool:
    """Whether a text breaks off in a thought."""
    return text.rfind(OPEN) > text.rfind(CLOSE)


def cut_off(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


def held(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may belong to a mark that is not complete, or be blanks before
    it."""
    rest = text[: len(text) - cut_off(text, mark)]
    return len(text) - len(rest.rstrip())


class Thoughts:
    """Splits an answer's text as it comes. Thoughts stand at its beginning or nowhere; blanks around them are left out.

    Args:
        begun: the prompt has opened the tag.
    """

    def __init__(self, *, begun: bool) -> None:
        self._text = ""
        self._out: list[Piece] = []
        self._blank = True
        """Nothing but blanks has come since the tag."""
        self._step: Callable[[bool], bool] = self._inside if begun else self._before

    def feed(self, text: str) -> list[Piece]:
        """More text in; what is known of it now."""
        self._text += text
        return self._taken(final=False)

    def end(self) -> list[Piece]:
        """What was held back, when nothing follows."""
        return self._taken(final=True)

    def _taken(self, final: bool) -> list[Piece]:
        while self._step(final):
            pass
        out, self._out = self._out, []
        return joined(out)

    def _before(self, final: bool) -> bool:
        text = self._text.lstrip()
        if text.startswith(OPEN):
            self._text, self._step = text[len(OPEN) :], self._inside
            return True
        if OPEN.startswith(text) and not final:
            return False
        self._step = self._behind
        self._blank = False
        return True

    def _inside(self, final: bool) -> bool:
        text, at = self._text, self._text.find(CLOSE)
        closes = at >= 0
        if not closes:
            at = len(text.rstrip()) if final else len(text) - held(text, CLOSE)
        thought = text[:at].rstrip() if closes else text[:at]
        thought = thought.lstrip() if self._blank else thought
        if thought:
            self._out.append(Thought(thought))
            self._blank = False
        self._text = text[at:]
        if closes:
            self._text, self._step, self._blank = text[at + len(CLOSE) :], self._behind, True
        return closes

    def _behind(self, final: bool) -> bool:
        text, self._text = self._text.lstrip() if self._blank else self._text, ""
        if text:
            self._out.append(Said(text))
            self._blank = False
        return False
