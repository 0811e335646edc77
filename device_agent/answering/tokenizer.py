"""A model's tokenizer and chat template, as its checkpoint defines them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from inspect import signature
from pathlib import Path
from typing import Any, Final

from jinja2.exceptions import TemplateError

from device_agent.answering.detokenizer import Detokenizer
from device_agent.answering.dialect.dialect import AUTO, Dialect
from device_agent.answering.dialect.template_turns import template_tools, template_turns
from split_model.errors import BadCheckpoint
from wire.errors import Code, SessionFailed
from wire.request_messages import ChatTurn, Rendering

SLICE: Final = 16_384
"""Characters that are counted at once where a text may be far too long."""

AS_USUAL: Final = Rendering()

_TEMPLATE_FAILS: Final = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""What a template may end with that is told something unforeseen."""

CUT_TOKENS: Final = 32
"""Tokens that a slice may have more than the same characters have within their text, for what the cuts at its ends
have torn: a cut was found to make 7 more at most, in ten million characters of all kinds and seven tokenizers, where it
tears a special token. Of plain text a slice has thousands, and hardly any text can have fewer than 128."""


class Tokenizer:
    """Text to ids and back. Chat templates run in the sandbox of transformers (immutable, no attribute access).

    Args:
        calls, thoughts: how the model writes them; see ``Dialect.of``.
    """

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], calls: str = AUTO, thoughts: str = AUTO) -> None:
        self._tokenizer = tokenizer
        self.end_ids = end_ids
        template = tokenizer.chat_template or ""
        named = template.values() if isinstance(template, dict) else [template]
        self.dialect = Dialect.of("\n".join(named), calls, thoughts)
        backend = getattr(tokenizer, "backend_tokenizer", None)  # One in Python has none.
        self._byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
        added = tokenizer.added_tokens_decoder.values()
        self._not_told = {"messages", "conversations", *signature(tokenizer.apply_chat_template).parameters}
        """What says how a template is run, and which; it cannot be told to one."""
        self._strips = any(each.lstrip or each.rstrip for each in added)
        """Whether special tokens swallow the spaces beside them, however many."""
        model = getattr(backend, "model", None)
        # There one token may stand for a word or a run of characters, however long, that the vocabulary does not have.
        unbounded = self._strips or backend is None or type(model).__name__ in ("WordPiece", "WordLevel", "Unigram")
        self.longest_piece = 0 if unbounded else max((len(piece) for piece in tokenizer.get_vocab()), default=1)
        """Characters of the longest token; 0: no text is so long that it must have many tokens."""
        word = getattr(model, "max_input_chars_per_word", 0)
        self._cut_tokens = CUT_TOKENS + 2 * word
        """See ``CUT_TOKENS``; a word of more characters than that is one token, and cut in two it may be many."""

    @classmethod
    def load(cls, path: Path, end_ids: Sequence[int], calls: str = AUTO, thoughts: str = AUTO) -> Tokenizer:
        """The tokenizer of a checkpoint folder; ``end_ids`` are those that end an answer. The rest as for the class.

        Raises:
            BadCheckpoint: the folder has no tokenizer that can be read.
        """
        from transformers import AutoTokenizer  # Slow to import, and only a device needs it.

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # tokenizers raises nothing more special.
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise BadCheckpoint(f"{path} has no tokenizer that can be read: {why} ({_needs(path)})") from error
        return cls(tokenizer, frozenset(end_ids), calls, thoughts)

    def definition(self) -> str:
        """The whole tokenizer as tokenizer.json has it, without what would pad or cut texts."""
        backend = copy(self._tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        return str(backend.to_str())

    def text(self, text: str) -> list[int]:
        """The ids of plain text, with the tokens the model expects around it (BOS)."""
        return list(self._tokenizer.encode(text))

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """The ids of a word where it begins a text, and behind a space where they are others; none where it has no
        token. (vLLM leaves the second out where it has another number of tokens, and the word comes all the same.)"""
        word = word.lstrip()
        plain, spaced = tuple(self.rendered(word)), tuple(self.rendered(f" {word}"))
        return [] if not (word and plain) else [plain] if plain == spaced else [plain, spaced]

    def typed(self, texts: Sequence[str]) -> tuple[list[int], list[int] | None]:
        """The ids of a text, or of two that belong together, as ``text`` has them, and to which of them each token
        belongs where the tokenizer says so."""
        found = self._tokenizer(*texts)
        types = found.get("token_type_ids")
        return list(found["input_ids"]), None if types is None else list(types)

    def least(self, text: str, enough: int) -> int:
        """A number of tokens that ``text`` surely has, counted slice by slice until it is over ``enough``."""
        count = 0
        for begin in range(0, len(text), SLICE):
            part = text[begin : begin + SLICE]
            part = part.strip() if self._strips else part
            count += max(0, len(self._tokenizer.encode(part, add_special_tokens=False)) - self._cut_tokens)
            if count > enough:
                break
        return count

    def chat(self, turns: Sequence[ChatTurn], how: Rendering = AS_USUAL) -> list[int]:
        """The ids of a conversation. Raises what ``render`` does."""
        return self.rendered(self.render(turns, how))

    def rendered(self, text: str) -> list[int]:
        """The ids of what ``render`` has made."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def render(self, turns: Sequence[ChatTurn], how: Rendering = AS_USUAL) -> str:
        """The text of a conversation; as usual, ready for the assistant's next turn.

        Raises:
            SessionFailed: the model has no chat template, or it refuses these turns or what it is told beside them.
        """
        if not self._tokenizer.chat_template:
            raise SessionFailed(
                Code.INVALID_REQUEST, "this model has no chat template: use /v1/completions", param="messages"
            )
        if taken := sorted(self._not_told & how.chat_template_kwargs.keys()):
            told = f"'{taken[0]}' cannot be told to the chat template: leave it out"
            raise SessionFailed(Code.INVALID_REQUEST, told, param="chat_template_kwargs")
        try:
            return self._templated(turns, how, parsed=True)
        except _TEMPLATE_FAILS as error:
            if any(turn.tool_calls for turn in turns):
                with suppress(*_TEMPLATE_FAILS):  # Some templates want the arguments of calls as texts.
                    return self._templated(turns, how, parsed=False)
            raise SessionFailed(
                Code.INVALID_REQUEST, f"the chat template refuses these messages: {str(error)[:200]}", param="messages"
            ) from error

    def _templated(self, turns: Sequence[ChatTurn], how: Rendering, *, parsed: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                template_turns(turns, self.dialect, parsed=parsed),
                tools=template_tools(how.tools),
                tokenize=False,
                add_generation_prompt=how.add_generation_prompt,
                continue_final_message=how.continue_final_message,
                **how.chat_template_kwargs,
            )
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decoding(self, marks: Collection[str]) -> Callable[[Sequence[int]], str]:
        """``decode``, with the texts of these special tokens."""
        added = self._tokenizer.added_tokens_decoder.items()
        shown = {id: token.content for id, token in added if token.special and token.content in marks}
        if not shown:
            return self.decode

        def decode(ids: Sequence[int]) -> str:
            texts, begin = [], 0
            for at, id in enumerate(ids):
                if id in shown:
                    texts += [self.decode(ids[begin:at]), shown[id]]
                    begin = at + 1
            return "".join([*texts, self.decode(ids[begin:])])

        return decode

    def whole_text(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` with that of special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def names(self, ids: Sequence[int]) -> list[str]:
        """What the vocabulary calls each token; empty where it has no such token."""
        return [name or "" for name in self._tokenizer.convert_ids_to_tokens(list(ids))]

    def located(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of plain text, as ``text`` has them, and where in it each begins: a space that belongs to the token
        behind it begins that one, and a token without text is where the one before it ends."""
        try:
            found = self._tokenizer(text, return_offsets_mapping=True)
        except NotImplementedError:  # A tokenizer in Python does not know.
            ids = self.text(text)
            return ids, [min(each, len(text)) for each in self.spread(ids)[1]]
        begins, reached = [], 0
        for begin, end in found["offset_mapping"]:
            begins.append(min(begin, reached) if end > begin else reached)
            reached = max(reached, end)
        return list(found["input_ids"]), begins

    def spread(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text of ``ids``, special tokens left out, and where in it each begins. Tokens that share a character
        begin where it does."""
        grown, begins, length, texts = Detokenizer(self.decode), [], 0, []
        for each in ids:
            begins.append(length)
            texts.append(grown.feed(each))
            length += len(texts[-1])
        return "".join([*texts, grown.flush()]), begins

    def piece(self, token: int) -> tuple[str, bytes]:
        """One token's text, and its bytes (several tokens may share one character)."""
        name = self._tokenizer.convert_ids_to_tokens(token) or ""  # Padded vocabularies have ids without a token.
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            raw = bytes([int(name[3:5], 16)])
        elif self._byte_level and all(character in _BYTE_OF for character in name):
            raw = bytes(_BYTE_OF[character] for character in name)
        else:
            raw = (name if self._byte_level else name.replace("\u2581", " ")).encode("utf-8", "replace")
        return raw.decode("utf-8", "replace"), raw


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes with: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()


def _needs(path: Path) -> str:
    """What such a folder lacks."""
    if (path / "tokenizer.json").is_file():
        return "tokenizer.json may be damaged, or of a newer release of transformers"
    if (path / "tokenizer.model").is_file():
        return "tokenizer.model alone needs more packages: pip install sentencepiece protobuf"
    return "it needs tokenizer.json or tokenizer.model"
