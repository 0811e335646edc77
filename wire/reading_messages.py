"""Between gateway and agent: texts or images that are read, and what is said of each. They are answered as a prompt is:
accepted, each input once, done."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from wire.message import Count, Message, Name, Number

MAX_INPUTS: Final = 64
"""Inputs of one message: more go in several, which several agents may have."""

MAX_VECTOR_BYTES: Final = 2**20
"""Of one vector: 262144 numbers, far more than any model has; its message is short beside what a link carries."""

Task = Literal["generate", "embed", "classify"]
"""What a model is asked to do: write on from a prompt, or say of each input a vector, or how likely its labels are."""

InputText = Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]
"""A text, or two that the model tells apart; of an image its data URL."""


class Read(Message, frozen=True, tag=40):
    """Read each of these inputs: ``texts``, or where there are none ``ids``, token ids as they are.

    ``first`` is the number of the first of them in the client's request, for what is said of one that is wrong; None:
    there is only this. ``dimensions`` numbers of each vector are wanted; 0: all. ``tenant`` and ``traceparent`` as in
    ``Generate``.
    """

    request: Number
    request_id: Name
    model: Name
    task: Literal["embed", "classify"]
    texts: Annotated[list[InputText], msgspec.Meta(max_length=MAX_INPUTS)] = []  # noqa: RUF012 (msgspec copies it)
    ids: Annotated[list[list[Count]], msgspec.Meta(max_length=MAX_INPUTS)] = []  # noqa: RUF012
    first: Count | None = None
    dimensions: Count = 0
    tenant: Name = ""
    traceparent: Name = ""


class Vector(Message, frozen=True, tag=41):
    """What was read of input ``index`` of a ``Read``, little-endian float32: its vector, or how likely each label is,
    and then the likeliest one's name. It ends this input."""

    request: Number
    index: Count
    data: Annotated[bytes, msgspec.Meta(min_length=4, max_length=MAX_VECTOR_BYTES)]
    label: Name = ""
