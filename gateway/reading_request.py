"""What a client wants to have read, and whether it is of a size that can be answered at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, Union

from gateway.errors import RequestError
from gateway.prompt_sizes import TOKEN_BYTES, TextSize, bytes_of
from wire.reading_messages import MAX_INPUTS, Read, Vector
from wire.request_messages import ServedModel

ReadEndpoint = Literal["embeddings", "classify"]
Input = Union[tuple[str, ...], tuple[int, ...]]
"""A text, or two that belong together; or token ids."""

PART_TEXT_BYTES: Final = 2**18
"""Of the inputs of one part, but for one that is longer: so that several agents share a long list, and none has a claim
on all of its link."""

MAX_NUMBERS: Final = 2**23
"""Of all vectors of an answer, which is kept until it is complete."""


@dataclass(frozen=True)
class ReadAsk:
    """Inputs to be read, all by one model; the members of ``AnyAsk`` are as there.

    Attributes:
        inputs: at least one, all texts or all ids.
        dimensions: numbers wanted of each vector; 0: all there are.
        as_base64: how the numbers are written.
    """

    endpoint: ReadEndpoint
    model: str | None
    inputs: tuple[Input, ...]
    tenant: str = ""
    dimensions: int = 0
    as_base64: bool = False

    draft = ""
    scored_by = ""
    stream = False
    at_once = 1
    priority = 0
    ends = Vector

    @property
    def task(self) -> Literal["embed", "classify"]:
        return "embed" if self.endpoint == "embeddings" else "classify"

    @property
    def parts(self) -> int:
        return len(self._cuts) - 1

    @property
    def choices(self) -> int:
        return len(self.inputs)

    def choices_of(self, part: int) -> range:
        return range(self._cuts[part], self._cuts[part + 1])

    def most_bytes(self, part: int) -> int:
        return sum(_bytes_of(self.inputs[at]) for at in self.choices_of(part))

    def message(self, part: int, number: int, request_id: str, model: str, at_once: int) -> Read:
        inputs = [self.inputs[at] for at in self.choices_of(part)]
        return Read(
            request=number,
            request_id=request_id,
            model=model,
            task=self.task,
            texts=[list(each) for each in inputs if isinstance(each[0], str)],
            ids=[list(each) for each in inputs if isinstance(each[0], int)],
            first=self._cuts[part] if self.choices > 1 else None,
            dimensions=self.dimensions,
            tenant=self.tenant,
        )

    def refused_by(self, model: ServedModel, max_total_tokens: int) -> RequestError | None:
        for at, each in enumerate(self.inputs):
            param = "input" if self.choices == 1 else f"input[{at}]"
            if (message := _size(each).too_long(param, model.max_positions, model)) is not None:
                return RequestError(400, message, code="context_length_exceeded", param=param)
        tokens = sum(min(_size(each).least_tokens, model.max_positions) for each in self.inputs)
        numbers = self.choices * model.numbers
        if tokens > max_total_tokens or numbers > MAX_NUMBERS:
            what = f"{tokens} tokens or more, and one request may have {max_total_tokens}"
            if numbers > MAX_NUMBERS:
                what = f"{self.choices} vectors of {model.numbers} numbers, and one answer has {MAX_NUMBERS} at most"
            return RequestError(
                400, f"these inputs are {what}: send fewer at once", code="invalid_value", param="input"
            )
        return None

    @cached_property
    def _cuts(self) -> list[int]:
        """Where parts begin, and the end."""
        cuts, held = [0], 0
        for at, each in enumerate(self.inputs):
            size = _bytes_of(each)
            if at > cuts[-1] and (at - cuts[-1] == MAX_INPUTS or held + size > PART_TEXT_BYTES):
                cuts.append(at)
                held = 0
            held += size
        return [*cuts, len(self.inputs)]


def _size(given: Input) -> TextSize:
    if isinstance(given[0], int):
        return TextSize(tokens=len(given))
    return TextSize(sum(len(text) for text in given if isinstance(text, str)))


def _bytes_of(given: Input) -> int:
    return sum(bytes_of(each) if isinstance(each, str) else TOKEN_BYTES for each in given)
