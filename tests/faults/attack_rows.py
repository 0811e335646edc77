"""The list of attacks, S1 to S20."""

from __future__ import annotations

from typing import Final

from faults.row import Row, door

_ATTACK: Final = "system/test_attacks.py::"


def _closed(row: str) -> str:
    return f"{_ATTACK}test_who_speaks_wrongly_is_closed_out[{row}-"


def _alone(row: str) -> str:
    return f"{_ATTACK}test_a_session_ends_alone[{row}-"


ATTACKS: Final = (
    Row(
        "S1",
        "code in data",
        "pickle, zip, numpy, safetensors, random bytes as frames; a look at all sources",
        "closed with 1007; nothing that runs what it reads is called anywhere",
        door(_closed("S1"), "wire/test_frames.py::test_other_formats_are_refused", "faults/test_no_code_in_data.py"),
    ),
    Row(
        "S2",
        "headers that lie",
        "products that overflow, dimensions of 0, payloads too short and too long",
        "refused before memory is taken",
        door(
            _closed("S2"),
            "wire/test_frames.py::test_a_shape_that_lies_is_refused",
            "wire/test_frames.py::test_zero_and_many_dimensions_are_refused",
            "split_model/test_packed_rows.py",
        ),
    ),
    Row(
        "S3",
        "another model",
        "hellos with other weights, layers, dtype; rows of another width",
        "refused with the field that differs; one session ends",
        door(_closed("S3"), _alone("S3"), "wire/test_hello.py::test_a_mismatch_says_which"),
    ),
    Row(
        "S4",
        "rows that are not finite",
        "NaN and infinity in one session of a step",
        "that session ends alone",
        door(
            _alone("S4"), "cloud_server/test_engine.py::test_nan_ends_its_session_only", "cloud_server/test_unclean.py"
        ),
    ),
    Row(
        "S5",
        "size",
        "messages over the limit, ten thousand empty ones, deflate",
        "1009, 1007; compression is not to be had",
        door(
            _closed("S5"),
            f"{_ATTACK}test_compression_is_not_to_be_had",
            "wire/test_connection_parts.py",
            "wire/test_outbox.py::test_too_much_at_once_is_refused_before_it_comes",
        ),
    ),
    Row(
        "S6",
        "before the hello",
        "work before it, none at all, a hundred silent sockets",
        "closed; who belongs there is served meanwhile",
        door(
            _closed("S6"),
            f"{_ATTACK}test_who_says_nothing_goes",
            "cloud_server/test_server_doors.py",
            "gateway/test_device_socket.py",
        ),
    ),
    Row(
        "S7",
        "credentials",
        "wrong, missing, expired, revoked; servers without a secret beyond loopback",
        "401 or 4401; no start",
        door(
            _closed("S7"),
            "system/test_hindrances.py::test_a_cloud_that_cannot_be_trusted",
            "system/test_bad_input.py::test_keys_that_are_worth_nothing",
            "wire/test_hello.py::test_secrets_compare",
            "gateway/test_config.py::test_a_token_is_needed_beyond_loopback",
            "system/test_serve_command.py::test_beyond_loopback_a_token_is_required",
        ),
    ),
    Row(
        "S8",
        "somebody else's session",
        "a guessed token and number, another connection's session",
        "unknown to whoever does not have it",
        door(
            _alone("S8"),
            "cloud_server/test_session_mistakes.py::test_a_bad_frame_ends_only_its_session",
            "cloud_server/test_session_mistakes.py::test_a_session_is_resumed_by_its_own_token_alone",
            "cloud_server/test_ledger.py::test_resuming_an_orphan",
        ),
    ),
    Row(
        "S9",
        "replay and order",
        "a frame twice, a gap, a stale position",
        "the connection or the session ends; never a wrong position",
        door(
            _closed("S9"),
            _alone("S9"),
            "wire/test_connection.py::test_a_frame_out_of_order_ends_the_connection",
            "cloud_server/test_session_mistakes.py::test_a_repeated_forward_is_refused",
        ),
    ),
    Row(
        "S10",
        "another tenant's keys and values",
        "the same prompt of two tenants, pages used again",
        "nothing is shared, nothing of before is read",
        door("device_agent/test_turns.py", "cloud_server/test_forks.py", "cloud_server/test_unclean.py"),
    ),
    Row(
        "S11",
        "numbers of the API",
        "n of 10^9, negative and huge limits, NaN, ids outside the vocabulary",
        "400 at once; others are answered",
        door("system/test_bad_input.py", "gateway/test_parsing.py"),
    ),
    Row(
        "S12",
        "bodies of the API",
        "too long, never ending, deep, lone surrogates",
        "400 or 413, memory stays flat",
        door(
            "system/test_bad_input.py",
            "gateway/test_body.py",
            "gateway/test_parsing.py::test_the_worst_bodies_hold_nobody_up",
        ),
    ),
    Row(
        "S13",
        "templates and grammars",
        "schemas and expressions that explode",
        "400 before they are compiled; no template of a client's",
        door("device_agent/test_form_limits.py", "device_agent/test_grammars.py", "gateway/test_forms.py"),
    ),
    Row(
        "S14",
        "addresses and paths",
        "images by address, a model that is a path, a cloud that sends devices elsewhere",
        "400 and 404; nothing is fetched; only addresses that were given are dialled",
        door(
            f"{_ATTACK}test_nothing_is_fetched",
            "gateway/test_classify.py",
            "device_agent/test_departures.py::test_a_cloud_server_may_say_where_to",
            "device_agent/test_group_address.py",
        ),
    ),
    Row(
        "S15",
        "browsers",
        "foreign Origins, foreign Host names, /drain",
        "403",
        door(
            f"{_ATTACK}test_pages_of_others_get_nothing",
            "gateway/test_origins.py",
            "gateway/test_door.py",
            "cloud_server/test_hosts.py",
            "cloud_server/test_operators.py",
        ),
    ),
    Row(
        "S16",
        "texts of errors",
        "a mistake of ours, refusals, failures of agents",
        "no path, object, prompt or key in answer and log",
        door(
            "gateway/test_door.py::test_a_bug_is_500_without_details",
            "gateway/test_app_failures.py",
            "system/test_bad_input.py::test_bad_requests",
            "system/test_privacy.py",
        ),
    ),
    Row(
        "S17",
        "the registry",
        "a redis full of nonsense, forged and huge records",
        "sealed, bounded, strict; serving goes on",
        door("gateway/test_redis_line.py", "gateway/test_fleet.py", "gateway/test_key_book.py"),
    ),
    Row(
        "S18",
        "equals that lie",
        "strangers at the rendezvous and at links, members that send what is wrong",
        "nobody gets a row without a proof; who lies is ended by name",
        door(
            "peers/test_rendezvous.py",
            "peers/test_greeting.py",
            "peers/test_fabric_lies.py",
            "peers/test_secure_links.py",
            "system/test_group_devices.py",
        ),
    ),
    Row(
        "S19",
        "sizes and times of frames",
        "prompts of several lengths, watched on the way to cloud and gateway, with and without --pad-frames",
        "without it lengths tell prompts to the token, with it they are alike; when something passes shows",
        door(
            "system/test_frame_sizes.py",
            "cloud_server/test_padded_frames.py",
            "wire/test_padding.py",
            "device_agent/auditing/test_rhythm.py",
        ),
    ),
    Row(
        "S20",
        "what is installed",
        "locks, images, lists of parts",
        "hashes, no root, nothing fetched at the start",
        door("service/test_locks.py", "k8s/test_images.py", "k8s/test_sbom.py"),
    ),
)
