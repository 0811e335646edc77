"""Structured logs: one line an event, to standard error; names and numbers, never prompts, answers or token ids."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict


def _printable(logger: object, method: str, event: EventDict) -> EventDict:
    """Peers choose some of what is logged (names, reasons): nothing of it may steer a terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(each if each.isprintable() else "\ufffd" for each in value)
    return event


def configure_logs(process: str, level: str = "info", form: str = "text") -> None:
    """Set up logging for this process; every line carries its name.

    Args:
        process: ``gateway``, ``cloud`` or ``device``.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        form: ``text`` for people or ``json`` for collectors.
    """
    number = logging.getLevelName(level.upper())
    logging.basicConfig(stream=sys.stderr, level=max(number, logging.WARNING), format="%(name)s: %(message)s")
    last: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    ]
    if form == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _printable,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if form == "text" else "iso", utc=form != "text"),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
