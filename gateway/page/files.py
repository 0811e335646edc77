"""The page's own files, as they are sent: read once, by strict rules of what a browser may do with them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"

START: Final = "index.html"
"""What is at ``/``."""

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, nothing inline, in nobody's frame; a form goes nowhere by itself."""

HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Each file is asked for again, and answered with 304 while it is the same."""


@dataclass(frozen=True)
class PageFile:
    """One file: its bytes, its type and its ETag."""

    data: bytes
    type: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> PageFile:
        """The file at ``path``."""
        data = path.read_bytes()
        return cls(data, TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:20]}"')


FILES: Final = {path.name: PageFile.read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}

PAGE: Final = "/"
EVENTS: Final = "/page/events"
"""For an operator and for clients, each of whom sees its own requests."""

PATHS: Final = frozenset({PAGE, *(f"/page/{name}" for name in FILES if name != START)})
"""Asked no key: whoever opens the page is asked there, and the files say nothing of anybody."""
