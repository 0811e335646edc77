"""Progress on the terminal: one bar for each stage, with what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bars:
    """The bars of one run; a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def bar(self, name: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        """A bar; what it gives is called with how much was done since, and ends full."""
        task = self._progress.add_task(name, total=total, unit=unit, note="")

        def told(count: int) -> None:
            self._progress.advance(task, count)

        yield told
        done = self._progress.tasks[task].completed
        self._progress.update(task, total=done, completed=done)

    @contextmanager
    def training(self, tokens: int) -> Iterator[Callable[[int, str], None]]:
        """The bar of a training run; what it gives is called with all tokens read so far and a note."""
        task = self._progress.add_task("training", total=tokens, unit="tokens", note="")

        def told(done: int, note: str) -> None:
            self._progress.update(task, completed=min(done, tokens), note=note)

        yield told
