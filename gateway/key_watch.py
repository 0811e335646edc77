"""A file of keys that changes while the gateway runs."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from gateway.key_book import KeyBook
from gateway.key_stores import BadKeyStore, KeyFile

LOOK_EVERY_S: Final = 1.0

log = structlog.get_logger()


async def follow(file: KeyFile, book: KeyBook, every_s: float = LOOK_EVERY_S) -> None:
    """Give the book the keys of the file whenever it has become another one; for ever. While it cannot be read those
    that are known go on."""
    seen = file.stamp
    while True:
        await asyncio.sleep(every_s)
        if (stamp := file.stamp) == seen:
            continue
        seen = stamp
        try:
            records = file.read()
        except BadKeyStore as error:
            log.error("the keys of before go on", why=str(error))
        else:
            book.replace(records)
            log.info("keys read", keys=len(records))
