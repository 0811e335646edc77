"""One audit: passages are answered at each split, and what passed is attacked in every way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import torch

from device_agent.answering.tokenizer import Tokenizer
from device_agent.auditing.attack import Attack, Reading
from device_agent.auditing.config import AuditConfig
from device_agent.auditing.figures import AuditFigures, SplitFigures
from device_agent.auditing.head_reading import next_tokens
from device_agent.auditing.inversion import LinearInversion
from device_agent.auditing.known import Pairs, known_pairs, rows_of, table_of
from device_agent.auditing.known_tokens import KnownTokens
from device_agent.auditing.matching import SAME, VocabularyMatching
from device_agent.auditing.nearest import NearestEmbedding
from device_agent.auditing.recording import device_on_tap, recorded
from device_agent.auditing.rhythm import RowSize
from device_agent.auditing.scoring import attacked, by_frequency, drafted, onlooker, output, rows_that_count
from device_agent.auditing.texts import LEAST_TOKENS, Passages, passages
from device_agent.auditing.transcript import Recorded, Transcript, transcripts
from device_agent.chain.model_ends import DeviceParts
from service.bars import Bars
from split_model.checkpoint import Checkpoint
from split_model.hub import identity, resolve
from split_model.names import model_name
from split_model.packed_rows import shortest
from wire.limits import CLOUD_LINK
from wire.padding import Padding

MOST_PAIRS = 20_000
"""Rows that those who have the first layers learn from."""

PACKED_PASSAGES = 8
"""Passages by which an onlooker knows what packing saves."""


def audit(config: AuditConfig, bars: Bars) -> AuditFigures:
    """Audit a model as ``config`` says.

    Raises ``ModelError``, ``BadText``, ``AuditFailed``, and ValueError for splits that the model does not have.
    """
    checkpoint = Checkpoint.open(resolve(config.model))
    spec = checkpoint.spec
    splits = config.splits(spec.num_layers)
    if config.threads:
        torch.set_num_threads(config.threads)
    length = min(config.prompt_tokens, spec.max_positions - config.new_tokens)
    if length < 2 * LEAST_TOKENS:
        most = f"the model has {spec.max_positions} positions"
        raise ValueError(f"--new-tokens {config.new_tokens} leaves prompts no room: {most}")
    tokenizer = Tokenizer.load(checkpoint.path, spec.eos_token_ids)
    texts = passages(config.path, tokenizer, config.texts, length, config.seed)
    return AuditFigures(
        model=model_name(config.model),
        digest=identity(checkpoint),
        layers=spec.num_layers,
        vocabulary=spec.vocab_size,
        hidden_size=spec.hidden_size,
        dtype=config.dtype,
        tail=config.tail,
        padded=config.pad_frames,
        text=config.path.name,
        text_sha256=hashlib.sha256(config.path.read_bytes()).hexdigest(),
        texts=len(texts.attacked),
        known_tokens=_most_known(config, texts),
        candidates=min(config.candidates, spec.vocab_size),
        seed=config.seed,
        splits=tuple(_split(config, split, texts, checkpoint, bars) for split in splits),
    )


def _split(config: AuditConfig, split: int, texts: Passages, checkpoint: Checkpoint, bars: Bars) -> SplitFigures:
    async def record() -> tuple[list[Recorded], DeviceParts]:
        async with device_on_tap(config, split, checkpoint.spec) as (device, tap):
            with bars.bar(f"split {split}", len(texts.attacked), "passages sent") as told:
                return await recorded(device, tap, texts.attacked, config.new_tokens, told), device.parts

    sent, parts = asyncio.run(record())
    padding = Padding.of(CLOUD_LINK, checkpoint.spec.hidden_size, config.dtype) if config.pad_frames else None
    rows = [_transcript(each, padding) for each in sent]
    counted = [rows_that_count(*both, texts.begins) for both in zip(sent, rows, strict=True)]
    known = _known(config, split, texts, parts, bars)
    readings, found = dict[str, list[Reading]](), [by_frequency(known.ids, counted)]
    for attack in _attacks(config, parts, known):
        with bars.bar(f"split {split}", len(rows), f"passages, {attack.name}") as told:
            readings[attack.name] = _read(attack, rows, told)
        found.append(attacked(attack.name, readings[attack.name], counted))
    return SplitFigures(
        split=split,
        attacks=tuple(found),
        output=output(sent, rows, [_answers(parts, each) for each in rows]),
        drafts=drafted(readings[VocabularyMatching.name], rows, SAME[parts.front.dtype]),
        onlooker=onlooker(sent, rows, _row_size(parts, texts)),
    )


def _transcript(passage: Recorded, padding: Padding | None) -> Transcript:
    [found] = transcripts(passage.passed, padding).values()
    return found


def _known(config: AuditConfig, split: int, texts: Passages, parts: DeviceParts, bars: Bars) -> Pairs:
    most = _most_known(config, texts)
    with bars.bar(f"split {split}", most, "rows to learn from") as told:
        return known_pairs(parts.embedding, parts.front, texts.known, texts.begins, most, told)


def _most_known(config: AuditConfig, texts: Passages) -> int:
    """Rows that anybody learns from."""
    return min(max([MOST_PAIRS, *config.known()]), sum(len(each) - texts.begins for each in texts.known))


def _attacks(config: AuditConfig, parts: DeviceParts, known: Pairs) -> Iterator[Attack]:
    """Each is made when its turn comes: its time begins then."""
    table, public = table_of(parts.embedding, parts.spec.vocab_size), known.first(MOST_PAIRS)
    yield NearestEmbedding(table, public)
    inversion = LinearInversion(table, public)
    yield inversion
    until = monotonic() + config.within_s
    yield VocabularyMatching(
        parts.embedding, parts.front, inversion.ranked, config.candidates, lambda: monotonic() > until
    )
    for count in sorted({min(count, len(known.ids)) for count in config.known()}):
        yield KnownTokens(known.first(count))


def _read(attack: Attack, rows: Sequence[Transcript], told: Callable[[int], None]) -> list[Reading]:
    found = []
    for each in rows:
        found.append(attack.read(each.sent))
        told(1)
    return found


def _answers(parts: DeviceParts, transcript: Transcript) -> dict[int, int]:
    answers = transcript.answers
    if not answers:
        return {}
    return dict(zip(answers, next_tokens(parts.head, torch.stack(list(answers.values()))).tolist(), strict=True))


def _row_size(parts: DeviceParts, texts: Passages) -> RowSize:
    """Of a device's rows, as anybody who has the first layers knows it."""
    plain = packed = 0
    for passage in texts.known[:PACKED_PASSAGES]:
        rows = rows_of(parts.embedding, parts.front, passage)
        plain += rows.nbytes
        packed += len(shortest(rows, True)[2])
    return RowSize(parts.spec.hidden_size * parts.front.dtype.itemsize, packed / plain)
