"""A group's profile as a file from other machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from group_plans import TINY, profile

from device_agent.planning.profile import OPTIONAL, read, written
from device_agent.planning.profile import Collective as Measured
from device_agent.planning.table import Table

GATHER = Measured("all_gather", 3, Table(((1000, 100000),), (0.001, 0.01)))
PROFILE = profile(TINY, [1e9, 2e9, 3e9], 1e7, collectives=(GATHER,))


def test_what_is_written_is_read() -> None:
    """All of it, and for its own model."""
    assert read(written(PROFILE)) == PROFILE
    assert read(written(PROFILE).encode(), digest=PROFILE.digest) == PROFILE


def test_another_models_profile_is_refused() -> None:
    """By both digests."""
    with pytest.raises(ValueError, match=f"{PROFILE.digest}.*{'0' * 64}"):
        read(written(PROFILE), digest="0" * 64)


def test_what_is_optional_may_be_missing() -> None:
    """The order of Eq. 8 need not be measured."""
    found = json.loads(written(PROFILE))
    for device in found["devices"]:
        for part in OPTIONAL:
            del device["seconds"][part]
    assert "reordered" not in read(json.dumps(found)).devices[0].seconds


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = to

    return change


def _drop(*path: str | int) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for step in path[:-1]:
            found = found[step]
        del found[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("version", to=1), "version is 1"),
        (_drop("digest"), "digest"),
        (_set("colour", to="red"), "colour"),
        (_set("devices", to=[]), "devices must be 1 to 64"),
        (_set("devices", 1, "name", to="a"), "a name of its own"),
        (_set("devices", 0, "name", to=""), "no name"),
        (_set("devices", 0, "memory_bytes", to=-1), "a: memory_bytes"),
        (_set("devices", 0, "memory_bytes", to="much"), r"\$.devices\[0\].memory_bytes"),
        (_set("devices", 0, "byte_cost_s", to=-1), "a: byte_cost_s"),
        (_set("devices", 2, "seconds", "shout", to={"axes": [[1]], "seconds": [1]}), "c: 'shout'"),
        (_drop("devices", 2, "seconds", "query"), "c: nothing was measured of query"),
        (_set("devices", 0, "seconds", "norm", to={"axes": [[1], [1]], "seconds": [1]}), "a: norm must be measured"),
        (_set("devices", 0, "seconds", "norm", to={"axes": [[2, 1]], "seconds": [1, 1]}), "rise"),
        (_drop("links", 0), "no link from a to b"),
        (_set("links", 0, "target", to="z"), "'z'"),
        (_set("links", 0, "bytes_s", to=0), "no bandwidth"),
        (_set("links", 1, to={"source": "a", "target": "b", "bytes_s": 1, "rtt_s": 0}), "two links"),
        (_set("collectives", 0, "kind", to="gossip"), "gossip"),
        (_set("collectives", 0, "devices", to=1), "2 devices"),
        (_set("one_shot_bytes", to=-1), "one_shot_bytes"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_name(change: Callable[[Any], None], says: str) -> None:
    """The message says which field, or whose."""
    found = json.loads(written(PROFILE))
    change(found)
    with pytest.raises(ValueError, match=says):
        read(json.dumps(found))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1e999}', "[" * 100000, b"\xff\xfe"])
def test_what_is_no_profile_is_refused(text: str | bytes) -> None:
    """Whatever it is."""
    with pytest.raises(ValueError, match="no profile"):
        read(text)
