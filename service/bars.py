"""How far long work is: bars on a terminal, elsewhere a line every half minute, so that a log tells it too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 30.0
"""Between two lines where there is no terminal."""


@dataclass
class Stage:
    """One stage of the work: how much of it is done, and what is to be said beside that."""

    name: str
    total: int | None
    unit: str
    began: float
    done: int = 0
    note: str = ""
    before: int = 0
    """Done by an earlier run, so that the pace is this one's."""

    def line(self, now: float) -> str:
        """Where it is at ``now``, in words: done, to do, time gone, time to go."""
        gone = max(now - self.began, 0.0)
        count = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        words = [f"{self.name}: {count} {self.unit}", *filter(None, (self.note,)), f"{clock(gone)} gone"]
        new = self.done - self.before
        if self.total is not None and new > 0 and self.done < self.total:
            words.append(f"{clock(gone * (self.total - self.done) / new)} to go")
        return ", ".join(words)


def clock(seconds: float) -> str:
    """``75`` as ``1:15``, an hour and more as ``1:01:15``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Bars:
    """The stages of one run, shown on ``console``; a context manager. What it is told may come from any thread."""

    def __init__(self, console: Console, every_s: float = LINE_EVERY_S, redraw_s: float = 0.1) -> None:
        self.console = console
        self._every_s = every_s
        self._stage: Stage | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._lines, name="progress", daemon=True)
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=1 / redraw_s,
        )

    def __enter__(self) -> Bars:
        if self.console.is_terminal:
            self._progress.start()
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._progress.stop()
        else:
            self._ended.set()
            self._thread.join()

    def say(self, line: str) -> None:
        """A line of its own, between the bars or among the lines."""
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    @contextmanager
    def bar(self, name: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        """A stage; what it gives is called with how much was done since, and ends full."""
        with self._staged(name, total, unit) as (stage, show):

            def told(count: int) -> None:
                stage.done += count
                show()

            yield told
            stage.total = stage.done
            show()

    @contextmanager
    def training(self, total: int, unit: str = "tokens") -> Iterator[Callable[[int, str], None]]:
        """The stage of a training run; what it gives is called with how far it is in all, first of all with how far an
        earlier run came, and a note."""
        with self._staged("training", total, unit) as (stage, show):
            first = True

            def told(done: int, note: str) -> None:
                nonlocal first
                stage.done, stage.note = min(done, total), note
                if first:
                    stage.before, first = stage.done, False
                show()

            yield told

    @contextmanager
    def _staged(self, name: str, total: int | None, unit: str) -> Iterator[tuple[Stage, Callable[[], None]]]:
        stage = self._stage = Stage(name, total, unit, time.monotonic())
        task = self._progress.add_task(name, total=total, unit=unit, note="")

        def show() -> None:
            self._progress.update(task, total=stage.total, completed=stage.done, note=stage.note)

        try:
            yield stage, show
            if not self.console.is_terminal:
                self.say(stage.line(time.monotonic()))
        finally:
            self._stage = None

    def _lines(self) -> None:
        while not self._ended.wait(self._every_s):
            stage = self._stage
            if stage is not None:
                with suppress(OSError, ValueError):  # A log that is full or closed is no reason to stop the work.
                    self.say(stage.line(time.monotonic()))
