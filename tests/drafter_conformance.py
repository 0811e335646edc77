"""What every session of a drafter must do, however it drafts. One suite, run on each kind."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from copy import copy

import torch

from drafting.drafter import Drafter, DraftSession, Guess
from split_model.sampling import NOBODY
from split_model.tree import Tree

ATOL = 1e-4
POSITIONS = 80
TEXT = (5, 3, 9, 9, 1, 4, 2, 5, 3, 9, 7, 6, 1, 4, 8, 2, 5, 3, 9, 1)
PROMPT = 12
"""Tokens of the text from the first; before those behind it the deep rows are known."""
# A tree behind a text, with tokens that occur in it: a chain with branches at its root and in its middle.
PARENTS: tuple[int, ...] = (-1, 0, 0, 1, -1, 2, 4, 3)
TOKENS: tuple[int, ...] = (9, 1, 7, 4, 3, 6, 9, 2)


EARLIER: tuple[int, ...] = (3, 9, 1, 4, NOBODY, 5, 3, 9, 9, 2, NOBODY)
"""Of other texts."""


class Rows:
    """Rows of any text, random but the same each time and on every device: those of a token hang on it and on all
    before it."""

    def __init__(
        self, hidden_size: int, seed: int = 0, device: torch.device | str = "cpu", earlier: Sequence[int] = ()
    ) -> None:
        """earlier: what sessions of its texts may recall."""
        self.earlier = earlier
        self._hidden_size = hidden_size
        self._seed = seed
        self._device = device

    def shallow(self, text: Sequence[int], count: int) -> torch.Tensor:
        """Of the last ``count`` tokens, ``[count, hidden_size]``."""
        return self._rows("shallow", [text[:end] for end in range(len(text) - count + 1, len(text) + 1)])

    def deep(self, text: Sequence[int], count: int) -> torch.Tensor:
        """Of the positions before the last ``count`` tokens, ``[count, hidden_size]``."""
        return self._rows("deep", [text[:end] for end in range(len(text) - count, len(text))])

    def _rows(self, what: str, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        rows = torch.empty((len(texts), self._hidden_size))
        for row, text in zip(rows, texts, strict=True):
            seed = zlib.crc32(f"{self._seed} {what} {list(text)}".encode())
            row.normal_(generator=torch.Generator().manual_seed(seed))
        return rows.to(self._device)


class Follower:
    """A session and the text it has observed, so that a check names tokens only."""

    def __init__(self, drafter: Drafter, rows: Rows) -> None:
        self.session: DraftSession = drafter.open(POSITIONS, rows.earlier)
        self._rows = rows
        self._text: tuple[int, ...] = ()
        self._tree = Tree(0)

    def observe(self, tokens: Sequence[int], known: int | None = None) -> Follower:
        """known: how many deep rows come along; None: those before tokens behind the prompt."""
        self._text += tuple(tokens)
        self._tree = Tree(len(self._text))
        if known is None:
            known = min(len(tokens), max(0, len(self._text) - PROMPT))
        before = self._rows.deep(self._text, known) if known else None
        self.session.observe(tokens, self._rows.shallow(self._text, len(tokens)), before)
        assert self.session.position == len(self._text)
        return self

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> list[Guess | None]:
        tree, first = self._tree, len(self._tree)
        tree.add(parents, tokens)
        paths = [tuple(tree.tokens[each] for each in tree.path(node)) for node in range(first, len(tree))]
        return self.session.extend(tree, torch.cat([self._rows.shallow(self._text + path, 1) for path in paths]))

    def truncate(self, position: int) -> Follower:
        self.session.truncate(position)
        self._text = self._text[:position]
        self._tree = Tree(position)
        assert self.session.position == position
        return self

    def fork(self, position: int) -> Follower:
        found = copy(self)
        found.session, found._text, found._tree = self.session.fork(position), self._text[:position], Tree(position)
        assert found.session.position == position
        return found


def check_drafter(drafter: Drafter, hidden_size: int, device: torch.device | str = "cpu") -> None:
    """Sessions of ``drafter``, whose model has at least 10 tokens, do what the protocol says, where it is."""
    for earlier in ((), EARLIER):
        rows = Rows(hidden_size, device=device, earlier=earlier)
        for check in (_empty, _pieces, _paths, _forgotten, _accepted, _truncated, _side_by_side, _forked, _closed):
            check(drafter, rows)


def assert_same(got: Guess | None, wanted: Guess | None) -> None:
    """Both say the same of the next token."""
    assert (got is None) == (wanted is None)
    if got is None or wanted is None:
        return
    assert got.source == wanted.source
    assert got.ranked == wanted.ranked
    assert (got.logits is None) == (wanted.logits is None)
    if got.logits is not None and wanted.logits is not None:
        assert got.logits.dtype == torch.float32
        torch.testing.assert_close(got.logits.cpu(), wanted.logits.cpu(), atol=ATOL, rtol=0)


def _empty(drafter: Drafter, rows: Rows) -> None:
    """Before anything is observed there is nothing to say, and observing nothing changes nothing."""
    follower = Follower(drafter, rows)
    assert follower.session.position == 0
    assert follower.session.guess() is None
    follower.observe(TEXT)
    wanted = follower.session.guess()
    assert_same(follower.observe(()).session.guess(), wanted)


def _pieces(drafter: Drafter, rows: Rows) -> None:
    """A text observed in pieces, whether asked about between them or not, is the text observed at once."""
    wanted = Follower(drafter, rows).observe(TEXT).session.guess()
    for asked in (False, True):
        follower = Follower(drafter, rows)
        for start, end in ((0, 1), (1, 7), (7, 14), (14, 15), (15, 19), (19, 20)):
            follower.observe(TEXT[start:end])
            if asked:
                follower.session.guess()
        assert_same(follower.session.guess(), wanted)
        assert_same(follower.session.guess(), wanted)


def _paths(drafter: Drafter, rows: Rows) -> None:
    """A node is told what its path alone would be, in whatever pieces the tree is extended."""
    path: list[tuple[int, ...]] = []
    for parent, token in zip(PARENTS, TOKENS, strict=True):
        path.append((*(path[parent] if parent >= 0 else ()), token))
    wanted: list[Guess | None] = []
    for each in path:
        alone = Follower(drafter, rows).observe(TEXT)
        for node in range(len(each)):
            last = alone.extend([node - 1], [each[node]])
        wanted += last
    for pieces in ((8,), (1, 1, 1, 1, 1, 1, 1, 1), (1, 2, 5), (4, 4)):
        follower = Follower(drafter, rows).observe(TEXT)
        got: list[Guess | None] = []
        for piece in pieces:
            part = slice(len(got), len(got) + piece)
            got += follower.extend(PARENTS[part], TOKENS[part])
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
        # The guess about the text itself is not lost by asking about what may follow it.
        assert_same(follower.session.guess(), Follower(drafter, rows).observe(TEXT).session.guess())


def _forgotten(drafter: Drafter, rows: Rows) -> None:
    """Observing something else than the nodes forgets them all, and nodes are numbered from 0 again."""
    follower = Follower(drafter, rows).observe(TEXT)
    follower.extend(PARENTS, TOKENS)
    follower.observe((6,))
    fresh = Follower(drafter, rows).observe((*TEXT, 6))
    assert_same(follower.session.guess(), fresh.session.guess())
    for got, wanted in zip(follower.extend((-1, 0), (1, 4)), fresh.extend((-1, 0), (1, 4)), strict=True):
        assert_same(got, wanted)


def _accepted(drafter: Drafter, rows: Rows) -> None:
    """Observing the tokens of nodes, with others behind them or none, is observing them without having had nodes."""
    for accepted in ((9,), (9, 1, 4, 2), (3, 9), (9, 7, 6)):
        for behind in ((), (6,), (8, 5, 2)):
            follower = Follower(drafter, rows).observe(TEXT)
            follower.extend(PARENTS[:5], TOKENS[:5])
            follower.extend(PARENTS[5:], TOKENS[5:])
            follower.observe(accepted + behind)
            fresh = Follower(drafter, rows).observe(TEXT).observe(accepted + behind)
            assert_same(follower.session.guess(), fresh.session.guess())
            assert_same(follower.extend((-1,), (4,))[0], fresh.extend((-1,), (4,))[0])
            assert_same(follower.observe((4, 7)).session.guess(), fresh.observe((4, 7)).session.guess())


def _truncated(drafter: Drafter, rows: Rows) -> None:
    """What was truncated might never have been observed; a guess that cannot be made without it is None."""
    for kept in (0, 1, PROMPT, 15, 19, 20):
        for asked in (False, True):
            follower = Follower(drafter, rows).observe(TEXT[:14])
            if asked:
                follower.session.guess()
            follower.observe(TEXT[14:])
            if asked:
                follower.extend(PARENTS, TOKENS)
            follower.truncate(kept)
            got = follower.session.guess()
            if got is not None:
                assert_same(got, Follower(drafter, rows).observe(TEXT[:kept]).session.guess())
            fresh = Follower(drafter, rows).observe(TEXT[:kept]).observe((8, 1))
            assert_same(follower.observe((8, 1)).session.guess(), fresh.session.guess())
            assert_same(follower.extend((-1,), (2,))[0], fresh.extend((-1,), (2,))[0])


def _side_by_side(drafter: Drafter, rows: Rows) -> None:
    """Texts do not know of each other."""
    wanted = Follower(drafter, rows).observe(TEXT).session.guess()
    one, other = Follower(drafter, rows), Follower(drafter, rows)
    one.observe(TEXT[:5])
    other.observe(TEXT[3:9])
    other.extend(PARENTS, TOKENS)
    one.observe(TEXT[5:])
    other.session.close()
    assert_same(one.session.guess(), wanted)


def _forked(drafter: Drafter, rows: Rows) -> None:
    """A fork says what its source would, cut back to there; from then on neither knows what becomes of the other."""
    for position in (0, 1, PROMPT, 15, 20):
        for asked in (False, True):
            source = Follower(drafter, rows).observe(TEXT[:PROMPT])
            if asked:
                source.session.guess()
            source.observe(TEXT[PROMPT:])
            if asked:
                source.extend(PARENTS, TOKENS)
            forks = [source.fork(position), source.fork(position)]
            source.observe((9, 1))
            wanted = Follower(drafter, rows).observe(TEXT[:position]).session.guess()
            got = forks[0].session.guess()
            if got is not None:
                assert_same(got, wanted)
            forks[0].observe((8, 1))
            fresh = Follower(drafter, rows).observe(TEXT[:position]).observe((8, 1))
            assert_same(forks[0].session.guess(), fresh.session.guess())
            assert_same(forks[0].extend((-1,), (2,))[0], fresh.extend((-1,), (2,))[0])
            assert_same(source.session.guess(), Follower(drafter, rows).observe((*TEXT, 9, 1)).session.guess())
            source.session.close()
            forks[0].session.close()
            fresh = Follower(drafter, rows).observe(TEXT[:position]).observe((3, 9))
            assert_same(forks[1].observe((3, 9)).session.guess(), fresh.session.guess())


def _closed(drafter: Drafter, rows: Rows) -> None:
    """A closed session holds no more than a new one; closing twice is closing once."""
    follower = Follower(drafter, rows)
    new = follower.session.nbytes
    follower.observe(TEXT)
    follower.session.guess()
    follower.extend(PARENTS, TOKENS)
    assert follower.session.nbytes >= new
    follower.session.close()
    follower.session.close()
    assert follower.session.nbytes <= new
