"""Where API keys made with ``trilby keys`` are kept: a file; or redis (``registry.redis_keys``), for all gateways."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gateway.key_book import KeyRecord

IN_REDIS: Final = "redis"
"""What ``--key-store`` says where it is no file."""

LOCKED_WITHIN_S: Final = 5.0
MOST_KEYS: Final = 10_000
MOST_FILE_BYTES: Final = 16 * 2**20

_decode: Final = msgspec.json.Decoder(KeyRecord).decode


class BadKeyStore(Exception):
    """Keys cannot be read or written; the message says where and why, and quotes nothing of them."""


class KeyStore(Protocol):
    """What ``trilby keys`` does. All of it raises ``BadKeyStore``."""

    def read(self) -> list[KeyRecord]:
        """Return all keys."""

    def add(self, record: KeyRecord) -> bool:
        """Add a key; False where there is one of its name."""

    def revoke(self, name: str) -> bool:
        """Remove a key; False where there is none of this name."""


class KeyFile:
    """Keys in a file: a line of JSON for each."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()

    @property
    def stamp(self) -> tuple[int, int, int] | None:
        """Another value once the file is another one; None where there is none."""
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino

    def read(self) -> list[KeyRecord]:
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_FILE_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadKeyStore(f"{self._path} cannot be read: {error.strerror}") from error
        lines = [line for line in data.splitlines() if line.strip()]
        if len(data) > MOST_FILE_BYTES or len(lines) > MOST_KEYS:
            raise BadKeyStore(f"{self._path} is larger than a file of keys may be")
        try:
            return [_decode(line) for line in lines]
        except (msgspec.MsgspecError, ValueError):
            raise BadKeyStore(
                f"{self._path} is no file of keys: each line is one, as 'trilby keys add' writes it"
            ) from None

    def add(self, record: KeyRecord) -> bool:
        with self._alone():
            records = self.read()
            if any(each.name == record.name for each in records):
                return False
            if len(records) >= MOST_KEYS:
                raise BadKeyStore(f"{self._path} has {MOST_KEYS} keys already, as many as it may")
            self._write([*records, record])
            return True

    def revoke(self, name: str) -> bool:
        with self._alone():
            records = self.read()
            left = [each for each in records if each.name != name]
            if len(left) < len(records):
                self._write(left)
            return len(left) < len(records)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other ``trilby keys`` changes the file meanwhile, or a key that it revokes would come back. Its folder is
        locked, since the file itself is replaced."""
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                until = time.monotonic() + LOCKED_WITHIN_S
                while not _locked(folder):
                    if time.monotonic() > until:
                        raise BadKeyStore(f"{self._path} is being changed by another 'trilby keys': try again")
                    time.sleep(0.05)
                yield
            finally:
                os.close(folder)
        except OSError as error:
            raise BadKeyStore(f"{self._path} cannot be written: {error.strerror}") from error

    def _write(self, records: Iterable[KeyRecord]) -> None:
        """Raises OSError."""
        # Readable by its owner only; whoever reads it meanwhile finds the old file or the new one.
        handle, path = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                if (
                    self._path.exists() and os.geteuid() == 0
                ):  # Root changes the gateway's file: it stays the gateway's.
                    about = self._path.stat()
                    os.fchown(file.fileno(), about.st_uid, about.st_gid)
                file.writelines(msgspec.json.encode(each) + b"\n" for each in records)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
