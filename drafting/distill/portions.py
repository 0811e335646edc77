"""Which of the text trains a drafter and which measures it, and who says what stands behind its prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from drafting.distill.corpus import Renewal, Source
from drafting.distill.features import token_bytes, within
from drafting.distill.loops import NO_LOOPS, Loops, without_loops
from drafting.distill.passages import Passage
from drafting.distill.text import Document, Sample, Writer
from service.bars import Bars

PASSES = 4
"""How often training reads a token that the model says for it: a fresh one teaches more than a fifth look, and with a
model that is not tiny it costs more."""

MEASURED = 48
"""Held-out prompts that are cut from plain text."""


def parted(texts: Sequence[Sample], seed: int) -> tuple[list[Sample], list[Sample]]:
    """What to train on and a twentieth, at least one, to measure on."""
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    count = max(1, len(order) // 20)
    return [texts[each] for each in sorted(order[count:])], [texts[each] for each in sorted(order[:count])]


def to_train(
    source: Source,
    texts: Sequence[Sample],
    tokens: int,
    room: int,
    renewal: Renewal,
    regenerate: bool | None,
    cache: Path,
    bars: Bars,
) -> tuple[list[Document], Loops]:
    """The documents to train on, none where there is no room for any, and what was cut of them as loops.

    Args:
        tokens: that training reads in all. room: bytes on disk for their features.
        regenerate: whether the model says the answers anew; None: those to plain text, which has none. Passages are
            then cut again and again, for another prompt has another answer; else each is one document, as it is.
    """
    size = source.spec.hidden_size
    conversations = [each for each in texts if isinstance(each, Document)]
    passages = [each for each in texts if isinstance(each, Passage)]
    written = within(conversations, size, room)
    if len(written) < len(conversations):
        bars.say(f"there is room for the first {len(written)} of {len(conversations)} conversations")
    anew: list[Document] = []
    if regenerate is False:
        written = within([*written, *filter(None, map(source.writer.whole, passages))], size, room)
    else:
        left = room // token_bytes(size) - sum(len(each.ids) for each in written)
        anew = _worth(_cuts(source.writer, passages, renewal.seed), min(tokens // PASSES, left), renewal.longest)
    if regenerate:
        written, anew = [], [*written, *anew]
    if not anew:
        return written, NO_LOOPS
    answered, loops = without_loops(source.answered(anew, renewal, cache, bars))
    if loops.cut:
        bars.say(f"{loops.share:.1%} of what the model said were loops, and are cut")
    return within([*written, *answered], size, room), loops


def to_measure(
    source: Source, texts: Sequence[Sample], longest: int, seed: int, cache: Path, bars: Bars
) -> tuple[list[Document], Loops]:
    """Held-out documents with the model's own greedy answers of at most `longest` tokens, and what was cut as loops."""
    passages = [each for each in texts if isinstance(each, Passage)]
    asked = [each for each in texts if isinstance(each, Document)]
    asked += islice(_cuts(source.writer, passages, seed), MEASURED)
    answered = source.answered(asked, Renewal((0.0,), longest, seed), cache, bars, source.exact_model())
    return without_loops(answered)


def _worth(cuts: Iterator[Document], tokens: int, answer: int) -> list[Document]:
    """So many of the first that they have ``tokens``, an answer counted as ``answer``."""
    found: list[Document] = []
    while tokens > 0 and (document := next(cuts, None)) is not None:
        found.append(document)
        tokens -= document.prompt + answer
    return found


def _cuts(writer: Writer, passages: Sequence[Passage], seed: int) -> Iterator[Document]:
    """Prompts of passages, over and over, in an order of chance each time."""
    chance = random.Random(seed)
    some = True
    while some:
        some = False
        for passage in chance.sample(passages, len(passages)):
            document = writer.cut(passage, chance)
            if document is not None:
                some = True
                yield document
