"""What drafting must never change: the distribution of the text, or under ``keyed`` the text itself.

Target and drafter are tables of random logits by the last two tokens. Texts are generated in rounds, as long as it
takes until two tokens are out, and counted against the exact distribution. Planted mistakes must be found by the same
test.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from drafted_nodes import judged
from samples import sample

from drafting import proposing, verification
from drafting.choosing import Chooser
from drafting.drafter import Guess
from drafting.proposing import Candidate, Proposer
from drafting.verification import Rule
from split_model.sampling import SamplingParams, probabilities
from split_model.tree import Tree

VOCAB, MOST = 8, 3
PROMPT, FIRST = (3, 1), 2  # FIRST is chosen already when drafting begins
PLAIN = SamplingParams(temperature=1.0)
WARPED = SamplingParams(temperature=0.8, top_k=6, top_p=0.9)

Spoil = Callable[[Candidate, torch.Tensor, int], "Candidate | None"]
"""Makes a mistake of a sound candidate, given q and a number of its own; None drops it and ends the draft."""


class Tables:
    """Logits of the next token by the last two, of a target and of a drafter that resembles it."""

    def __init__(self, seed: int, unlike: float = 0.8) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.target = 1.5 * torch.randn(VOCAB, VOCAB, VOCAB, generator=generator)
        self.drafter = self.target + unlike * torch.randn(VOCAB, VOCAB, VOCAB, generator=generator)

    def logits(self, text: Sequence[int]) -> torch.Tensor:
        return self.target[text[-2], text[-1]]

    def guess(self, text: Sequence[int], ranked: bool) -> Guess:
        logits = self.drafter[text[-2], text[-1]]
        if not ranked:
            return Guess("table", logits)
        return Guess("table", ranked=((int(logits.argmax()), float(logits.softmax(0).max())),))


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distribution is computed once, as there are but few: the tests take a tenth of the time."""
    known: dict[tuple[bytes, int], torch.Tensor] = {}

    def once(
        logits: torch.Tensor, params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]
    ) -> torch.Tensor:
        key = (logits.numpy().tobytes(), id(params))
        if key not in known:
            known[key] = probabilities(logits, params, prompt, generated)
        return known[key]

    monkeypatch.setattr(verification, "probabilities", once)
    monkeypatch.setattr(proposing, "probabilities", once)


def text_of(
    tables: Tables, params: SamplingParams, rule: Rule, ranked: bool, seed: int, length: int, spoil: Spoil | None = None
) -> list[int]:
    """``length`` tokens after FIRST, drafting while the weight says so."""
    proposer = Proposer(params, PROMPT, seed, rule)
    generated = [FIRST]
    while len(generated) <= length:
        draft: list[Candidate] = []
        rows = [tables.logits([*PROMPT, *generated])]
        while len(draft) < MOST and (not draft or draft[-1].weight >= 0.4):
            drafted = [each.token for each in draft]
            text = [*PROMPT, *generated, *drafted]
            [candidate] = proposer.candidates(tables.guess(text, ranked), generated, drafted, 1)
            if spoil is not None:
                q = probabilities(tables.guess(text, False).logits, params)  # type: ignore[arg-type]
                spoiled = spoil(candidate, q, hash((seed, len(text))))
                if spoiled is None:
                    break
                candidate = spoiled
            draft.append(candidate)
            rows.append(tables.logits([*text, candidate.token]))
        tokens = judged(torch.stack(rows), draft, rule, params, PROMPT, generated, seed)
        assert tokens[:-1] == tuple(each.token for each in draft[: len(tokens) - 1])
        generated += tokens
    return generated[1 : length + 1]


def chance_of(counts: Counter[tuple[int, int]], tables: Tables, params: SamplingParams) -> float:
    """The p-value of the counted pairs under the exact distribution (chi-square, cells under 5 together)."""
    first = probabilities(tables.logits((*PROMPT, FIRST)), params).double()
    exact = {
        (a, b): float(first[a] * probabilities(tables.logits((FIRST, a)), params)[b])
        for a in range(VOCAB)
        for b in range(VOCAB)
    }
    total = sum(counts.values())
    assert not [pair for pair in counts if exact[pair] == 0], "a token came that the warpers rule out"
    cells = [(counts[pair], total * chance) for pair, chance in exact.items() if total * chance >= 5]
    rest = (total - sum(found for found, _ in cells), total - sum(expected for _, expected in cells))
    cells += [rest] if rest[1] >= 5 else []
    statistic = sum((found - expected) ** 2 / expected for found, expected in cells)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), torch.tensor(statistic / 2)))


def measured(
    samples: int, tables: Tables, params: SamplingParams, rule: Rule, ranked: bool = False, spoil: Spoil | None = None
) -> float:
    counts = Counter(
        (first, second)
        for first, second in (text_of(tables, params, rule, ranked, seed, 2, spoil) for seed in range(samples))
    )
    return chance_of(counts, tables, params)


CASES = [
    pytest.param(rule, ranked, params, id=f"{rule}-{'ranked' if ranked else 'drawn'}-{name}")
    for rule in ("rejection", "block")
    for ranked in (False, True)
    for params, name in ((PLAIN, "plain"), (WARPED, "warped"))
]


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(("rule", "ranked", "params"), CASES)
def test_the_distribution_is_the_targets(rule: Rule, ranked: bool, params: SamplingParams) -> None:
    """The joint distribution of the first two tokens, whatever the rule and the drafter."""
    assert measured(800, Tables(7), params, rule, ranked) > 0.001


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(("rule", "ranked", "params"), CASES)
def test_the_distribution_is_the_targets_on_closer_look(rule: Rule, ranked: bool, params: SamplingParams) -> None:
    """The same with 440 000 texts and other tables."""
    assert measured(55_000, Tables(11), params, rule, ranked) > 0.001


def drop_what_was_drawn(candidate: Candidate, q: torch.Tensor, number: int) -> Candidate | None:
    """Ask the drawn token's own probability, not the highest one, whether it is sent."""
    return candidate if float(q[candidate.token]) >= 0.6 else None


def take_the_likeliest(candidate: Candidate, q: torch.Tensor, number: int) -> Candidate:
    """Draft the likeliest token, and have it judged as if it had been drawn."""
    return dataclasses.replace(candidate, token=int(q.argmax()))


def draw_from_others(candidate: Candidate, q: torch.Tensor, number: int) -> Candidate:
    """Draw from q as it is before temperature, but have it judged by q after all warpers."""
    hot = (q + 1e-9).pow(0.4)
    token = torch.multinomial(hot / hot.sum(), 1, generator=torch.Generator().manual_seed(number & 0xFFFFFFFF))
    return dataclasses.replace(candidate, token=int(token))


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("rule", sample(["rejection", "block"], "block"))
@pytest.mark.parametrize("spoil", [drop_what_was_drawn, take_the_likeliest, draw_from_others])
def test_known_mistakes_are_found(rule: Rule, spoil: Spoil) -> None:
    """The statistics above do see what would be wrong with a careless draft."""
    assert measured(800, Tables(7), PLAIN, rule, spoil=spoil) < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
def test_noise_of_an_earlier_round_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were noise only keyed on the position, a block's verdict would have used what the next round draws with."""
    monkeypatch.setattr(verification, "stream", lambda purpose, start: (0, purpose))
    monkeypatch.setattr(proposing, "stream", lambda purpose, start: (0, purpose))
    assert measured(50_000, Tables(7, unlike=2.0), PLAIN, "block") < 1e-5


KEYED_PARAMS = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.5, logit_bias={3: 0.7}),
    PLAIN,
    WARPED,
    SamplingParams(temperature=1.3, min_p=0.1, frequency_penalty=0.6, repetition_penalty=1.2),
]


def undrafted(tables: Tables, params: SamplingParams, seed: int, length: int) -> list[int]:
    chooser = Chooser(params, PROMPT, seed)
    chooser.generated.append(FIRST)
    while len(chooser.generated) <= length:
        chooser.judge(tables.logits([*PROMPT, *chooser.generated])[None], Tree(0), (), (), "keyed")
    return chooser.generated[1:]


def same_texts(count: int) -> None:
    chosen = random.Random(5)
    for seed in range(count):
        if seed % 50 == 0:
            tables = Tables(seed, unlike=chosen.choice([0.0, 0.3, 1.0, 5.0]))
        params, ranked = chosen.choice(KEYED_PARAMS), chosen.random() < 0.3
        assert text_of(tables, params, "keyed", ranked, seed, 4) == undrafted(tables, params, seed, 4)


def test_keyed_texts_are_those_without_a_draft() -> None:
    """Token for token, with good drafters and bad, with penalties, greedy and sampled."""
    same_texts(400)


@pytest.mark.slow
def test_many_keyed_texts_are_those_without_a_draft() -> None:
    """The same for 10 000 texts."""
    same_texts(10_000)


def test_a_keyed_draft_of_the_target_itself_is_all_accepted() -> None:
    """Penalties included: draft and verdict see the same text at each position."""
    tables = Tables(3, unlike=0.0)
    for seed, params in enumerate(KEYED_PARAMS * 5):
        proposer = Proposer(params, PROMPT, seed, "keyed")
        generated, draft = [FIRST], list[Candidate]()
        rows = [tables.logits([*PROMPT, *generated])]
        for _ in range(5):
            drafted = [each.token for each in draft]
            draft += proposer.candidates(Guess("table", rows[-1]), generated, drafted, 1)
            rows.append(tables.logits([*PROMPT, *generated, *drafted, draft[-1].token]))
        assert len(judged(torch.stack(rows), draft, "keyed", params, PROMPT, generated, seed)) == 6
