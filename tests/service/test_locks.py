"""The locks: what is installed is what was locked, down to its bytes."""

from __future__ import annotations

import re

import pytest
from processes import ROOT

_REQUIREMENT = re.compile(r"(?P<name>[a-z0-9.-]+)==[^ ]+( ; [^\\]+)?( \\)?")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def entries(name: str) -> dict[str, list[str]]:
    """The first line of each requirement, and its hashes."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith(" "):
            found[next(reversed(found))].append(line)
        elif not line.startswith("#"):
            found[line] = []
    return found


LEAST = {"requirements.lock": 30, "requirements-dev.lock": 30, "docker/gateway.lock": 20, "docker/traces.lock": 10}


@pytest.mark.parametrize("name", LEAST)
def test_every_requirement_has_hashes(name: str) -> None:
    """One without any would make pip refuse all of the file; PyTorch and what its CUDA builds bring are not in it."""
    found = entries(name)
    assert len(found) > LEAST[name]
    for requirement, hashes in found.items():
        match = _REQUIREMENT.fullmatch(requirement)
        assert match is not None and hashes and all(map(_HASH.fullmatch, hashes)), requirement
        assert not match["name"].startswith(("torch", "triton", "nvidia-", "cuda-")), requirement


def test_what_images_add_fits_what_they_have() -> None:
    """Packages that are in two locks of an image have one version: pip would refuse both."""
    versions = [dict(each.split("==") for each in map(_plain, entries(name))) for name in LEAST]
    for one in versions:
        for name, version in versions[-1].items():
            assert one.get(name, version) == version, name


def _plain(requirement: str) -> str:
    return requirement.split(" ")[0]


def test_pytorch_is_pinned_in_a_file_of_its_own() -> None:
    """A single version, which is what `make lock` resolves with."""
    assert [re.sub(r"==.*", "", each) for each in entries("requirements-torch.lock")] == ["torch"]
