"""Whether two sides that introduce themselves fit together. Pure."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from wire.errors import Code, ConnectionFailed
from wire.session_messages import DeviceHello


def same_secret(given: str, expected: str) -> bool:
    """Whether two credentials are equal, in a time that tells nothing of where they differ."""

    def digest(text: str) -> bytes:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

    return hmac.compare_digest(digest(given), digest(expected))


def admitted(given: str, expected: str, certificate: str | None, *, needed: bool) -> bool:
    """Whether somebody may come in who has shown the secret ``given`` and, where it is not None, a certificate.

    expected: the secret; empty: none is asked, and so anybody may come, unless a certificate is ``needed``.
    """
    if certificate is not None:
        return True
    return same_secret(given, expected) if expected else not needed


@dataclass(frozen=True)
class CloudIdentity:
    """What a cloud server serves and asks of a device.

    Attributes:
        credential: what devices show; empty: nothing, and any may come.
        certificates: a certificate does instead, and is needed where there is no credential.
    """

    model: str
    digest: str
    first_layer: int
    last_layer: int
    hidden_size: int
    dtype: str
    credential: str = ""
    certificates: bool = False


def check_device(cloud: CloudIdentity, device: DeviceHello, certificate: str | None = None) -> ConnectionFailed | None:
    """Why this device cannot be served, the first reason found; None when it can.

    The credential is looked at first: a stranger learns nothing of the model.

    certificate: the name in the one that it has shown.
    """
    if not admitted(device.credential, cloud.credential, certificate, needed=cloud.certificates):
        return ConnectionFailed(
            Code.UNAUTHORIZED,
            "the credential is missing or wrong: start the device with the cloud's --cloud-token"
            + (", or with a --tls-cert of its CA's" if cloud.certificates else ""),
        )
    if device.model != cloud.model:
        return ConnectionFailed(
            Code.MODEL_MISMATCH,
            f"the device runs model '{device.model}', this cloud serves '{cloud.model}': give both the same --model, "
            "or the same --served-model-name first",
        )
    if device.digest != cloud.digest:
        return ConnectionFailed(
            Code.DIGEST_MISMATCH,
            f"the device's weights are {_short(device.digest)}, this cloud's {_short(cloud.digest)}: "
            "use the same revision of the checkpoint on both",
        )
    if (device.first_layer, device.last_layer) != (cloud.first_layer, cloud.last_layer):
        return ConnectionFailed(
            Code.SPLIT_MISMATCH,
            f"the device needs layers {device.first_layer} to {device.last_layer}, this cloud runs "
            f"{cloud.first_layer} to {cloud.last_layer}: give both the same --split and --tail",
        )
    if device.hidden_size != cloud.hidden_size:
        return ConnectionFailed(
            Code.SPLIT_MISMATCH, f"the device's hidden size is {device.hidden_size}, this cloud's {cloud.hidden_size}"
        )
    if device.dtype != cloud.dtype:
        return ConnectionFailed(
            Code.DTYPE_MISMATCH,
            f"the device sends {device.dtype}, this cloud takes {cloud.dtype}: use the same --dtype",
        )
    return None


def check_padding(asked: bool, granted: bool) -> None:
    """Raises ``ConnectionFailed`` where this side has asked for padded frames and the other does not know them: what
    was to be hidden would show."""
    if asked and not granted:
        raise ConnectionFailed(
            Code.VERSION_MISMATCH,
            "the peer cannot pad frames: install the same release there, or leave --pad-frames out",
        )


def _short(digest: str) -> str:
    return digest[:19] + "…" if len(digest) > 20 else digest
