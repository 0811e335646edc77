"""The messages that tell a choice as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from device_agent.answering.dialect.pieces import Argued, Begun, Piece, Said, Thought
from device_agent.answering.origins import Origins
from device_agent.chain.chain import ChainSession
from drafting.choosing import Chosen
from wire.messages import AnyMessage
from wire.origins import Origin
from wire.request_messages import CallPiece, Delta, Generate, TokenLogprob


class Deltas:
    """What of one choice was generated and is not told yet.

    Args:
        index: the choice.
        post: sends a message.
    """

    def __init__(self, request: Generate, index: int, post: Callable[[AnyMessage], None]) -> None:
        self._request = request
        self._index = index
        self._post = post
        self._calls = 0
        self._tokens = self._held = 0
        self._logprobs: list[TokenLogprob] = []
        self._ids: list[int] = []
        self._origin = Origins() if request.return_token_origins else None
        self._origins: list[Origin] = []

    def token(self, chosen: Chosen, session: ChainSession, held: int) -> None:
        """A token has come; its text may come later, or be none. held: characters before it that are not told yet."""
        self._held = held if not self._tokens else self._held
        self._tokens += 1
        self._ids.append(chosen.token)
        if self._origin is not None:
            self._origins.append(self._origin.of(chosen, session))

    def logprob(self, logprob: TokenLogprob) -> None:
        """How likely a token was."""
        self._logprobs.append(logprob)

    def send(self, pieces: Iterable[Piece] = ()) -> None:
        """Tell pieces and what has gathered since the last delta; nothing when there is neither."""
        reasoning = text = ""
        for piece in pieces:
            if isinstance(piece, Thought) and not text:  # Which are told in this order.
                reasoning += piece.text
            elif isinstance(piece, Said):
                text += piece.text
            elif isinstance(piece, Thought):
                self._delta(reasoning, text)
                reasoning, text = piece.text, ""
            else:
                self._delta(reasoning, text, self._call(piece))
                reasoning = text = ""
        self._delta(reasoning, text)

    def _call(self, piece: Begun | Argued) -> CallPiece:
        if isinstance(piece, Begun):
            self._calls += 1
            return CallPiece(self._calls - 1, "", piece.id, piece.name)
        return CallPiece(self._calls - 1, piece.text)

    def _delta(self, reasoning: str, text: str, call: CallPiece | None = None) -> None:
        if not (reasoning or text or call or self._tokens or self._logprobs):
            return
        request = self._request
        logprobs = self._logprobs if request.logprobs is not None else None
        ids = self._ids if request.return_token_ids else None
        origins = None if self._origin is None else self._origins
        told = Delta(
            request.request, self._index, text, self._tokens, logprobs, ids, reasoning, call, origins, self._held
        )
        self._post(told)
        self._held = 0
        self._tokens, self._logprobs, self._ids, self._origins = 0, [], [], []
