"""Structured logs: one line an event, to standard error; names and numbers, never prompts, answers or token ids.

Nobody who logs waits for who reads, and nothing that happens to a line reaches them: ``lines.py``.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NoReturn

import structlog
from structlog.typing import EventDict, Processor

from service.lines import LineStream, LineWriter, take_streams
from service.ration import Ration

MAX_VALUE: Final = 2048
"""Characters of one value in a line."""

MAX_TRACEBACK: Final = 8192
"""Characters of a traceback, of which the last are kept: they say what it was."""

_UNWRITTEN: Final = "a log line could not be written"

_streams: list[LineStream] = []
_early: list[tuple[str, dict[str, str]]] = []


def dropped_lines() -> int:
    """Lines that this process wanted to say and that nobody took."""
    return sum(stream.writer.dropped for stream in _streams)


def end_process(status: int) -> NoReturn:
    """End this process whatever its threads do, once what was said is written."""
    for stream in _streams:
        stream.writer.flush()
    os._exit(status)


def say_once_configured(event: str, **fields: str) -> None:
    """A warning from before there are logs; it is said as soon as there are."""
    _early.append((event, fields))


def configure_logs(process: str, level: str = "info", form: str = "text") -> None:
    """Set up logging for this process; every line carries its name. What else goes to standard output and standard
    error (warnings, tracebacks, progress bars, what libraries log) goes the same way. May be called again.

    Args:
        process: ``gateway``, ``cloud`` or ``device``.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        form: ``text`` for people or ``json`` for collectors.
    """
    out, err = take_streams()
    for stream in (out, err):
        if stream not in _streams:
            _streams.append(stream)
            atexit.register(stream.writer.flush)
    number = logging.getLevelName(level.upper())
    render = _renderer(form, err.isatty())
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if form == "text" else "iso", utc=form != "text"),
        structlog.processors.format_exc_info,
        _printable,
        render,
    ]

    def rendered(logger: Any, method: str, event: EventDict) -> str:
        line: Any = event
        try:
            for processor in processors:
                line = processor(logger, method, line)
            return str(line)
        except Exception as error:  # A value that cannot be shown is no reason for whoever names it to fail.
            return str(render(logger, method, {"event": _UNWRITTEN, "error": type(error).__name__}))

    def told(lines: int) -> str:
        return rendered(None, "warning", {"event": "log lines were dropped", "lines": lines, "process": process}) + "\n"

    def of_record(record: logging.LogRecord) -> str:
        about: EventDict = {"event": record.getMessage(), "logger": record.name, "process": process}
        if record.exc_info:
            about["exc_info"] = record.exc_info
        return rendered(None, record.levelname.lower(), about)

    handler = _Handler(err.writer, of_record if form == "json" else None)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])
    err.writer.told = told
    structlog.configure(
        processors=[rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *names: _Lines(err.writer),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    while _early:
        event, fields = _early.pop(0)
        structlog.get_logger().warning(event, **fields)


class _Lines:
    """What structlog hands rendered lines to."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def msg(self, line: str) -> None:
        """Have it written."""
        self._writer.put(line + "\n")

    log = debug = info = warn = warning = error = critical = fatal = exception = msg


class _Handler(logging.Handler):
    """The way of what libraries log; ``made`` makes a line of it where lines are not for people."""

    def __init__(self, writer: LineWriter, made: Callable[[logging.LogRecord], str] | None) -> None:
        super().__init__()
        self._writer = writer
        self._made = made
        self._ration = Ration()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Have it written, whatever is in it; some of it where there is much: peers may cause it at will."""
        # By where it is said: what is said may hold an address, and be another thing each time.
        more = self._ration.spend(f"{record.name}:{record.lineno}", monotonic())
        if more is None:
            return
        try:
            if more:
                record.msg, record.args = f"{record.getMessage()} ({more} like it were left out)", None
            made = self._made
            line = made(record) if made is not None else _plain(self.format(record)[-MAX_TRACEBACK:])
        except Exception as error:  # As above.
            line = f"{record.name}: {_UNWRITTEN} ({type(error).__name__})"
        self._writer.put(line + "\n")


def _renderer(form: str, colors: bool) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer()
    plain: Callable[..., None] = structlog.dev.plain_traceback
    return structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, exception_formatter=plain)


def _printable(logger: object, method: str, event: EventDict) -> EventDict:
    """Peers choose some of what is logged (names, reasons): nothing of it may steer a terminal, or fill it."""
    for key, value in event.items():
        if key == "exception":
            event[key] = _plain(str(value)[-MAX_TRACEBACK:])
        elif isinstance(value, str) and (len(value) > MAX_VALUE or not value.isprintable()):
            cut = value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 1] + "…"
            event[key] = "".join(each if each.isprintable() else "\ufffd" for each in cut)
    return event


def _plain(text: str) -> str:
    """Lines as they are, and nothing else that is not printable."""
    return "\n".join("".join(c if c.isprintable() else "\ufffd" for c in line) for line in text.split("\n"))
