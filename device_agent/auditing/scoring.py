"""From guesses and what was really said to figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from device_agent.auditing.attack import UNTRIED, Reading, standing
from device_agent.auditing.figures import Attacked, Drafted, Onlooker, Share
from device_agent.auditing.rhythm import Length, RowSize, inferred
from device_agent.auditing.transcript import Recorded, Transcript


def rows_that_count(recorded: Recorded, transcript: Transcript, begins: int) -> list[tuple[int, int]]:
    """Which rows, counted as sent, stand for which tokens of the passage: one for every position whose token's row
    stayed, but for the first ``begins`` and for the last token, which nobody sends."""
    stands = standing(transcript.sent, min(transcript.end, len(recorded.ids) - 1))
    return list(zip(stands, recorded.ids, strict=False))[begins:]


def attacked(name: str, readings: Sequence[Reading], counted: Sequence[Sequence[tuple[int, int]]]) -> Attacked:
    """How much of all passages one attack has read; ``counted`` as ``rows_that_count`` has it, of each passage."""
    right = tried = wanted = 0
    for reading, rows in zip(readings, counted, strict=True):
        guesses = reading.guesses.tolist()
        wanted += len(rows)
        tried += sum(guesses[row] != UNTRIED for row, _ in rows)
        right += sum(guesses[row] == token for row, token in rows)
    return Attacked(name, Share(right, tried), tried == wanted)


def by_frequency(known: torch.Tensor, counted: Sequence[Sequence[tuple[int, int]]]) -> Attacked:
    """What is right of guessing the token that is commonest in ``known``, int64 ids, everywhere."""
    commonest = int(known.mode().values)
    tokens = [token for rows in counted for _, token in rows]
    return Attacked("the commonest token", Share(tokens.count(commonest), len(tokens)))


def drafted(readings: Sequence[Reading], transcripts: Sequence[Transcript], same: float) -> Drafted:
    """What the rows of rejected drafts said to an attack that knows how far its guesses' rows are from those sent."""
    sent = rejected = tried = read = 0
    for reading, transcript in zip(readings, transcripts, strict=True):
        stand = set(standing(transcript.sent, transcript.end))
        thrown = [row for row in range(len(reading.guesses)) if row not in stand]
        sent += len(reading.guesses)
        rejected += len(thrown)
        tried += int((reading.guesses[thrown] != UNTRIED).sum())
        if reading.misfit is not None:
            read += int((reading.misfit[thrown] <= same).sum())
    return Drafted(sent, rejected, tried, read)


def output(recorded: Sequence[Recorded], transcripts: Sequence[Transcript], guesses: Sequence[dict[int, int]]) -> Share:
    """Tokens of the answers that were read off what came back: ``guesses`` says, by the number of the row that was
    sent, which token should come next."""
    right = tried = 0
    for passage, transcript, guessed in zip(recorded, transcripts, guesses, strict=True):
        stands = standing(transcript.sent, min(transcript.end, len(passage.ids) - 1))
        for position in range(len(passage.prompt) - 1, len(stands)):
            tried += 1
            right += guessed.get(stands[position]) == passage.ids[position + 1]
    return Share(right, tried)


def onlooker(recorded: Sequence[Recorded], transcripts: Sequence[Transcript], row: RowSize) -> Onlooker:
    """What lengths and times said of all passages."""
    prompts = rounds = of_rounds = 0
    prompt_errors, answer_errors, times = list[float](), list[float](), list[float]()
    for each, transcript in zip(recorded, transcripts, strict=True):
        lengths = [Length(one.up, one.at_s, len(one.data)) for one in each.passed]
        found = inferred(lengths, row, transcript.session)
        prompts += found.prompt == len(each.prompt)
        prompt_errors.append(abs(found.prompt - len(each.prompt)) / len(each.prompt))
        answer_errors.append(abs(found.answer - len(each.answer)) / len(each.answer))
        rounds += sum(a == b for a, b in zip(found.rounds, each.rounds, strict=False))
        of_rounds += max(len(found.rounds), len(each.rounds))
        times += found.round_s
    passed = [one for each in recorded for one in each.passed]
    return Onlooker(
        prompts=Share(prompts, len(recorded)),
        prompt_error=statistics.mean(prompt_errors),
        rounds=Share(rounds, of_rounds),
        answer_error=statistics.mean(answer_errors),
        prompt_bytes=sum(each.prompt_bytes or 0 for each in transcripts),
        up_bytes=sum(len(one.data) for one in passed if one.up),
        down_bytes=sum(len(one.data) for one in passed if not one.up),
        round_ms=1000 * statistics.median(times) if times else 0.0,
    )
