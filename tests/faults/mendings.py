"""For each row what mends it, and a small change of the sources that takes that out: a test of the row must fail then.

Where no such change can be tried by itself the reason stands in ``BY_HAND``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mending:
    """One mending.

    Attributes:
        row: the row that it belongs to.
        what: what it does.
        file: of the product, from the root.
        old, new: what stands there once, and what takes the mending out.
        test: below ``tests/``, which fails then.
        within_s: where that test would wait for ever it is ended after so long, which counts as failed.
    """

    row: str
    what: str
    file: str
    old: str
    new: str
    test: str
    within_s: float = 90.0


MENDINGS: Final = (
    Mending(
        "F1",
        "requests of an agent that is gone end with an error",
        "gateway/roster.py",
        "        link.lost()\n",
        "",
        "gateway/test_delivery.py::test_the_loss_of_an_agent_is_told_in_both_ways",
    ),
    Mending(
        "F2",
        "what a cloud keeps of a lost connection is asked for again",
        "device_agent/cloud/place.py",
        "self._recovery.keep(attachment.kept(place))",
        "self._recovery.keep(None)",
        "device_agent/test_no_token_lost.py::test_a_lost_connection_is_resumed[10]",
    ),
    Mending(
        "F3",
        "rows are replayed to another cloud",
        "device_agent/cloud/place.py",
        "        if failure.code not in REPLAYABLE:\n            self._failed(failure)\n",
        "        if failure.code in LOSSES or failure.code not in REPLAYABLE:\n            self._failed(failure)\n",
        "device_agent/test_no_token_lost.py::test_another_cloud_takes_over[9]",
    ),
    Mending(
        "F4",
        "who waits for a cloud is told after a while that none comes",
        "device_agent/cloud/recovery.py",
        "        if self._began is None or now < self.deadline() or (place and self._untried):\n",
        "        if True:\n",
        "device_agent/test_no_token_lost.py::test_nobody_comes_back",
        40.0,
    ),
    Mending(
        "F5",
        "a device dials its gateway again",
        "device_agent/redial.py",
        "    while True:\n        began = loop.time()\n",
        "    for _ in range(1):\n        began = loop.time()\n",
        "device_agent/test_redial.py::test_waits_grow_while_nobody_answers",
    ),
    Mending(
        "F6",
        "a peer that says nothing is given up",
        "wire/connection.py",
        "        if now - self._received_at >= DEAD_AFTER_S:\n",
        "        if False:\n",
        "wire/test_connection.py::test_silence_is_death",
    ),
    Mending(
        "F6",
        "a member that says nothing is given up",
        "peers/reader.py",
        "        if monotonic() - quiet_from >= self._silent_s:\n",
        "        if False:\n",
        "peers/test_fabric.py::test_who_says_nothing_is_lost_and_who_pulses_is_not",
        60.0,
    ),
    Mending(
        "F7",
        "a word passes between the parts of what is long",
        "wire/parts.py",
        "    return size > PART_BYTES\n",
        "    return False\n",
        "wire/test_outbox.py::test_a_word_passes_between_the_parts_of_a_long_frame",
    ),
    Mending(
        "F8",
        "a peer that takes nothing is given up",
        "wire/stream.py",
        "            if self._send_by is not None and now >= self._send_by:\n",
        "            if False:\n",
        "wire/test_stream.py::test_a_peer_that_never_reads_is_given_up",
        60.0,
    ),
    Mending(
        "F9",
        "who has asked a redis that fails goes on",
        "gateway/registry/line.py",
        "            finally:\n                for _, asked in batch:\n                    _settle(asked, None)\n",
        "            finally:\n                pass\n",
        "gateway/test_redis_line.py::test_nobody_waits_for_a_redis_that_lies",
        20.0,
    ),
    Mending(
        "F10",
        "messages are numbered",
        "wire/connection.py",
        "        if number != self._received_frames:\n",
        "        if False:\n",
        "wire/test_connection.py::test_a_frame_out_of_order_ends_the_connection",
    ),
    Mending(
        "F11",
        "rows that are not finite end their session",
        "cloud_server/stages/layer_step.py",
        "    if bool(torch.isfinite(outputs).all()):\n",
        "    if True:\n",
        "cloud_server/test_engine.py::test_nan_ends_its_session_only",
    ),
    Mending(
        "F12",
        "the youngest session gives its pages up",
        "cloud_server/engine/steps.py",
        "            ended, state = victim(ledger.entries, ledger.pages) or (key, SessionState.OPEN)\n",
        "            ended, state = key, SessionState.OPEN\n",
        "cloud_server/test_engine.py::test_the_youngest_gives_way_when_pages_run_out",
    ),
    Mending(
        "F13",
        "connections go by a clock that nobody sets",
        "wire/stream.py",
        "        self._clock = asyncio.get_running_loop().time\n",
        '        day, begun = __import__("time").time, asyncio.get_running_loop().time()\n'
        "        self._clock = lambda since=day(): begun + day() - since\n",
        "system/test_split_sites.py::test_clocks_jump",
        300.0,
    ),
    Mending(
        "F14",
        "an agent is told that nobody waits any more",
        "gateway/agents.py",
        "                    self.stream.post(Cancel(room.ticket.number))\n",
        "                    pass\n",
        "gateway/test_delivery.py::test_a_client_that_disconnects_cancels",
    ),
    Mending(
        "F15",
        "a device hears that its cloud drains",
        "device_agent/cloud/link.py",
        "            self.drains.set()\n",
        "",
        "device_agent/test_no_token_lost.py::test_a_draining_cloud_is_left[True]",
        60.0,
    ),
    Mending(
        "F16",
        "frames say their version",
        "wire/frames.py",
        "    if version != PROTOCOL_VERSION:\n",
        "    if False:\n",
        "wire/test_frames.py::test_another_version_is_named",
    ),
    Mending(
        "F17",
        "devices that lost the same server come back spread out",
        "wire/backoff.py",
        "    return random * min(LONGEST_S",
        "    return min(LONGEST_S",
        "wire/test_pure.py::test_delays_are_bounded_and_spread",
    ),
    Mending(
        "F18",
        "each place of a session has a number that was never used",
        "device_agent/cloud/link.py",
        "        self._numbers += 1\n",
        "        self._numbers = 1\n",
        "device_agent/test_no_token_lost.py::test_a_session_that_the_cloud_gives_up_is_replayed",
    ),
    Mending(
        "F19",
        "lines for a log that blocks are bounded and dropped",
        "service/lines.py",
        "        if self._descriptor is None or self._waiting.qsize() >= MAX_WAITING:\n",
        "        if self._descriptor is None:\n",
        "service/test_lines.py::test_a_reader_that_has_stopped_costs_lines_and_no_time",
    ),
    Mending(
        "F19",
        "a step that memory is short for is halved",
        "cloud_server/stages/layer_step.py",
        "            if not _out_of_memory(error):\n",
        "            if True:\n",
        "cloud_server/test_engine.py::test_out_of_memory_makes_smaller_steps",
    ),
    Mending(
        "F20",
        "a group that lost a member lives again",
        "device_agent/group/lives/living.py",
        "        except PeerLost as error:\n            self._lost(group, plan, str(error), error.rank or 0)\n",
        "        except PeerLost:\n            raise\n",
        "device_agent/group/test_host.py::test_a_lie_ends_the_liars_part_and_no_request",
    ),
    Mending(
        "S1",
        "what does not begin as a frame is none",
        "wire/frames.py",
        "    if magic != MAGIC:\n",
        "    if False:\n",
        "wire/test_frames.py::test_other_formats_are_refused",
    ),
    Mending(
        "S2",
        "no dimension is 0",
        "wire/frames.py",
        "        if 0 in shape:\n",
        "        if False:\n",
        "wire/test_frames.py::test_zero_and_many_dimensions_are_refused",
    ),
    Mending(
        "S3",
        "weights are compared",
        "wire/hello.py",
        "    if device.digest != cloud.digest:\n",
        "    if False:\n",
        "wire/test_hello.py::test_a_mismatch_says_which",
    ),
    Mending(
        "S4",
        "pages that held NaN are cleared",
        "cloud_server/engine/upkeep.py",
        "            self.unclean.mark(table, stretch.span.start, stretch.span.end, kept)\n",
        "            pass\n",
        "cloud_server/test_unclean.py",
    ),
    Mending(
        "S5",
        "a message has a largest size",
        "wire/connection.py",
        "            if len(data) > (GREETING_BYTES if greeting else MESSAGE_BYTES):\n",
        "            if False:\n",
        "wire/test_connection.py::test_before_the_hello_is_over_only_little_is_decoded",
    ),
    Mending(
        "S6",
        "who says no hello is closed out",
        "wire/connection.py",
        "        if self.state is State.GREETING and now - self._began >= HELLO_WITHIN_S:\n",
        "        if False:\n",
        "wire/test_connection.py::test_no_hello_in_time",
    ),
    Mending(
        "S7",
        "credentials are compared",
        "wire/hello.py",
        "    return same_secret(given, expected) if expected else not needed\n",
        "    return True\n",
        "wire/test_hello.py::test_a_stranger_learns_nothing_of_the_model",
    ),
    Mending(
        "S8",
        "a session goes on for whoever has its connection's token",
        "cloud_server/device_link.py",
        "self._tokens.get(message.token)\n",
        "next(iter(self._tokens.values()), None)\n",
        "cloud_server/test_session_mistakes.py::test_a_session_is_resumed_by_its_own_token_alone",
    ),
    Mending(
        "S8",
        "nobody resumes where the session never was",
        "cloud_server/engine/ledger.py",
        "        if not 0 <= position <= entry.position:\n            raise SessionFailed(\n"
        '                Code.BAD_POSITION, f"cannot resume',
        '        if False:\n            raise SessionFailed(\n                Code.BAD_POSITION, f"cannot resume',
        "cloud_server/test_ledger.py::test_resuming_an_orphan",
    ),
    Mending(
        "S9",
        "forwards of a session are numbered",
        "cloud_server/engine/ledger.py",
        "        if sequence != entry.sequence:\n",
        "        if False:\n",
        "cloud_server/test_ledger.py::test_forwards_come_in_order",
    ),
    Mending(
        "S10",
        "a conversation is its tenant's",
        "device_agent/answering/conversations.py",
        "            if (each.tenant, each.kind) == (tenant, kind) and",
        "            if each.kind == kind and",
        "device_agent/test_turns.py::test_another_tenant_shares_nothing",
    ),
    Mending(
        "S11",
        "the number of answers is bounded",
        "gateway/parsing.py",
        "    if len(prompts) * n > MAX_CHOICES:\n",
        "    if False:\n",
        "gateway/test_parsing.py::test_a_bad_member_of_a_completion_is_named",
    ),
    Mending(
        "S12",
        "a body has a largest size",
        "gateway/body.py",
        "        if size > self._max_bytes:\n            raise _too_large(self._max_bytes)\n"
        "        return bytes(body)\n",
        "        return bytes(body)\n",
        "gateway/test_body.py::test_a_body_over_the_limit_is_413",
    ),
    Mending(
        "S13",
        "what a form has is counted before it is compiled",
        "device_agent/answering/form_limits.py",
        "        if counts[name] > most:\n",
        "        if False:\n",
        "device_agent/test_form_limits.py::test_members_count_all_together",
    ),
    Mending(
        "S14",
        "an image's address is not fetched, and that is said",
        "device_agent/answering/images.py",
        '        raise _refused(name, "is an address, and nothing is fetched: send the image itself, as a data URL")\n',
        '        return __import__("urllib.request").request.urlopen(url).read()\n',
        "gateway/test_classify.py::test_what_is_no_image_is_refused",
    ),
    Mending(
        "S15",
        "pages of other sites are refused",
        "service/addresses.py",
        "def is_foreign(host: str | None, *, on_loopback: bool, allowed: Collection[str] = ()) -> bool:\n",
        "def is_foreign(host: str | None, *, on_loopback: bool, allowed: Collection[str] = ()) -> bool:\n"
        "    return False\n",
        "gateway/test_origins.py::test_refusals",
    ),
    Mending(
        "S16",
        "a mistake of ours is told without its text",
        "gateway/door.py",
        '                told = response_to(scope["path"], errors.internal(), state["request_id"])\n'
        "                await told(scope, receive, stamped)\n",
        "                raise\n",
        "gateway/test_door.py::test_a_bug_is_500_without_details",
    ),
    Mending(
        "S17",
        "what gateways say in redis is sealed",
        "gateway/registry/seal.py",
        "    return inside if hmac.compare_digest(seal, _seal(token, purpose, inside)) else None\n",
        "    return inside\n",
        "gateway/test_fleet.py::test_strangers_in_redis_are_not_heard",
    ),
    Mending(
        "S18",
        "members prove that they know the secret",
        "peers/secret.py",
        "    if not hmac.compare_digest(said.proof, _of_member(secret, asked, said.name, said.seat, said.nonce)):\n",
        "    if False:\n",
        "peers/test_rendezvous.py::test_strangers_get_nothing_and_keep_nobody_out",
    ),
    Mending(
        "S19",
        "frames are padded where both sides have said so",
        "wire/connection.py",
        "            self.padding.pad(data)\n",
        "            pass\n",
        "cloud_server/test_padded_frames.py::test_tokens_are_the_same_and_lengths_are_few",
    ),
)

BY_HAND: Final[Mapping[str, str]] = {
    "S20": "locks and images are data: their tests compare them with what is installed",
}
"""Rows without a mending here, and why."""
