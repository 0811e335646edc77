"""What an audit found, as numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """``right`` of ``tried`` tokens."""

    right: int
    tried: int

    @property
    def value(self) -> float | None:
        """None where none was tried."""
        return self.right / self.tried if self.tried else None

    def __str__(self) -> str:
        value = self.value
        return "–" if value is None else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Attacked:
    """One attack on all passages at one split. ``complete``: whether the time was enough for all rows."""

    name: str
    tokens: Share
    complete: bool = True


@dataclass(frozen=True)
class Drafted:
    """What drafts showed.

    Attributes:
        sent, rejected: rows. tried: of the rejected, those that there was time for.
        read: of those, the tokens that were read for certain: their row is the very one that was sent.
    """

    sent: int
    rejected: int
    tried: int
    read: int


@dataclass(frozen=True)
class Onlooker:
    """What lengths and times said.

    Attributes:
        prompts: whose length was found exactly.
        prompt_error: mean distance of the others and these from the truth, as a share of it.
        rounds: whose number of tokens was found exactly.
        answer_error: mean distance of the answers' lengths from the truth, as a share of it.
        prompt_bytes: of all messages up before the first row came back.
        up_bytes, down_bytes: of all messages.
        round_ms: median time from one round to the next.
    """

    prompts: Share
    prompt_error: float
    rounds: Share
    answer_error: float
    prompt_bytes: int
    up_bytes: int
    down_bytes: int
    round_ms: float


@dataclass(frozen=True)
class SplitFigures:
    """One split.

    Attributes:
        attacks: on the rows that the device sent.
        output: tokens of answers, read off the rows that the cloud returned.
    """

    split: int
    attacks: tuple[Attacked, ...]
    output: Share
    drafts: Drafted
    onlooker: Onlooker


@dataclass(frozen=True)
class AuditFigures:
    """All of it.

    Attributes:
        digest: of the model.
        text: the file's name; ``text_sha256`` says which it was.
        known_tokens: that attackers learned from at most, none of which were attacked.
        padded: whether frames were.
        candidates: that vocabulary matching tried at most.
    """

    model: str
    digest: str
    layers: int
    vocabulary: int
    hidden_size: int
    dtype: str
    tail: int
    padded: bool
    text: str
    text_sha256: str
    texts: int
    known_tokens: int
    candidates: int
    seed: int
    splits: tuple[SplitFigures, ...]
