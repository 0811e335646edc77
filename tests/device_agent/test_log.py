"""What a session sends again is what it had: history and log against a plain list, whatever is lost and when."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_agent.cloud.asked import Asked, Piece, Turn
from device_agent.cloud.log import SessionLog
from split_model.history import GATHERED, WHOLE_ROWS, History
from split_model.tree import Tree
from wire.errors import SessionFailed


@given(st.integers(0, 2**32))
def test_a_history_is_a_list_of_rows(seed: int) -> None:
    """Appended, cut and read anywhere, whatever the sizes of the pieces."""
    rng, history, model = random.Random(seed), History(), torch.empty(0, 2)
    for _ in range(40):
        if rng.random() < 0.75:
            count = rng.choice([1, 1, 1, 2, WHOLE_ROWS - 1, WHOLE_ROWS, GATHERED + 1])
            new = torch.tensor([[rng.random(), rng.random()] for _ in range(count)])
            history.append(new.clone())
            model = torch.cat([model, new])
        else:
            position = rng.randint(0, len(model))
            history.truncate(position)
            model = model[:position]
        assert history.length == len(model)
        if len(model):
            begin = rng.randrange(len(model))
            end = rng.randint(begin + 1, len(model))
            assert torch.equal(history.rows(begin, end), model[begin:end])
        assert history.nbytes >= model.nbytes


@given(st.integers(0, 2**32))
def test_histories_that_share_rows_are_lists_of_their_own(seed: int) -> None:
    """Forks, and forks of forks, that are appended to, cut and read anywhere: none sees what another writes."""
    rng = random.Random(seed)
    histories = [(History(), torch.empty(0, 2))]
    for _ in range(60):
        number, what = rng.randrange(len(histories)), rng.random()
        history, model = histories[number]
        if what < 0.2 and len(histories) < 5:
            position = rng.randint(0, len(model))
            histories.append((history.fork(position), model[:position]))
            continue
        if what < 0.75:
            new = torch.rand((rng.choice([1, 1, 1, 2, WHOLE_ROWS - 1, WHOLE_ROWS, GATHERED + 1]), 2))
            history.append(new.clone())
            model = torch.cat([model, new])
        else:
            position = rng.randint(0, len(model))
            history.truncate(position)
            model = model[:position]
        histories[number] = history, model
        for each, wanted in histories:
            assert each.length == len(wanted)
            if len(wanted):
                begin = rng.randrange(len(wanted))
                assert torch.equal(each.rows(begin, len(wanted)), wanted[begin:])


def test_a_fork_has_its_rows_where_its_source_has_them() -> None:
    """The memory of a prompt is there once, for all that begin with it."""
    history = History()
    history.append(torch.zeros(500, 8))
    forks = [history.fork(500) for _ in range(7)]
    assert {fork.rows(0, 500).data_ptr() for fork in forks} == {history.rows(0, 500).data_ptr()}


def test_single_rows_cost_little_more_than_themselves() -> None:
    """A thousand rows one by one take the memory of a thousand rows and a block; cut away, they take none."""
    history = History()
    for each in range(1000):
        history.append(torch.full((1, 8), float(each)))
    assert history.nbytes <= (1000 + GATHERED) * 8 * 4
    for each in range(1000):
        history.truncate(history.length - 2)
        history.append(torch.full((3, 8), float(each)))
    assert history.nbytes <= (2000 + GATHERED) * 8 * 4 * 1.1, "also when drafts are taken back again and again"
    history.truncate(0)
    assert history.nbytes == 0


def test_rows_given_to_a_history_are_never_written_to() -> None:
    """Neither when it is cut back into them and goes on."""
    given_rows = torch.zeros(WHOLE_ROWS, 2)
    history = History()
    history.append(given_rows)
    history.truncate(3)
    history.append(torch.ones(1, 2))
    assert not given_rows.any() and history.rows(2, 4).tolist() == [[0, 0], [1, 1]]


class ListCloud:
    """A cloud server that keeps one session as a list of its rows."""

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.nodes: list[float] | None = None
        self.frames: list[Piece | int | tuple[int, ...]] = []

    def step(self) -> Piece | None:
        """Do what came first; the piece that is to be answered, None for a truncation or a choice."""
        frame = self.frames.pop(0)
        if isinstance(frame, int):
            assert frame <= len(self.rows)
            del self.rows[frame:]
            self.nodes = None
            return None
        if isinstance(frame, tuple):
            assert self.nodes is not None, "what is kept has come before"
            self.rows += [self.nodes[node] for node in frame]
            self.nodes = None
            return None
        assert frame.position == len(self.rows), "rows come where the last ones ended"
        assert self.nodes is None, "nothing comes behind rows that branch"
        if frame.parents is None:
            self.rows += frame.hidden[:, 0].tolist()
        else:
            assert len(frame.parents) == len(frame.hidden), "they come in one piece"
            self.nodes = frame.hidden[:, 0].tolist()
        return frame


class Scene:
    """One session, its log, and what it should be."""

    def __init__(self, rng: random.Random, loop: asyncio.AbstractEventLoop) -> None:
        self.rng = rng
        self.loop = loop
        self.log = SessionLog()
        self.cloud = ListCloud()
        self.model: list[float] = []
        self.should: dict[int, list[float]] = {}
        """What the session holds when a forward is done, by the forward's first value."""
        self.fresh = 1.0
        self.answers = 0
        self.nodes: list[float] | None = None
        """The rows that branch behind the session."""

    def forward(self) -> None:
        """Some new rows, each with a value never seen, one behind the other or as a tree."""
        if self.nodes is not None:
            return
        branch = self.rng.random() < 0.3
        count = self.rng.choice([1, 3, 9] if branch else [1, 1, 1, 2, 5, 40])
        values = [self.fresh + each for each in range(count)]
        self.fresh += count
        want = self.rng.randint(0, count)
        asked = Asked(torch.tensor(values)[:, None], want, self.loop.create_future(), Turn(0, 0.0))
        if branch:
            self.nodes, asked.tree = values, Tree(len(self.model))
            asked.tree.add([self.rng.randint(-1, node - 1) for node in range(count)])
        else:
            self.model += values
        self.should[int(values[0])] = list(self.model)
        self.log.forward(asked)

    def keep(self) -> None:
        """A path of the nodes."""
        if self.nodes is None:
            return
        assert self.log.branching is not None and self.log.branching.tree is not None
        tree = self.log.branching.tree  # Fewer nodes, where they were too many for a cloud that they were sent to.
        path = tree.path(self.rng.randint(-1, len(tree) - 1))
        self.model += [self.nodes[node] for node in path]
        self.nodes = None
        self.log.keep(path)

    def truncate(self) -> None:
        """Back to anywhere, and no further than to forget the nodes as often as not."""
        position = self.rng.randint(0, len(self.model))
        if self.nodes is not None and self.rng.random() < 0.7:
            position = len(self.model)
        self.nodes = None
        del self.model[position:]
        self.log.truncate(position)

    def send(self) -> None:
        """The next frame, if the cloud has room."""
        chosen = any(isinstance(each, tuple) for each in self.log._outgoing)  # No node of it may be left out any more.
        most = self.rng.randint(9 if chosen else 1, 50)
        most_of_history = self.rng.randint(1, 50)
        frame = self.log.next(most, self.rng.randint(0, 60), most_of_history)
        if frame is not None:
            if isinstance(frame, Piece):
                assert 0 < len(frame.hidden) <= most
                assert frame.asked is not None or len(frame.hidden) <= most_of_history
                assert self.log.sent[-1] is frame
            self.cloud.frames.append(frame)

    def answer(self) -> None:
        """The cloud does its next frame, and what it has done is heard of."""
        if not self.cloud.frames:
            return
        piece = self.cloud.step()
        if piece is None:
            return
        assert self.log.oldest is piece
        asked = piece.asked
        assert self.log.answered(piece.hidden[len(piece.hidden) - piece.want :] if piece.want else None) is piece
        if asked is not None and piece.last:
            self.answers += 1
            assert self.cloud.rows == self.should[int(asked.hidden[0, 0])]
            assert torch.equal(asked.answer.result(), asked.hidden[len(asked.hidden) - asked.want :])

    def lose(self) -> None:
        """The connection goes; of what was sent, the cloud has done some that nobody hears of."""
        for _ in range(self.rng.randint(0, len(self.cloud.frames))):
            self.cloud.step()
        self.cloud.frames.clear()
        position = self.log.resumable if self.rng.random() < 0.6 else 0
        assert position <= len(self.cloud.rows), "only what is surely there is relied on"
        del self.cloud.rows[position:]
        self.cloud.nodes = None
        self.log.begin(position)


@given(st.integers(0, 2**32))
def test_what_is_sent_again_rebuilds_exactly_what_was_there(seed: int) -> None:
    """Random forwards, trees, choices, truncations, answers and losses: each forward is answered once, by a cloud that
    holds exactly the rows that stood before it, and in the end it holds what the session should be."""
    with closing(asyncio.new_event_loop()) as loop:
        play(Scene(random.Random(seed), loop))


def play(scene: Scene) -> None:
    """Anything in any order, then all that is left."""
    scene.log.begin(0)
    acts = [scene.forward] * 3 + [scene.keep] * 2 + [scene.truncate] + [scene.send] * 6 + [scene.answer] * 5
    acts.append(scene.lose)
    for _ in range(150):
        scene.rng.choice(acts)()
        assert scene.log.position == len(scene.model)
    scene.keep()
    for _ in range(5000):
        if scene.log.settled:
            break
        scene.send()
        scene.answer()
    while scene.cloud.frames:
        scene.answer()
    assert scene.log.settled and not scene.log.waiting
    assert scene.answers == len(scene.should)
    assert scene.cloud.rows == scene.model
    assert scene.log.resumable <= scene.log.history.length == len(scene.model)
    if scene.model:
        assert scene.log.history.rows(0, len(scene.model))[:, 0].tolist() == scene.model


async def test_a_tree_is_cut_to_what_is_taken_at_once() -> None:
    """What is too much of it is left out, with the outputs wanted of that; but not what was chosen already."""
    hidden = torch.arange(6.0)[:, None]

    def asked(want: int) -> SessionLog:
        log, tree = SessionLog(), Tree(0)
        tree.add([-1, 0, 0, 1, 2, 4])
        log.begin(0)
        log.forward(Asked(hidden, want, asyncio.get_running_loop().create_future(), Turn(0, 0.0), tree))
        return log

    for want, left in ((6, 4), (3, 1), (2, 0)):
        log = asked(want)
        assert log.next(4, 3, 9) is None, "there is no room yet"
        piece = log.next(4, 4, 9)
        assert isinstance(piece, Piece) and torch.equal(piece.hidden, hidden[:4])
        assert (piece.want, piece.parents, piece.last) == (left, [-1, 0, 0, 1], True)
        log.answered(piece.hidden[:left] if left else None)
        log.keep([0, 1, 3])
        assert log.history.rows(0, 3).tolist() == [[0.0], [1.0], [3.0]]
    log = asked(6)
    log.keep([0, 2, 4])
    with pytest.raises(SessionFailed):
        log.next(4, 4, 9)
    piece = log.next(5, 5, 9)
    assert isinstance(piece, Piece) and len(piece.hidden) == 5
