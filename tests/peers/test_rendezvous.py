"""Who gets into a group, who does not, and what happens to everybody when one is gone."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog
from clouds import until
from msgspec import structs
from websockets.asyncio.client import connect

from peers.board import MOST_POSTS, Board, PeerLost
from peers.group import MOST_POSTS_OF_ONE
from peers.membership import attend, join
from peers.rendezvous import MAX_GREETING_OF_ADDRESS, MAX_NOTES, Rendezvous, listening
from peers.secret import challenge, check_host, check_member, hello, welcome
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import PEER_LINK
from wire.message import Heartbeat
from wire.peer_messages import PeerNote, PeerPost
from wire.stream import dial

SECRET = "a secret of this test"
LOOPBACK = "127.0.0.1"


def at(rendezvous: Rendezvous) -> str:
    """Where it listens."""
    return f"{rendezvous.address}:{rendezvous.port}"


async def board_has(board: Board, key: str) -> bytes:
    """A value, once it is there."""
    return await asyncio.to_thread(board.get, key, 20.0)


async def test_members_get_their_places_and_tell_each_other() -> None:
    """Whoever is made for a seat has it, others have what is left; each learns all posts, also those from before."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(7, {1: b"one", 2: b"two"})
        group.board.post("from the host", b"a")
        async with join(at(rendezvous), SECRET, "any") as other:
            other.board.post("from the first/2", b"b")
            assert await board_has(group.board, "from the first/2") == b"b"
            async with join(at(rendezvous), SECRET, "made for it", seat=1) as seated:
                assert (seated.rank, seated.plan, other.rank, other.plan) == (1, b"one", 2, b"two")
                assert (seated.size, seated.epoch, seated.address) == (3, 7, LOOPBACK)
                assert await board_has(seated.board, "from the host") == b"a"
                assert await board_has(seated.board, "from the first/2") == b"b"
                assert group.missing == []


async def test_places_may_be_for_somebody() -> None:
    """Who comes gets the place that is for its name, whatever the order; who has none waits, and is known."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b"for one", 2: b"for two"}, {1: "one", 2: "two"})
        async with (
            attend(at(rendezvous), SECRET, "three") as three,
            join(at(rendezvous), SECRET, "one") as one,
            join(at(rendezvous), SECRET, "two") as two,
        ):
            assert (one.rank, one.plan, two.rank, two.plan) == (1, b"for one", 2, b"for two")
            assert {guest.name for guest in rendezvous.guests if guest.place is None} == {"three"}
            for member in (one, two):
                member.leave("done")
            await until(lambda: all(guest.place is None for guest in rendezvous.guests))
            assert group.ended.done()
            rendezvous.open(2, {1: b"for three"}, {1: "three"})
            assert (await three.place()).plan == b"for three"


async def test_guests_stay_when_their_group_has_ended() -> None:
    """One refuses, and says what and that it was itself; all get their next places on the connections that they have,
    and what was posted in the group before is not read in the next."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b"", 2: b""})
        async with attend(at(rendezvous), SECRET, "a") as a, attend(at(rendezvous), SECRET, "b") as b:
            first, second = await a.place(), await b.place()
            second.board.post(f"old/{second.rank}", b"")
            await board_has(first.board, f"old/{second.rank}")
            first.leave("too little memory", first.rank, "too_little_memory")
            assert "too little memory" in await group.ended
            assert (group.blamed, group.left[first.rank].code) == (first.rank, "too_little_memory")
            assert "too little memory" in await asyncio.wait_for(second.ended, 10)
            await until(lambda: sum(guest.place is None for guest in rendezvous.guests) == 1)
            group = rendezvous.open(2, {1: b"again", 2: b"again"})
            await until(lambda: len(group.missing) == 1)
            second.board.put("late", b"")
            second.leave("heard of it")
            again = [await a.place(), await b.place()]
            assert [each.epoch for each in again] == [2, 2] and group.missing == []
            again[0].board.post(f"old/{again[0].rank}", b"new")
            assert await board_has(again[1].board, f"old/{again[0].rank}") == b"new"


async def test_notes_go_between_host_and_one_guest() -> None:
    """Both ways, in order, with a place and without; who says more than anybody reads is sent away."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous, attend(at(rendezvous), SECRET, "a") as guest:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        guest.noted = heard.put_nowait
        guest.note(b"first")
        guest.note(b"second")
        await until(lambda: bool(rendezvous.guests) and list(rendezvous.guests[0].notes) == [b"first", b"second"])
        rendezvous.open(1, {1: b""})
        await guest.place()
        rendezvous.guests[0].tell(PeerNote(b"back"))
        assert await asyncio.wait_for(heard.get(), 10) == b"back"
        for _ in range(MAX_NOTES):
            guest.note(b"more")
        with pytest.raises(ConnectionFailed, match="anybody reads"):
            await guest.place()


async def test_names_may_have_to_differ() -> None:
    """The second of a name is refused by it, and the first stays; once that is gone another may have the name."""
    async with listening(LOOPBACK, 0, SECRET, distinct=True) as rendezvous:
        async with attend(at(rendezvous), SECRET, "kitchen"):
            await until(lambda: len(rendezvous.guests) == 1)
            with pytest.raises(ConnectionFailed, match="'kitchen'") as refused:
                async with join(at(rendezvous), SECRET, "kitchen"):
                    pass
            assert refused.value.code is Code.NAME_TAKEN and len(rendezvous.guests) == 1
        await until(lambda: not rendezvous.guests)
        rendezvous.open(1, {1: b""})
        async with join(at(rendezvous), SECRET, "kitchen"):
            pass


async def test_guests_are_bounded_and_lies_end_their_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than there is room for is refused; a post without a place, or the same twice, ends who said it."""
    monkeypatch.setattr("peers.rendezvous.MAX_GUESTS", 2)
    async with (
        listening(LOOPBACK, 0, SECRET) as rendezvous,
        attend(at(rendezvous), SECRET, "a") as liar,
        attend(at(rendezvous), SECRET, "b") as other,
    ):
        await until(lambda: len(rendezvous.guests) == 2)
        with pytest.raises(ConnectionFailed, match="2 members are here"):
            async with join(at(rendezvous), SECRET, "c"):
                pass
        liar._stream.post(PeerPost("key", b"", 1))
        with pytest.raises(ConnectionFailed, match="has no place"):
            await liar.place()
        group = rendezvous.open(1, {1: b""})
        place = await other.place()
        for _ in range(2):
            place._post(PeerPost("twice/1", b"", 1))
        assert "there already" in await asyncio.wait_for(group.ended, 10) and group.blamed == 1


@pytest.mark.parametrize("key", ["load", "fits/1", "link/2/0", "link/2/1", "loading/2/1", ""])
async def test_nobody_posts_what_others_have_to_say(key: str) -> None:
    """Neither the host's keys nor another member's, whose own posts would fail: who does so is named and goes, and the
    host and the other member say what they have to."""
    async with (
        listening(LOOPBACK, 0, SECRET) as rendezvous,
        attend(at(rendezvous), SECRET, "one", 1) as honest,
        attend(at(rendezvous), SECRET, "two", 2) as liar,
    ):
        await until(lambda: len(rendezvous.guests) == 2)
        group = rendezvous.open(2, {1: b"", 2: b""})
        one, two = await honest.place(), await liar.place()
        two._post(PeerPost("link/2/2", b"its own", 2))
        assert await board_has(one.board, "link/2/2") == b"its own"
        two._post(PeerPost(key, b"", 2))
        assert "not for member 2 to say" in await asyncio.wait_for(group.ended, 10) and group.blamed == 2
        await asyncio.wait_for(one.ended, 10)
        with pytest.raises(PeerLost):  # And not ``ValueError``, as for a key that is there.
            one.board.post(key if key.endswith("/1") else "fits/1", b"")
        with pytest.raises(PeerLost):
            group.board.post("load", b"")


async def test_one_member_does_not_fill_the_board() -> None:
    """It is named and goes; the others' posts have room."""
    async with (
        listening(LOOPBACK, 0, SECRET) as rendezvous,
        attend(at(rendezvous), SECRET, "talks") as talks,
    ):
        group = rendezvous.open(1, {1: b""})
        place = await talks.place()
        for number in range(MOST_POSTS_OF_ONE + 1):
            place._post(PeerPost(f"{number}/1", b"", 1))
        assert "more than" in await asyncio.wait_for(group.ended, 10) and group.blamed == 1


async def test_a_member_that_goes_ends_the_group_for_all() -> None:
    """Every wait ends and says who is gone; the next group begins at the same address."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b"", 2: b""})
        async with join(at(rendezvous), SECRET, "stays") as stays:
            waiting = asyncio.create_task(board_has(stays.board, "never said"))
            async with join(at(rendezvous), SECRET, "goes"):
                pass
            assert "goes" in await asyncio.wait_for(stays.ended, 10)
            with pytest.raises(PeerLost, match="goes"):
                await waiting
        assert "goes" in await group.ended
        with pytest.raises(PeerLost):
            group.board.post("more", b"")
        async with attend(at(rendezvous), SECRET, "comes back") as early:
            rendezvous.open(2, {1: b""})
            again = await early.place()
            assert again.epoch == 2
            rendezvous_ends = again.ended
    await asyncio.wait_for(rendezvous_ends, 10)


async def test_strangers_get_nothing_and_keep_nobody_out() -> None:
    """Sockets that say nothing, rubbish, a wrong secret or another's proof: none has a place, the member has."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b"plan"})
        silent = [await asyncio.open_connection(LOOPBACK, rendezvous.port) for _ in range(MAX_GREETING_OF_ADDRESS)]
        waiting = [await connect(f"ws://{at(rendezvous)}/", proxy=None) for _ in range(MAX_GREETING_OF_ADDRESS)]
        await waiting[-1].send(b"\x00" * 5000)
        assert len(rendezvous.crowd) <= MAX_GREETING_OF_ADDRESS
        # The sockets that were there first have lost their places to those that came later.
        assert await asyncio.wait_for(silent[0][0].read(), 10) == b""
        with pytest.raises(ConnectionFailed, match="secret is another one") as refused:
            async with join(at(rendezvous), "another secret, as long", "stranger"):
                pass
        assert refused.value.code is Code.UNAUTHORIZED
        async with dial(f"ws://{at(rendezvous)}/", Role.MEMBER, PEER_LINK) as stream:
            await stream.receive()
            # A proof that was heard on another connection.
            stream.post(hello(SECRET, "listener", 0, challenge()))
            with pytest.raises(ConnectionFailed, match="secret is another one"):
                await stream.receive()
        assert group.missing == [1]
        async with join(at(rendezvous), SECRET, "member") as member:
            assert member.plan == b"plan"
        for websocket in waiting:
            websocket.transport.abort()
        for _, writer in silent:
            writer.close()
        await until(lambda: len(rendezvous.crowd) == 0)


def test_a_proof_is_for_what_was_said() -> None:
    """Whatever is changed on the way, either way, and whichever side sends back what it got: it proves nothing."""
    asked = challenge()
    said = hello(SECRET, "kitchen", 2, asked)
    check_member(SECRET, asked, said)
    for wrong in (
        structs.replace(said, name="cellar"),
        structs.replace(said, seat=0),
        hello("x" * 20, "kitchen", 2, asked),
    ):
        with pytest.raises(ConnectionFailed):
            check_member(SECRET, asked, wrong)
    with pytest.raises(ConnectionFailed):
        check_member(SECRET, challenge(), said)
    place = welcome(SECRET, asked, said, 1, 3, 1, b"plan")
    check_host(SECRET, asked, said, place)
    for changed in ({"rank": 2}, {"size": 2}, {"epoch": 2}, {"plan": b"plot"}, {"proof": said.proof}):
        with pytest.raises(ConnectionFailed):
            check_host(SECRET, asked, said, structs.replace(place, **changed))
    with pytest.raises(ConnectionFailed):
        check_host(SECRET, asked, hello(SECRET, "kitchen", 2, asked), place)


async def test_a_host_that_does_not_know_the_secret_is_left() -> None:
    """A member does not do what somebody wants who cannot prove that he may."""

    class Impostor(Rendezvous):
        def __init__(self) -> None:
            super().__init__("what the impostor thinks")

    impostor = Impostor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peers.rendezvous.check_member", lambda *_: None)
        patch.setattr("peers.rendezvous.Rendezvous", lambda *_: impostor)
        async with listening(LOOPBACK, 0, SECRET) as rendezvous:
            rendezvous.open(1, {1: b"do this"})
            with pytest.raises(ConnectionFailed, match="does not know the secret"):
                async with join(at(rendezvous), SECRET, "member"):
                    pass


async def test_nothing_is_told_or_done_before_the_host_has_proved_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens in its place may say what a host says to its members: nobody hears it, nor is anything said."""
    monkeypatch.setattr("peers.rendezvous.check_member", lambda *_: None)
    monkeypatch.setattr("peers.rendezvous.here", lambda *_: PeerNote(b"measure yourself"))
    async with listening(LOOPBACK, 0, "what the impostor thinks") as rendezvous:
        with pytest.raises(ConnectionFailed, match="proves nothing") as failed:
            async with attend(at(rendezvous), SECRET, "member"):
                raise AssertionError("it was taken in")
        assert failed.value.code is Code.UNEXPECTED_MESSAGE
        await until(lambda: not rendezvous.guests)


async def test_a_host_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats alone keep nobody."""
    monkeypatch.setattr("peers.membership.HELLO_WITHIN_S", 0.3)
    monkeypatch.setattr("peers.rendezvous.here", lambda *_: Heartbeat(1, 2, 3))
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        with pytest.raises(ConnectionFailed, match="says nothing") as failed:
            async with attend(at(rendezvous), SECRET, "member"):
                raise AssertionError("it was taken in")
        assert failed.value.code is Code.LOST


async def test_a_way_that_is_gone_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that cannot be looked up a second time, or a route that is lost, is no reason to end."""

    def gone(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        monkeypatch.setattr("peers.membership.socket.getaddrinfo", lambda *given, **_: gone())
        with pytest.raises(ConnectionFailed) as failed:
            async with attend(at(rendezvous), SECRET, "member"):
                raise AssertionError("it has no address")
        assert failed.value.code is Code.LOST


async def test_strangers_do_not_fill_the_log() -> None:
    """However many come with a wrong secret, one line says so."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        with structlog.testing.capture_logs() as lines:
            for _ in range(5):
                with pytest.raises(ConnectionFailed):
                    async with attend(at(rendezvous), "another secret altogether", "stranger"):
                        pass
        assert [line["event"] for line in lines].count("a peer was refused") == 1


@pytest.mark.parametrize(("host", "secret"), [("0.0.0.0", SECRET), ("::", SECRET), ("", SECRET), (LOOPBACK, "short")])
async def test_what_cannot_be_a_rendezvous_is_said(host: str, secret: str) -> None:
    """A wildcard is no address that members could reach, and a short secret is found by trying."""
    with pytest.raises(ValueError):
        async with listening(host, 0, secret):
            pass


def test_a_board_is_bounded_and_its_keys_are_used_once() -> None:
    """Nothing that a member says can be changed, or take more memory than there is room for."""
    board = Board(lambda key, value: None)
    for number in range(MOST_POSTS):
        board.put(str(number), b"")
    for key in ("0", "more"):
        with pytest.raises(ValueError):
            board.put(key, b"")
    with pytest.raises(PeerLost, match="within"):
        board.get("more", 0.01)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(board.get, "more", 60.0)
        board.lose("over")
        board.lose("and again")
        with pytest.raises(PeerLost, match="over"):
            waiting.result(10)
