"""Where a session goes when its cloud server has failed it, and when it gives up."""

from __future__ import annotations

import pytest

from device_agent.cloud.recovery import MAX_ATTACHES, MAX_LOSSES, ROOM_AFTER_S, Kept, Recovery
from wire.errors import Code, SessionFailed

WITHIN_S, ROOM_S = 30.0, 60.0


def failed(code: Code, retry_after_s: float | None = None) -> SessionFailed:
    """A failure of this code."""
    return SessionFailed(code, "why", retry_after_s=retry_after_s)


def after(code: Code, cloud: int = 0, retry_after_s: float | None = None) -> Recovery:
    """A session that ``cloud`` has ended at time 0, and that somebody waits for."""
    recovery = Recovery(WITHIN_S, ROOM_S)
    recovery.ended(cloud, failed(code, retry_after_s), 0.0, 0.0)
    recovery.began(0.0)
    return recovery


@pytest.mark.parametrize("code", [Code.PREEMPTED, Code.EVICTED, Code.INTERNAL, Code.BAD_POSITION])
def test_a_cloud_that_is_there_keeps_its_session(code: Code) -> None:
    """It is the nearest in the order asked for; only when it goes, another serves."""
    assert after(code, 1).choose([True, True], 0.0) == 1
    assert after(code, 1).choose([True, False], 0.0) == 0
    assert after(code, 1).choose([False, False], 0.0) is None


@pytest.mark.parametrize("code", [Code.UPSTREAM_LOST, Code.SESSION_LIMIT, Code.DRAINING, Code.STAGE_LOST])
def test_a_cloud_that_is_lost_full_or_broken_is_the_last_choice(code: Code) -> None:
    """Another is better, itself is better than none."""
    assert after(code, 0).choose([True, True], 0.0) == 1
    assert after(code, 1).choose([True, True], 0.0) == 0
    assert after(code, 0).choose([True, False], 0.0) == 0
    assert after(code, 0).choose([False, False], 0.0) is None


def test_a_lost_connection_goes_back_to_what_is_kept() -> None:
    """Where its keys and values are, nothing has to be replayed; if that is not there, to the first that is."""
    recovery = after(Code.UPSTREAM_LOST, 2)
    recovery.keep(Kept(2, "token", 5, 1.0))
    assert recovery.choose([True, True, True], 0.0) == 2
    assert recovery.choose([True, True, False], 0.0) == 0
    assert recovery.choose([True, True, True], 1.0) == 0, "for a while"
    assert recovery.kept_at(2, 0.5) is not None and recovery.kept_at(0, 0.5) is recovery.kept_at(2, 1.5) is None
    moved = after(Code.STAGE_LOST, 1)
    moved.keep(Kept(1, "token", 5, 1.0))
    assert moved.choose([True, True], 0.0) == 0, "only a loss keeps anything"
    for code, stays in ((Code.SESSION_LIMIT, True), (Code.PREEMPTED, False)):
        recovery.ended(1, SessionFailed(code, "why"), 0.0, 0.0)
        assert (recovery.kept_at(2, 0.5) is not None) is stays


@pytest.mark.parametrize("code", [Code.SESSION_LIMIT, Code.STAGE_LOST, Code.UPSTREAM_LOST])
@pytest.mark.parametrize("retry_after_s", [None, 0.0, 1.0])
def test_every_cloud_is_tried_before_one_is_tried_again(code: Code, retry_after_s: float | None) -> None:
    """Two that fail it, or ask it to wait, do not keep it from the third; after new rows the order is as named."""
    recovery = after(code, 0, retry_after_s)
    tried = [0]
    for _ in range(3):
        chosen = recovery.choose([True] * 4, 0.1)
        assert chosen is not None and recovery.wait_s(chosen, 0.1) == 0
        tried.append(chosen)
        recovery.ended(chosen, failed(code, retry_after_s), 0.1, 0.0)
    assert tried == [0, 1, 2, 3]
    assert recovery.choose([True] * 4, 0.1) == 0
    recovery.progressed()
    recovery.ended(3, failed(Code.UPSTREAM_LOST), 10.0, 0.0)
    assert recovery.choose([True] * 4, 10.0) == 0


def test_of_several_that_ask_to_wait_the_soonest_is_waited_for() -> None:
    """Whatever the order."""
    recovery = after(Code.SESSION_LIMIT, 0, 8.0)
    recovery.ended(1, failed(Code.SESSION_LIMIT, 2.0), 0.0, 0.0)
    assert recovery.choose([True, True], 0.0) == 1 and recovery.wait_s(1, 0.0) == 2.0


def test_a_cloud_that_did_not_answer_is_not_asked_again() -> None:
    """Another is; when there is no other, the session fails with what happened."""
    assert after(Code.TIMEOUT, 0).choose([True, False, True], 0.0) == 2
    assert after(Code.TIMEOUT, 0).choose([False, False, False], 0.0) is None
    with pytest.raises(SessionFailed) as raised:
        after(Code.TIMEOUT, 0).choose([True, False], 0.0)
    assert raised.value.code is Code.TIMEOUT


def test_rows_that_bring_clouds_down_are_not_taken_to_all_of_them() -> None:
    """After three failures without a new answer in between it is over, with the last one; a new answer counts anew."""
    recovery = Recovery(WITHIN_S, ROOM_S)
    recovery.began(0.0)
    for attach in range(MAX_ATTACHES):
        assert recovery.verdict(1.0) is None
        recovery.ended(attach, failed(Code.INTERNAL), 1.0, 0.0)
    last = recovery.verdict(1.0)
    assert last is not None and last.code is Code.INTERNAL
    recovery.progressed()
    assert recovery.verdict(1.0) is None and recovery.failure is None


@pytest.mark.parametrize("code", [Code.UPSTREAM_LOST, Code.STAGE_LOST])
def test_rows_that_kill_clouds_are_not_taken_to_them_for_ever(code: Code) -> None:
    """Losses that these rows may be to blame for are counted until new rows are answered."""
    recovery = Recovery(WITHIN_S, ROOM_S)
    recovery.began(0.0)
    for _ in range(3):
        for _ in range(MAX_LOSSES - 1):
            recovery.ended(0, failed(code, 1.0), 1.0, 0.0, suspect=True)
            recovery.ended(1, failed(code, 1.0), 1.0, 0.0)
            assert recovery.verdict(1.0) is None
        recovery.progressed()
        recovery.began(1.0)
    for cloud in range(MAX_LOSSES):
        assert recovery.verdict(1.0) is None
        recovery.ended(cloud, failed(code, 1.0), 1.0, 0.0, suspect=True)
    last = recovery.verdict(1.0)
    assert last is not None and last.code is code


def test_a_place_that_is_there_is_tried_however_short_the_time() -> None:
    """Once; what was given up while nobody waited is not too late at once."""
    recovery = Recovery(0.0, 0.0)
    recovery.ended(0, failed(Code.EVICTED), 0.0, 0.0)
    recovery.began(100.0)
    assert recovery.verdict(100.0) is not None, "nowhere to go"
    assert recovery.verdict(100.0, place=True) is None
    recovery.ended(0, failed(Code.EVICTED), 100.0, 0.0)
    assert recovery.verdict(100.0, place=True) is not None


@pytest.mark.parametrize("code", [Code.UPSTREAM_LOST, Code.PREEMPTED, Code.EVICTED, Code.SESSION_LIMIT, Code.DRAINING])
def test_losses_and_lack_of_room_are_limited_by_time_only(code: Code) -> None:
    """However many they are."""
    recovery = after(code)
    for _ in range(20):
        recovery.ended(0, failed(code), 1.0, 0.0)
    assert recovery.verdict(29.0) is None
    limit = ROOM_S if code in (Code.PREEMPTED, Code.SESSION_LIMIT) else WITHIN_S
    assert recovery.deadline() == limit and recovery.verdict(limit - 0.1) is None
    late = recovery.verdict(limit)
    assert late is not None and late.code is code


def test_time_runs_from_the_first_wait_to_the_next_new_row() -> None:
    """Attaching in vain does not begin it anew, and nobody waiting is no time at all."""
    recovery = Recovery(WITHIN_S, ROOM_S)
    recovery.ended(0, failed(Code.UPSTREAM_LOST), 0.0, 0.0)
    assert recovery.verdict(1000.0) is None
    recovery.began(1000.0)
    recovery.ended(0, failed(Code.UPSTREAM_LOST), 1020.0, 0.0)
    recovery.began(1020.0)
    assert recovery.verdict(1030.0) is not None
    recovery.progressed()
    recovery.began(1030.0)
    assert recovery.verdict(1050.0) is None


def test_who_was_told_to_wait_waits_there_and_nowhere_else() -> None:
    """As long as said and up to half longer; where nothing is said, a moment for lack of room and none otherwise."""
    recovery = after(Code.SESSION_LIMIT, 0, 2.0)
    assert recovery.wait_s(0, 0.5) == 1.5 and recovery.wait_s(1, 0.5) == 0.0 and recovery.wait_s(0, 3.0) == 0.0
    recovery.ended(0, failed(Code.SESSION_LIMIT, 2.0), 0.0, 0.999)
    assert 2.9 < recovery.wait_s(0, 0.0) < 3.0
    assert after(Code.PREEMPTED).wait_s(0, 0.0) == ROOM_AFTER_S
    assert after(Code.EVICTED).wait_s(0, 0.0) == 0.0


def test_a_stage_that_is_being_started_again_is_waited_for() -> None:
    """Being told to come back is no failed attach."""
    recovery = after(Code.STAGE_LOST)
    for second in range(20):
        recovery.ended(0, failed(Code.STAGE_LOST, 1.0), float(second), 0.0)
        assert recovery.verdict(float(second)) is None


@pytest.mark.parametrize("code", [Code.NOT_FINITE, Code.SHAPE_MISMATCH, Code.TOKEN_LIMIT])
def test_what_would_come_again_is_final(code: Code) -> None:
    """Replaying such rows elsewhere changes nothing."""
    verdict = after(code).verdict(0.0)
    assert verdict is not None and verdict.code is code


@pytest.mark.parametrize("retry_after_s", [None, 0.0])
def test_a_wait_of_nothing_is_as_good_as_none(retry_after_s: float | None) -> None:
    """A cloud server that says to come back at once is not asked for ever, nor over and over while it has no room."""
    recovery = after(Code.INTERNAL, 0, retry_after_s)
    for _ in range(MAX_ATTACHES - 1):
        assert recovery.verdict(0.0) is None
        recovery.ended(0, failed(Code.INTERNAL, retry_after_s), 0.0, 0.0)
    verdict = recovery.verdict(0.0)
    assert verdict is not None and verdict.code is Code.INTERNAL
    for code in (Code.PREEMPTED, Code.SESSION_LIMIT):
        assert after(code, 0, retry_after_s).wait_s(0, 0.0) == ROOM_AFTER_S
