"""Drafting with whichever of model and lookup promises more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from drafted_nodes import extend
from tiny_models import build_tiny

from drafting.adapter import AdapterDrafter
from drafting.adapter_layer import adapter_shapes
from drafting.calibration import usual_chance
from drafting.drafter import Drafter, DraftSession, Guess
from drafting.drafter_file import write_drafter
from drafting.hybrid import HybridDrafter, HybridSession
from drafting.lookup import LookupDrafter
from split_model.checkpoint import Checkpoint
from split_model.stack import Head
from split_model.tree import Tree

ROOM = 2000
HIDDEN = 32
PASSAGE = random.Random(1).sample(range(90), 40)
COPYING = [*PASSAGE, *PASSAGE, *PASSAGE[:20]]
"""A text that the lookup is sure about."""


class Watched:
    """A real drafter and what it was asked for."""

    tree_nodes = 0

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.parameters = drafter.parameters
        self.guesses = 0
        self.extended: list[tuple[list[int], list[int]]] = []
        self._drafter = drafter

    def apart(self) -> Watched:
        return self

    def open(self, positions: int, earlier: Sequence[int] = ()) -> DraftSession:
        return WatchedSession(self, self._drafter.open(positions, earlier))


class WatchedSession:
    """One of its sessions."""

    def __init__(self, watched: Watched, session: DraftSession) -> None:
        self._watched = watched
        self._session = session
        self.observe = session.observe
        self.truncate = session.truncate
        self.fork = session.fork
        self.close = session.close

    @property
    def position(self) -> int:
        return self._session.position

    @property
    def nbytes(self) -> int:
        return self._session.nbytes

    def guess(self) -> Guess | None:
        self._watched.guesses += 1
        return self._session.guess()

    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        first = len(tree) - len(shallow)
        self._watched.extended.append((tree.parents[first:], tree.tokens[first:]))
        return self._session.extend(tree, shallow, tokens)


@pytest.fixture(scope="module", params=["adapter", "fused"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AdapterDrafter:
    """A tiny adapter with random weights."""
    folder: Path = tmp_path_factory.mktemp("model")
    checkpoint = Checkpoint.open(build_tiny("llama", folder / "tiny"))
    random_numbers = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(shape, generator=random_numbers) * (1.0 if len(shape) == 1 else HIDDEN**-0.5)
        for name, shape in adapter_shapes(checkpoint.spec, request.param).items()
    }
    path = folder / "drafter.safetensors"
    write_drafter(path, request.param, "0", 1, {}, tensors)
    head = Head.load(checkpoint, checkpoint.spec, torch.float32)
    return AdapterDrafter.load(path, checkpoint.spec, "0", 1, torch.float32, head, request.param)


def rows(tokens: Sequence[int]) -> torch.Tensor:
    """The same row for the same token."""
    found = [torch.randn(HIDDEN, generator=torch.Generator().manual_seed(token)) for token in tokens]
    return torch.stack(found) if found else torch.empty(0, HIDDEN)


def opened(model: Drafter, text: Sequence[int]) -> HybridSession:
    session = HybridDrafter(model, LookupDrafter()).open(ROOM)
    session.observe(text, rows(text), None)
    return session


def top(guess: Guess | None) -> tuple[int, float]:
    """The likeliest token and its weight."""
    assert guess is not None
    if guess.logits is None:
        return guess.ranked[0]
    best = guess.logits.softmax(0).max(0)
    return int(best.indices), float(best.values)


def same(found: Guess | None, expected: Guess | None) -> bool:
    """Whether two guesses are one, up to rounding."""
    if found is None or expected is None or found.logits is None or expected.logits is None:
        return found == expected
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=0)
    return found.source == expected.source


def test_what_it_is(model: AdapterDrafter) -> None:
    """It adds as many parameters as the model, and what it sends is a chain."""
    drafter = HybridDrafter(model, LookupDrafter())
    assert (drafter.name, drafter.parameters, drafter.tree_nodes) == ("hybrid", model.parameters, 0)


def test_sure_without_the_model(model: AdapterDrafter) -> None:
    """While the text is surely being copied the model is not asked for anything."""
    watched = Watched(model)
    session = opened(watched, COPYING)
    assert top(session.guess())[0] == PASSAGE[20]
    for node in range(8):
        token = PASSAGE[20 + node]
        [guess] = extend(session, [node - 1], [token], rows([token]))
        assert top(guess)[0] == PASSAGE[21 + node]
    assert (watched.guesses, watched.extended) == (0, [])
    assert session.given == {"lookup": 9}


def test_catching_up(model: AdapterDrafter) -> None:
    """Once it is needed the model runs what it missed in one batch, and says what it would have said anyway."""
    watched = Watched(model)
    session = opened(watched, COPYING)
    chain = PASSAGE[20:24]
    for node, token in enumerate(chain):
        extend(session, [node - 1], [token], rows([token]))
    before = session.nbytes
    [guess] = extend(session, [1], [96], rows([96]))  # not how the passage goes on, nor anything else: a branch
    [after] = extend(session, [4], [95], rows([95]))
    assert watched.extended == [([-1, 0, 1, 2, 1], [*chain, 96]), ([4], [95])]
    eager = model.open(ROOM)
    eager.observe(COPYING, rows(COPYING), None)
    expected = extend(eager, [-1, 0, 1, 2, 1, 4], [*chain, 96, 95], rows([*chain, 96, 95]))
    assert same(guess, expected[4])
    assert same(after, expected[5])
    assert before > opened(model, COPYING).nbytes  # rows that waited were counted


def test_a_fork_goes_on_where_it_was_made(model: AdapterDrafter) -> None:
    """With both of its sources there, in the middle of what its source has gone on with."""
    session = opened(model, COPYING)
    extend(session, [-1, 0], PASSAGE[20:22], rows(PASSAGE[20:22]))
    session.observe([3, 4], rows([3, 4]), None)
    fork = session.fork(len(COPYING))
    session.close()
    assert fork.position == len(COPYING)
    fresh = opened(model, COPYING)
    for each in (fork, fresh):
        each.observe([PASSAGE[20], 96], rows([PASSAGE[20], 96]), None)
    assert same(fork.guess(), fresh.guess())
    said = [extend(each, [-1, 0], [95, 94], rows([95, 94])) for each in (fork, fresh)]
    assert all(map(same, *said))


def test_nothing_in_the_text(model: AdapterDrafter) -> None:
    """Where the text says nothing the model speaks."""
    session = opened(model, [1, 2, 3])
    eager = model.open(ROOM)
    eager.observe([1, 2, 3], rows([1, 2, 3]), None)
    assert same(session.guess(), eager.guess())
    assert session.given == {model.name: 1}


def test_whichever_promises_more(model: AdapterDrafter) -> None:
    """With nothing learned yet, the weight that is usually worth more wins at each node of a batch."""
    text = random.Random(2).choices(range(60), k=300)
    session, lookup, eager = opened(model, text), LookupDrafter().open(ROOM), model.open(ROOM)
    for each in (lookup, eager):
        each.observe(text, rows(text), None)
    tokens = list(range(90))
    parents = [-1] * len(tokens)
    said = [extend(each, parents, tokens, rows(tokens)) for each in (session, lookup, eager)]
    for found, looked, modelled in zip(*said, strict=True):
        promised = usual_chance(model.name, top(modelled)[1])
        better = looked if looked is not None and top(looked)[1] >= promised else modelled
        assert same(found, better)
    assert set(session.given) == {"lookup", model.name}
    assert session.given.total() == len(tokens)


def test_learning(model: AdapterDrafter) -> None:
    """A lookup that is always wrong is not believed any more, where the model is always right."""
    session, eager = opened(model, []), model.open(ROOM)
    sources = []
    for number in range(200, 500, 3):  # each pair comes back once, and goes on in another way
        text = [number, number + 1, number + 2, number, number + 1]
        session.observe(text, rows(text), None)
        eager.observe(text, rows(text), None)
        guess = session.guess()
        assert guess is not None
        sources.append(guess.source)
        right, _ = top(eager.guess())
        session.observe([right], rows([right]), None)
        eager.observe([right], rows([right]), None)
    assert "lookup" in sources[:20]
    assert set(sources[-20:]) == {model.name}


def test_random_use(model: AdapterDrafter) -> None:
    """Whatever is observed, drafted and truncated, each guess is one of the two that sessions of their own give."""
    drawn = random.Random(5)
    session, lookup, eager = (
        drafter.open(ROOM) for drafter in (HybridDrafter(model, LookupDrafter()), LookupDrafter(), model)
    )
    sources = set()

    def compare(found: Guess | None, looked: Guess | None, modelled: Guess | None) -> None:
        assert same(found, looked if found is None or found.source == "lookup" else modelled)
        sources.add(found and found.source)

    for _ in range(60):
        count = drawn.randrange(1, 9)
        text = [drawn.randrange(12) for _ in range(count)]
        before = rows([token + 50 for token in text])[: drawn.randrange(count + 1)]
        for each in (session, lookup, eager):
            each.observe(text, rows(text), before)
        if drawn.random() < 0.7:
            compare(session.guess(), lookup.guess(), eager.guess())
        nodes = 0
        for _ in range(drawn.randrange(4)):
            tokens = [drawn.randrange(12) for _ in range(drawn.randrange(1, 4))]
            parents = [drawn.randrange(-1, nodes + number) for number in range(len(tokens))]
            nodes += len(tokens)
            said = [extend(each, parents, tokens, rows(tokens)) for each in (session, lookup, eager)]
            for found, looked, modelled in zip(*said, strict=True):
                compare(found, looked, modelled)
        if drawn.random() < 0.2:
            position = drawn.randrange(session.position + 1)
            for each in (session, lookup, eager):
                each.truncate(position)
        assert session.position == lookup.position == eager.position
    assert sources >= {"lookup", model.name}


def test_refusals(model: AdapterDrafter) -> None:
    """Bad input is refused, and nothing has changed."""
    session = opened(model, COPYING)
    before = session.guess()
    with pytest.raises(ValueError):
        session.observe([1] * ROOM, torch.zeros(ROOM, HIDDEN), None)
    with pytest.raises(ValueError):
        session.observe([1, 2], rows([1]), None)
    for parents, tokens, shallow in (([-1], [1], rows([1, 2])), ([0], [1], rows([1])), ([-1, -1], [1], rows([1]))):
        with pytest.raises(ValueError):
            extend(session, parents, tokens, shallow)
    for position in (-1, len(COPYING) + 1):
        with pytest.raises(ValueError):
            session.truncate(position)
    assert session.position == len(COPYING)
    assert session.guess() == before
    token = PASSAGE[20]
    [guess] = extend(session, [-1], [token], rows([token]))
    assert top(guess)[0] == PASSAGE[21]


def test_close(model: AdapterDrafter) -> None:
    """A closed session holds no more than one that has seen nothing, however often it is closed."""
    session = opened(model, COPYING)
    session.guess()
    extend(session, [-1], [1], rows([1]))
    empty = HybridDrafter(model, LookupDrafter()).open(0).nbytes
    session.close()
    session.close()
    assert session.nbytes == empty
