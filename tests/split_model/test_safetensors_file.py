"""The safetensors reader against files that are broken on purpose."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from split_model.errors import BadCheckpoint
from split_model.safetensors_file import SafetensorsFile

TENSORS = {"a": torch.arange(12.0).view(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.ones(2, 2)}
WHOLE = save(TENSORS, {"format": "pt"})
HEADER = json.loads(WHOLE[8 : 8 + struct.unpack("<Q", WHOLE[:8])[0]])
DATA = WHOLE[8 + struct.unpack("<Q", WHOLE[:8])[0] :]


def file_of(path: Path, header: Any, data: bytes = DATA) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def read_all(path: Path) -> None:
    file = SafetensorsFile(path)
    for name, entry in file.entries.items():
        out = torch.empty(entry.shape)
        file.read_into(name, out, None, None)


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**HEADER, name: {**HEADER[name], **fields}}


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    """What safetensors wrote is read back; metadata is ignored."""
    file = SafetensorsFile(file_of(tmp_path / "x", HEADER))
    for name, tensor in TENSORS.items():
        out = torch.empty(tensor.shape)
        file.read_into(name, out, None, None)
        assert torch.equal(out, tensor.float())


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        {},
        {"a": HEADER["a"]},
        {"a": []},
        {"a": {"dtype": "F32"}},
        changed("a", dtype="F31"),
        changed("a", dtype=None),
        changed("a", shape=[3, 5]),
        changed("a", shape=[-3, -4]),
        changed("a", shape=[3.0, 4]),
        changed("a", shape=[True, 12]),
        changed("a", shape=[1] * 20 + [12]),
        changed("a", shape="34"),
        changed("a", data_offsets=[0]),
        changed("a", data_offsets=[48, 0]),
        changed("a", data_offsets=[1 << 80, (1 << 80) + 48]),
        changed("a", data_offsets=HEADER["c"]["data_offsets"]),
        changed("a", extra=1),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, header: Any) -> None:
    """Bad JSON, sizes, offsets, overlaps, gaps and unknown dtypes are BadCheckpoint."""
    with pytest.raises(BadCheckpoint):
        SafetensorsFile(file_of(tmp_path / "x", header))


def test_lengths_that_lie_are_refused(tmp_path: Path) -> None:
    """Too short, too long, and a header length past the file or past any sense."""
    for content in (b"", b"1234567", WHOLE[:-1], WHOLE + b"x", struct.pack("<Q", 1 << 63) + WHOLE[8:], bytes(8)):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(BadCheckpoint):
            SafetensorsFile(tmp_path / "x")
    with pytest.raises(BadCheckpoint):
        SafetensorsFile(tmp_path / "none")
    with pytest.raises(BadCheckpoint):
        SafetensorsFile(tmp_path)


@pytest.mark.parametrize(
    "other", [WHOLE[:-30], save({name: -each for name, each in TENSORS.items()}, {"format": "pt"})]
)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_changes_while_it_is_in_use(other: bytes, replaced: bool, tmp_path: Path) -> None:
    """Shorter, or other weights of the same shapes, copied over it or put in its place: BadCheckpoint, and neither
    garbage nor two models' weights in one."""
    path = file_of(tmp_path / "x", HEADER)
    file = SafetensorsFile(path)
    if replaced:
        (tmp_path / "y").write_bytes(other)
        (tmp_path / "y").replace(path)
    else:
        path.write_bytes(other)
    for name, entry in file.entries.items():
        with pytest.raises(BadCheckpoint, match="has changed"):
            file.read_into(name, torch.empty(entry.shape), None, None)


def test_integer_tensors_are_listed_but_not_read(tmp_path: Path) -> None:
    """A dtype without a float meaning is no reason to refuse the file, only to refuse the tensor."""
    (tmp_path / "x").write_bytes(save({"ids": torch.arange(3), "w": torch.ones(2)}))
    file = SafetensorsFile(tmp_path / "x")
    out = torch.empty(2)
    file.read_into("w", out, None, None)
    with pytest.raises(BadCheckpoint, match="I64"):
        file.read_into("ids", torch.empty(3), None, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4))
def test_mutated_files_are_read_or_refused(tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    """Whatever bytes of a file are changed, it is read or BadCheckpoint; nothing else is ever raised."""
    content = bytearray(WHOLE)
    for at, new in changes:
        content[at : at + len(new)] = new
    (tmp_path / "x").write_bytes(content)
    with contextlib.suppress(BadCheckpoint):
        read_all(tmp_path / "x")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["dtype", "shape", "data_offsets"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 100) | st.floats() | st.sampled_from(["F32", "I64", "BF16", ""]),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
)
def test_mutated_headers_are_read_or_refused(tmp_path: Path, name: str, field: str, value: Any) -> None:
    """Any JSON value in any field is harmless or BadCheckpoint."""
    path = file_of(tmp_path / "x", changed(name, **{field: value}))
    with contextlib.suppress(BadCheckpoint):
        read_all(path)
