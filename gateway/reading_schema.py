"""What clients send to have texts or images read, and what they get: OpenAI's embeddings, and classes as vLLM has them.

Unknown members are ignored, as elsewhere. ``input`` stays raw at first, see ``openai_schema``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Union

import msgspec
from msgspec import Meta

from gateway.openai_schema import Label

MAX_READ: Final = 2048
"""Inputs of one request, as at OpenAI."""
MAX_DIMENSIONS: Final = 2**20

Dimensions = Union[Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)], Annotated[float, Meta(ge=1, le=MAX_DIMENSIONS)], None]


class ClassifyBody(msgspec.Struct, kw_only=True):
    """POST /v1/classify."""

    input: msgspec.Raw
    model: Label | None = None
    user: str | None = None


class EmbeddingBody(ClassifyBody, kw_only=True):
    """POST /v1/embeddings."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions = None


class ReadUsage(msgspec.Struct, frozen=True):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct, frozen=True):
    """The vector of one input: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class ClassesItem(msgspec.Struct, frozen=True):
    """How likely each label is of one input, in the order of the checkpoint's, and the likeliest one."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class EmbeddingsHead(msgspec.Struct, frozen=True):
    """What a reply says behind the list of its vectors."""

    model: str
    usage: ReadUsage


class ClassesHead(EmbeddingsHead, frozen=True):
    """What a reply says behind the list of its classes."""

    id: str
    created: int
