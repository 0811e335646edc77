"""Makes the pictures of the page in the documents again: ``make page-pictures``."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browsers import chromium  # noqa: E402
from serving import Serving  # noqa: E402
from watched_page import answering, opened  # noqa: E402

DESK: Final = {"width": 1360, "height": 860}
PHONE: Final = {"width": 390, "height": 844}
PICTURES: Final[dict[str, dict[str, Any]]] = {
    "page-light": {"viewport": DESK, "color_scheme": "light"},
    "page-dark": {"viewport": DESK, "color_scheme": "dark"},
    "page-phone": {"viewport": PHONE, "color_scheme": "light"},
}
REQUESTS: Final = 9
SETTLES_S: Final = 12.0
COLOURS: Final = 200
"""They are enough, and a picture of few is small."""


async def main(folder: Path) -> None:
    """All of them, while some requests are answered and after a chat."""
    os.environ["TRILBY_MAX_NUM_SEQS"] = "80"
    with tempfile.TemporaryDirectory() as kept:
        serving = Serving(Path(kept, "log"))
        await asyncio.to_thread(serving.__enter__)
        try:
            async with chromium() as browser:
                for name, settings in PICTURES.items():
                    async with opened(browser, serving.base.removesuffix("v1"), **settings) as looked:
                        await looked.live()
                        await looked.ask("How much is 12 plus 7?")
                        await looked.ask("Tell me a story about a fox who loses a key.")
                        async with answering(serving.base, REQUESTS, 200):
                            await asyncio.sleep(SETTLES_S)
                            await looked.page.evaluate("scrollTo(0, 0)")
                            taken = await looked.page.screenshot()
                        colours = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS)
                        colours.save(folder / f"{name}.png", optimize=True)
        finally:
            await asyncio.to_thread(serving.__exit__)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"))
