"""Where API keys made with ``trilby keys`` are kept: a file; or redis (``registry.redis_keys``), for all gateways."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gateway.key_book import KeyRecord

IN_REDIS: Final = "redis"
"""What ``--key-store`` says where it is no file."""

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
        records = self.read()
        if any(each.name == record.name for each in records):
            return False
        if len(records) >= MOST_KEYS:
            raise BadKeyStore(f"{self._path} has {MOST_KEYS} keys already, as many as it may")
        self._write([*records, record])
        return True

    def revoke(self, name: str) -> bool:
        records = self.read()
        left = [each for each in records if each.name != name]
        if len(left) < len(records):
            self._write(left)
        return len(left) < len(records)

    def _write(self, records: Iterable[KeyRecord]) -> None:
        try:
            # Readable by its owner only; whoever reads it meanwhile finds the old file or the new one.
            handle, path = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            with os.fdopen(handle, "wb") as file:
                file.writelines(msgspec.json.encode(each) + b"\n" for each in records)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, self._path)
        except OSError as error:
            raise BadKeyStore(f"{self._path} cannot be written: {error.strerror}") from error
