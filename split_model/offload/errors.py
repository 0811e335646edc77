"""What can go wrong with weights that are read from the disk at each use.

OffloadError
├── DiskFull      there is no room for the repacked weights
├── FolderBusy    somebody else has the folder of repacked weights, and nothing comes of it
├── ReadFailed    a file is missing, too short or foreign, or the disk reports an error
├── DiskSilent    the disk has answered nothing for long
└── LoaderClosed  nothing is read any more
"""

from __future__ import annotations

from pathlib import Path

from split_model.errors import ModelError
from split_model.offload.units import Unit


class OffloadError(ModelError):
    """Weights that should come from the disk cannot. The message names the file, and says what to do about it."""


class DiskFull(OffloadError):
    """There is no room for a file.

    Attributes:
        path: where it should have been.
        missing: bytes that there is too little room by.
    """

    def __init__(self, path: Path, missing: int) -> None:
        super().__init__(f"no room for {path}: {missing} bytes more must be free on its disk")
        self.path, self.missing = path, missing


class FolderBusy(OffloadError):
    """Another process has a folder for itself, and nothing has come of it for long.

    Attributes:
        path: which it has locked.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(
            f"another process has had {path} locked for {seconds:.0f} s and written nothing: "
            f"find it with `fuser {path}`, and end it if it hangs"
        )
        self.path = path


class ReadFailed(OffloadError):
    """A unit could not be read; a later use tries again, and makes its file anew where that is unsound.

    Attributes:
        unit: which.
        path: of its file.
    """

    def __init__(self, unit: Unit, path: Path, why: str) -> None:
        super().__init__(f"the {unit.half} of layer {unit.layer} cannot be read from {path}: {why}")
        self.unit, self.path = unit, path


class DiskSilent(ReadFailed):
    """Nothing has come from the disk for so long that it must be taken for dead."""


class LoaderClosed(OffloadError):
    """The loader has been closed, by whoever no longer wants what it reads."""
