"""The fault matrix, F1 to F20."""

from __future__ import annotations

from typing import Final

from faults.row import GROUPS, SPLIT, Row, Tests, every_group, without

NO_CLOUD: Final = "a group has no cloud"
_LOST: Final = "system/test_no_token_lost.py::test_"
_SILENT: Final = tuple(f"system/test_split_faults.py::test_a_fault[{each}]" for each in ("F6", "F6 alone"))


def _split(*tests: str) -> Tests:
    """The same for a plain answer, a second turn and a drafted answer, which these tests ask at once."""
    return dict.fromkeys(SPLIT, tests)


def _split_fault(row: str, *plain: str) -> Tests:
    """The common test of a row, and more for plain answers."""
    found = dict(_split(f"system/test_split_faults.py::test_a_fault[{row}]"))
    return {**found, "plain": (*found["plain"], *plain)}


def _group_fault(row: str) -> Tests:
    return every_group(f"system/test_group_faults.py::test_a_fault[{{mode}}-{row}]")


FAULTS: Final = (
    Row(
        "F1",
        "the device, or a group's portal, dies in the middle of answers",
        "kill -9 of the process",
        "clients get an error and no [DONE]; the cloud frees everything; a new one serves, the same tokens",
        {
            **_split_fault("F1", "system/test_faults.py::test_device_killed_in_the_middle"),
            **_group_fault("F1"),
        },
    ),
    Row(
        "F2",
        "a device's connection to its cloud ends and comes back",
        "both ends of the connection closed by a proxy, the address reachable at once",
        "sessions go on where they were: nothing is sent twice, the same tokens",
        _split_fault("F2", f"{_LOST}a_cut_connection_is_resumed_not_replayed"),
        without(GROUPS, f"{NO_CLOUD}; between members a lost connection is a lost member (F6, F3)"),
    ),
    Row(
        "F3",
        "who computes for others dies: a cloud, a member",
        "kill -9, with rows received and none computed, in the middle of a prompt, at any token",
        "the answer goes on elsewhere, the same tokens",
        {
            **_split_fault(
                "F3",
                f"{_LOST}killed_while_decoding",
                f"{_LOST}killed_at_position_0",
                f"{_LOST}killed_in_the_middle_of_a_prefill",
                f"{_LOST}killed_behind_a_network_that_stands_still",
                f"{_LOST}killed_at_many_positions",
                "system/test_drain.py::test_sessions_of_a_cloud_that_goes_pause_shortly[lost]",
            ),
            **_group_fault("F3"),
        },
    ),
    Row(
        "F4",
        "the last one that computes for others is gone",
        "kill -9 of all clouds, or of all members",
        "503 and when to come back, open answers wait for the next cloud; a portal goes on alone; the same tokens",
        {
            **_split_fault(
                "F4",
                f"{_LOST}killed_and_no_standby",
                "system/test_faults.py::test_the_only_cloud_killed_for_good",
                "system/test_faults.py::test_no_device",
            ),
            **_group_fault("F4"),
        },
    ),
    Row(
        "F5",
        "the gateway dies",
        "kill -9 of the process, one alone and one of two",
        "clients see the connection end; devices find it or the next one again; no session is left over",
        {
            **_split_fault(
                "F5",
                "system/test_faults.py::test_gateway_killed_in_the_middle",
                "system/test_two_gateways.py::test_a_gateway_is_killed",
            ),
            **_group_fault("F5"),
        },
    ),
    Row(
        "F6",
        "the network is gone and nobody is told",
        "nothing forwarded by a proxy; interfaces of a network namespace taken down; a port of a bridge taken down",
        "noticed by the silence within 15 s on both sides; the answer goes on elsewhere, the same tokens",
        {
            **_split(*_SILENT),
            "plain": (*_SILENT, f"{_LOST}a_frozen_network_is_resumed", "system/test_node_loss.py"),
            **every_group("system/test_bad_links.py::test_a_member_is_unplugged_and_comes_back[{mode}]"),
        },
    ),
    Row(
        "F7",
        "the network becomes slow and late",
        "tc tbf at a hundredth of the bandwidth, and a relay that delays by 40 ± 15 ms; a member's port at a fortieth",
        "slower, the same tokens",
        {
            **_split("system/test_bad_links.py::test_the_way_to_the_cloud_becomes_slow_and_late"),
            **every_group("system/test_bad_links.py::test_a_members_link_becomes_slow[{mode}]"),
        },
    ),
    Row(
        "F8",
        "a client, or a device, reads nothing",
        "a socket with a small buffer that is never read, behind an answer of megabytes",
        "it is given up in time; others have the same tokens",
        {
            **_split("system/test_split_sites.py::test_a_client_that_reads_nothing"),
            "plain": (
                "system/test_split_sites.py::test_a_client_that_reads_nothing",
                "cloud_server/test_server.py::test_a_device_that_does_not_read_harms_nobody",
                "wire/test_stream.py::test_a_peer_that_never_reads_is_given_up",
            ),
            **every_group("system/test_group_faults.py::test_a_client_that_reads_nothing[{mode}]"),
        },
    ),
    Row(
        "F9",
        "redis dies, comes back empty, takes no writes, stands still",
        "kill -9, a new redis-server, REPLICAOF, SIGSTOP for 2 s and for longer, with two gateways",
        "no answer notices; what was known still serves; known again within two beats",
        _split("system/test_redis_faults.py::test_redis_breaks"),
        without(GROUPS, "what gateways tell each other does not depend on who answers"),
    ),
    Row(
        "F10",
        "messages are replayed, doubled, swapped, cut, lost and late",
        "a proxy between device and cloud, by seeds",
        "an effect exactly once, or a typed error; never a wrong token",
        {
            **_split("system/test_split_sites.py::test_messages_are_harmed"),
            "plain": (
                "system/test_split_sites.py::test_messages_are_harmed",
                "system/test_frame_faults.py::test_20_seeds",
                "system/test_frame_faults.py::test_20_seeds_in_parts",
                "system/test_frame_faults.py::test_500_seeds",
                "system/test_frame_faults.py::test_faults_and_no_room",
            ),
            **every_group("peers/test_fabric_lies.py"),
        },
    ),
    Row(
        "F11",
        "one session of a step sends NaN, a wrong shape, too much",
        "another device of the same cloud, while answers run",
        "that session ends alone, the others have the same tokens",
        {
            **_split_fault("F11", "cloud_server/test_session_mistakes.py::test_a_bad_frame_ends_only_its_session"),
        },
        without(GROUPS, "all rows are the portal's own; a member that lies is S18"),
    ),
    Row(
        "F12",
        "there are more sessions than pages",
        "clouds with 7 MB of pages; members that have room for a few tokens",
        "sessions end for others' sake and begin again, nobody waits for ever, the same tokens",
        {
            **_split("system/test_split_sites.py::test_there_are_too_few_pages"),
            "lime": ("device_agent/group/test_relieving.py",),
        },
        without(tuple(each for each in GROUPS if each != "lime"), "a group refuses what has no room before it begins"),
    ),
    Row(
        "F13",
        "clocks are wrong, and jump",
        "faketime: an hour on, an hour back, from the start and in the middle of answers",
        "nothing ends early, nobody is taken for dead; certificates and keys go by the clock of who checks them",
        {
            **_split("system/test_split_sites.py::test_clocks_jump"),
            "plain": (
                "system/test_split_sites.py::test_clocks_jump",
                "system/test_clocks.py::test_nothing_else_goes_by_clocks",
                "system/test_clocks.py::test_keys_end_by_the_clock_of_the_gateway",
                "system/test_clocks.py::test_certificates_go_by_the_clock_of_who_checks_them",
            ),
        },
        without(GROUPS, "members go by no clock but the monotonic one; certificates as above"),
    ),
    Row(
        "F14",
        "clients leave",
        "their sockets closed in the middle of a prompt, of an answer, and while they wait",
        "the work ends, everything is free again soon",
        {
            **_split("system/test_split_faults.py::test_clients_that_leave"),
            "plain": ("system/test_split_faults.py::test_clients_that_leave", "system/test_cancel.py"),
            **every_group("system/test_group_faults.py::test_clients_that_leave[{mode}]"),
        },
    ),
    Row(
        "F15",
        "processes are replaced under load",
        "SIGTERM and a successor: clouds, gateways, devices, members",
        "no request fails, the same tokens",
        {
            **_split_fault(
                "F15",
                f"{_LOST}a_drained_cloud_hands_over",
                f"{_LOST}a_rolling_restart_fails_nothing",
                "system/test_stop.py::test_each_process_drains",
                "system/test_drain.py::test_sessions_of_a_cloud_that_goes_pause_shortly[drained]",
            ),
            **_group_fault("F15"),
        },
    ),
    Row(
        "F16",
        "parts of two releases",
        "each part replaced by the release before's, under load; hellos of another version",
        "they work together, or say at the hello that they do not",
        {
            "plain": ("system/test_upgrade.py", "wire/test_frames.py::test_another_version_is_named"),
            "drafted": ("system/test_upgrade.py",),
        },
        {
            "second turn": "as a plain answer: the messages are the same",
            **without(GROUPS, "members of one group run one release; others are refused by the frames' version"),
        },
    ),
    Row(
        "F17",
        "hundreds of devices come back at once",
        "500 connections of devices whose gateway, or cloud, is killed and started again",
        "they come spread out; who asks is answered soon",
        {
            **_split("system/test_herd.py::test_a_cloud_is_lost_by_hundreds_of_devices"),
            "plain": ("system/test_herd.py",),
        },
        without(GROUPS, "portals are devices to the gateway; a group has at most 128 members"),
    ),
    Row(
        "F18",
        "a process stands still and wakes up",
        "SIGSTOP, SIGCONT 20 s later, when it has long been given up",
        "the answer goes on elsewhere; what comes late changes nothing; the same tokens",
        {**_split_fault("F18", f"{_LOST}a_zombie_changes_nothing"), **_group_fault("F18")},
    ),
    Row(
        "F19",
        "disks are full, logs block, memory runs out in a step",
        "a pipe that nobody reads, /dev/full, a read-only home, no room in /dev/shm; an allocation that fails",
        "answers go on, or one step is made smaller; stops stay clean",
        {
            "plain": (
                "system/test_logs_in_the_way.py",
                "system/test_hindrances.py::test_nothing_can_be_written",
                "cloud_server/test_engine.py::test_out_of_memory_makes_smaller_steps",
            ),
            "lime": ("split_model/offload/test_faults.py",),
        },
        {
            **without(("second turn", "drafted"), "as a plain answer: logs know no sessions"),
            **without(
                tuple(each for each in GROUPS if each != "lime"), "logs as above; no weights are read from disks"
            ),
        },
    ),
    Row(
        "F20",
        "a group loses its leader, or members for good",
        "kill -9 of the portal; of all members; a member asked to end",
        "the portal goes on alone; without the portal clients get an error, and a new one forms the group again",
        {mode: _group_fault("F1")[mode] + _group_fault("F4")[mode] + _group_fault("F15")[mode] for mode in GROUPS},
        without(SPLIT, "there is no group"),
    ),
)
