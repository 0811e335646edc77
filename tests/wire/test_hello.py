"""Two sides that do not fit are told apart by name."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from wire.errors import Code
from wire.hello import CloudIdentity, admitted, check_device, same_secret
from wire.session_messages import DeviceHello

CLOUD = CloudIdentity("model", "sha256:aa", 2, 10, 64, "float32", credential="secret")
DEVICE = DeviceHello("device", "secret", "model", "sha256:aa", 2, 10, 64, "float32")


def test_a_fitting_device_is_welcome() -> None:
    """No reason to refuse; an open cloud takes any credential."""
    assert check_device(CLOUD, DEVICE) is None
    anybody = CloudIdentity("model", "sha256:aa", 2, 10, 64, "float32")
    assert check_device(anybody, msgspec.structs.replace(DEVICE, credential="whatever")) is None


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"credential": "guess"}, Code.UNAUTHORIZED, "credential"),
        ({"credential": ""}, Code.UNAUTHORIZED, "credential"),
        ({"model": "other"}, Code.MODEL_MISMATCH, "other"),
        ({"digest": "sha256:bb"}, Code.DIGEST_MISMATCH, "sha256:bb"),
        ({"first_layer": 1}, Code.SPLIT_MISMATCH, "--split"),
        ({"last_layer": 12}, Code.SPLIT_MISMATCH, "12"),
        ({"hidden_size": 32}, Code.SPLIT_MISMATCH, "32"),
        ({"dtype": "bfloat16"}, Code.DTYPE_MISMATCH, "--dtype"),
    ],
)
def test_a_mismatch_says_which(change: dict[str, object], code: Code, word: str) -> None:
    """Code and message name what does not fit."""
    refusal = check_device(CLOUD, msgspec.structs.replace(DEVICE, **change))
    assert refusal is not None and refusal.code is code and word in refusal.message


def test_a_stranger_learns_nothing_of_the_model() -> None:
    """A wrong credential is refused before anything else is compared."""
    refusal = check_device(CLOUD, msgspec.structs.replace(DEVICE, credential="guess", model="other"))
    assert refusal is not None and refusal.code is Code.UNAUTHORIZED and "model'" not in refusal.message


def test_secrets_compare() -> None:
    """Equal or not, of any length and any characters."""
    assert same_secret("a\u00e9\ud800", "a\u00e9\ud800")
    assert not same_secret("", "a")
    assert not same_secret("a", "ab")


@pytest.mark.parametrize("expected", ["", "secret"])
def test_certificates_do_instead_of_tokens(expected: str) -> None:
    """One that was verified is enough; where they are needed an empty credential is none."""
    assert admitted("", expected, "kitchen", needed=True)
    assert not admitted("", expected, None, needed=True)
    assert not admitted("guess", expected, None, needed=True)
    assert admitted("secret", "secret", None, needed=True)
    assert admitted("anything", "", None, needed=False)
    asks = dataclasses.replace(CLOUD, credential=expected, certificates=True)
    refusal = check_device(asks, msgspec.structs.replace(DEVICE, credential=""))
    assert refusal is not None and "--tls-cert" in refusal.message
    assert check_device(asks, msgspec.structs.replace(DEVICE, credential=""), "kitchen") is None
