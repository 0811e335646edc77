"""Attacks on rows of tiny models with random weights: they read what they must, and nothing they have no means to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import built

from device_agent.auditing.attack import UNTRIED, Attack, Sent, standing
from device_agent.auditing.inversion import LinearInversion
from device_agent.auditing.known import Pairs, known_pairs, rows_of, table_of
from device_agent.auditing.known_tokens import KnownTokens
from device_agent.auditing.matching import SAME, VocabularyMatching
from device_agent.auditing.nearest import NearestEmbedding
from device_agent.chain.model_ends import DeviceParts
from split_model.checkpoint import Checkpoint

VOCABULARY = 97
TEXT = 40


def drawn(count: int, seed: int) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()
    return found


class Victim:
    """What a device with so many layers sends, and what is known of others like it."""

    def __init__(self, path: Path, split: int, dtype: torch.dtype = torch.float32) -> None:
        self.parts = DeviceParts.load(Checkpoint.open(path), split, 0, dtype)
        self.table = table_of(self.parts.embedding, VOCABULARY)
        passages = [drawn(TEXT, seed) for seed in range(100, 140)]
        self.known = known_pairs(self.parts.embedding, self.parts.front, passages, 0, 10_000)
        self.ids = drawn(TEXT, 7)
        self.sent = [Sent(0, self.rows(self.ids[:25])), Sent(25, self.rows(self.ids)[25:])]

    def rows(self, ids: list[int]) -> torch.Tensor:
        """The rows of a text."""
        return rows_of(self.parts.embedding, self.parts.front, ids)

    def matching(self, most: int = VOCABULARY) -> VocabularyMatching:
        """By who has this device's layers."""
        ranked = LinearInversion(self.table, self.known).ranked
        return VocabularyMatching(self.parts.embedding, self.parts.front, ranked, most)


def share(guesses: torch.Tensor, ids: list[int]) -> float:
    """What is right of guesses."""
    return float((guesses == torch.tensor(ids)).float().mean())


def test_without_layers_every_attack_reads_everything(tiny: Path) -> None:
    """The rows are the embedding's own."""
    victim = Victim(tiny, 0)
    attacks: list[Attack] = [
        NearestEmbedding(victim.table, victim.known),
        LinearInversion(victim.table, victim.known),
        victim.matching(),
        KnownTokens(victim.known),
    ]
    for attack in attacks:
        assert attack.read(victim.sent).guesses.tolist() == victim.ids, attack.name


@pytest.mark.parametrize("split", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matching_reads_everything_behind_any_layer(tiny: Path, split: int, dtype: torch.dtype) -> None:
    """Whoever has the first layers reads every token, and knows that he does: its row is the one that was sent."""
    reading = (victim := Victim(tiny, split, dtype)).matching().read(victim.sent)
    assert reading.guesses.tolist() == victim.ids
    assert reading.misfit is not None and float(reading.misfit.max()) <= SAME[dtype]


@pytest.mark.parametrize("name", ["gpt2", "opt-post-norm", "mistral-window", "qwen3"])
def test_matching_reads_every_family(name: str, tiny_folder: Path) -> None:
    """Learned positions, norms in other places, embeddings of another width, windows."""
    victim = Victim(built(name, tiny_folder), 2)
    assert victim.matching().read(victim.sent).guesses.tolist() == victim.ids


def test_with_other_weights_matching_reads_nothing(tiny: Path, tiny_folder: Path) -> None:
    """The first layers of another model of the same size are of no use, and no row fits."""
    victim, other = Victim(tiny, 2), Victim(built("llama-no-gqa", tiny_folder), 2)
    reading = other.matching().read(victim.sent)
    assert share(reading.guesses, victim.ids) < 0.2
    assert reading.misfit is not None and float(reading.misfit.median()) > 10 * SAME[torch.float32]


def test_matching_reads_rejected_drafts_too(tiny: Path) -> None:
    """Rows that were taken back say their tokens as all others do, and what follows is read behind those that stay."""
    victim = Victim(tiny, 2)
    draft = [*victim.ids[:25], *drawn(4, 11)]
    sent = [Sent(0, victim.rows(victim.ids[:25])), Sent(25, victim.rows(draft)[25:]), victim.sent[1]]
    reading = victim.matching().read(sent)
    assert reading.guesses.tolist() == [*draft, *victim.ids[25:]]
    assert standing(sent, TEXT) == [*range(25), *range(29, 29 + TEXT - 25)]


def test_matching_tries_no_more_than_it_may(tiny: Path) -> None:
    """With one candidate it is as good as what ranks them; once the time is over it looks at nothing more."""
    victim = Victim(tiny, 4)
    inversion = LinearInversion(victim.table, victim.known)
    alone = victim.matching(most=1).read(victim.sent).guesses
    assert torch.equal(alone, inversion.read(victim.sent).guesses)
    calls = iter([False] * 10 + [True])
    late = VocabularyMatching(
        victim.parts.embedding, victim.parts.front, inversion.ranked, VOCABULARY, lambda: next(calls)
    )
    assert late.read(victim.sent).guesses.tolist() == victim.ids[:10] + [UNTRIED] * (TEXT - 10)


def test_trained_inversion_reads_more_than_chance(tiny: Path) -> None:
    """Behind a layer of random weights, where what surrounds a token is larger than itself: chance is 1 in 97."""
    victim = Victim(tiny, 1)
    assert share(LinearInversion(victim.table, victim.known).read(victim.sent).guesses, victim.ids) > 0.2


def test_without_weights_only_known_tokens_are_guessed(tiny: Path) -> None:
    """More pairs are worth more, and a token of which no pair is known is never said."""
    victim = Victim(tiny, 1)
    few, many = (KnownTokens(victim.known.first(count)) for count in (50, len(victim.known.ids)))
    assert few.name == "black box, 50 pairs"
    known = set(victim.known.ids[:50].tolist())
    found = few.read(victim.sent).guesses.tolist()
    assert set(found) <= known
    assert share(many.read(victim.sent).guesses, victim.ids) > share(torch.tensor(found), victim.ids)


def test_attacks_are_repeatable(tiny: Path) -> None:
    """Made and asked twice they say the same."""
    victim = Victim(tiny, 3)
    made: list[Callable[[], Attack]] = [
        lambda: LinearInversion(victim.table, victim.known),
        lambda: KnownTokens(victim.known),
        victim.matching,
    ]
    for make in made:
        assert torch.equal(make().read(victim.sent).guesses, make().read(victim.sent).guesses)


def test_pairs_leave_out_what_begins_every_text(tiny: Path) -> None:
    """And stop at the number that is wanted; fewer than two teach nothing."""
    parts = DeviceParts.load(Checkpoint.open(tiny), 1, 0, torch.float32)
    told: list[int] = []
    found = known_pairs(parts.embedding, parts.front, [[1, 5, 6, 7], [1, 8, 9]], 1, 4, told.append)
    assert found.ids.tolist() == [5, 6, 7, 8] and found.rows.shape == (4, 32) and told == [3, 2]
    with pytest.raises(ValueError, match="too little text"):
        known_pairs(parts.embedding, parts.front, [[1, 5]], 1, 4)


def test_pairs_are_parted_for_choosing() -> None:
    """A fifth is kept back, one at least."""
    pairs = Pairs(torch.zeros(10, 2), torch.arange(10))
    learned, kept_back = pairs.parted()
    assert kept_back.ids.tolist() == [4, 9] and len(learned.ids) == 8
    assert [len(each.ids) for each in pairs.first(2).parted()] == [1, 1]


def test_rows_that_leave_a_gap_are_refused() -> None:
    """Every position has a row before the next has one."""
    with pytest.raises(ValueError, match="rows at 3 follow 2"):
        standing([Sent(0, torch.zeros(2, 4)), Sent(3, torch.zeros(1, 4))], 4)
