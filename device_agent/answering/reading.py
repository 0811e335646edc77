"""Answering one request to read: its inputs, a few at a time, each to a vector or to the chances of its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from device_agent.answering.images import Image, Pixels, read_images
from device_agent.answering.inputs import TextLimits, named, read_texts
from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.reader import AnyReader, Text
from device_agent.sharing.compute import FairThreads, served_tenant
from device_agent.sharing.permits import Permits
from device_agent.sharing.served_request import served_request
from split_model.classes import Classes
from split_model.device import fetched
from split_model.tensor_bytes import finite, to_bytes
from split_model.text_vectors import TextVectors
from wire.errors import Code, SessionFailed
from wire.limits import MAX_TEXT
from wire.messages import AnyMessage
from wire.reading_messages import Read, Task, Vector
from wire.request_messages import Accepted, Done

Post = Callable[[AnyMessage], None]
Judge = Callable[[torch.Tensor, list[int]], torch.Tensor]


@dataclass(frozen=True)
class ServedReader:
    """A model that reads, as this device serves it.

    Attributes:
        tokenizer: of one that reads texts. pixels: of one that reads images.
        limits: what it takes of a text.
        vectors, classes: what it says of an input, one or both.
        permits: one for each request that may be read at once. readers: threads that tokenise texts and decode images.
    """

    reader: AnyReader
    tokenizer: Tokenizer | None
    pixels: Pixels | None
    limits: TextLimits
    vectors: TextVectors | None
    classes: Classes | None
    permits: Permits
    readers: FairThreads

    @property
    def tasks(self) -> list[Task]:
        """What it can be asked to do."""
        said: list[tuple[Task, object]] = [("embed", self.vectors), ("classify", self.classes)]
        return [task for task, does in said if does is not None]

    @property
    def numbers(self) -> int:
        """Most numbers that it says of an input."""
        of_vectors = self.vectors.numbers(self.reader.spec) if self.vectors is not None else 0
        return max(of_vectors, len(self.classes.labels) if self.classes is not None else 0)


async def read(model: ServedReader, request: Read, post: Post) -> None:
    """Serve ``request``, from Accepted to Done. Cancelling this frees everything it holds.

    Raises:
        SessionFailed: why there is no (complete) answer.
    """
    served_tenant.set(request.tenant)
    judge, span = _judge(model, request), served_request.get().span
    with span.phases() as phases:
        phases.begin("read prompt")
        inputs, rows = await _inputs(model, request)
        phases.begin("queue")
        async with model.permits.one(request.tenant):
            post(Accepted(request.request, sum(rows)))
            phases.begin("compute", rows=sum(rows))
            await _read(model, request, judge, inputs, rows, post)
    span.note(prompt_tokens=sum(rows), choices=len(rows))
    post(Done(request.request, sum(rows), 0))


async def _inputs(model: ServedReader, request: Read) -> tuple[Sequence[Text] | Sequence[Image], list[int]]:
    """What there is to read, and the rows of each. Raises ``SessionFailed``."""
    limits = replace(model.limits, max_positions=min(model.limits.max_positions, model.reader.max_positions))
    inputs: Sequence[Text] | Sequence[Image]
    if model.pixels is not None:
        inputs = await model.readers.submit(partial(read_images, request, model.pixels), request.tenant)
        rows = [limits.max_positions] * len(inputs)
    else:
        assert model.tokenizer is not None, "what reads no images reads texts"
        reading = partial(read_texts, request, model.tokenizer, limits)
        inputs = await model.readers.submit(reading, request.tenant)
        rows = [len(ids) for ids, _ in inputs]
    if not inputs:
        raise SessionFailed(Code.INVALID_REQUEST, "there is nothing to read", param="input")
    return inputs, rows


async def _read(
    model: ServedReader,
    request: Read,
    judge: Judge,
    inputs: Sequence[Text] | Sequence[Image],
    rows: Sequence[int],
    post: Post,
) -> None:
    """Read all, a few at a time, and say of each what there is to say. Raises ``SessionFailed``."""
    labels = model.classes.labels if model.classes is not None and request.task == "classify" else ()
    for some in portions(rows, model.reader.at_once_rows):
        # An image takes far more memory than its file: it is decoded when its turn has come.
        given = [
            await model.readers.submit(each.pixels, request.tenant) if isinstance(each, Image) else each
            for each in inputs[some.start : some.stop]
        ]
        numbers = await model.reader.read(given, judge)
        if not finite(numbers):
            raise SessionFailed(Code.NOT_FINITE, f"{named(request, some.start)} or one behind it gives no numbers")
        for at, row in zip(some, numbers, strict=True):
            label = labels[int(row.numpy().argmax())][:MAX_TEXT] if labels else ""
            post(Vector(request.request, at, bytes(to_bytes(row)[2]), label))


def portions(rows: Sequence[int], most: int) -> Iterator[range]:
    """Which inputs are read together, by the rows of each: as many in a row as have ``most`` together, one at least."""
    begin = held = 0
    for at, each in enumerate(rows):
        if at > begin and held + each > most:
            yield range(begin, at)
            begin, held = at, 0
        held += each
    yield range(begin, len(rows))


def _judge(model: ServedReader, request: Read) -> Judge:
    """What makes float32 [inputs, numbers] of the rows that were read. Raises ``SessionFailed``, naming the member."""
    vectors, classes, pooling = model.vectors, model.classes, model.reader.pooling
    if request.task == "embed" and vectors is not None:
        _check_dimensions(request.dimensions, vectors, vectors.numbers(model.reader.spec))
        return lambda rows, lengths: fetched(vectors.vectors(rows, lengths, request.dimensions))[0]
    if request.task == "classify" and classes is not None and pooling is not None:

        def chances(rows: torch.Tensor, lengths: list[int]) -> torch.Tensor:
            logits = pooling.logits(rows, pooling.pooled(rows, lengths), lengths)
            assert logits is not None, "what has labels has logits"
            return fetched(classes.chances(logits))[0]

        return chances
    raise SessionFailed(Code.INVALID_REQUEST, "this model does something else", param="model")


def _check_dimensions(wanted: int, vectors: TextVectors, whole: int) -> None:
    if wanted in (0, whole) or wanted in vectors.sizes or (vectors.any_size and wanted < whole):
        return
    may = [*map(str, sorted({*vectors.sizes, whole}))]
    known = f"1 to {whole}" if vectors.any_size else " or ".join(may)
    why = "" if len(may) > 1 or vectors.any_size else ": its checkpoint does not say that they may be cut"
    text = f"this model's vectors have {known} numbers{why}"
    raise SessionFailed(Code.INVALID_REQUEST, text, param="dimensions")
