"""Whether two models read text as the same tokens: what a draft of one is worth to the other hangs on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drafting.errors import BadDrafter

FILE = "tokenizer.json"
MAX_BYTES = 64 << 20


def check_same_tokens(drafter: Path, target: Path) -> None:
    """Raises BadDrafter unless the tokenizers in two model folders number the same pieces in the same way.

    Compared are vocabulary and merges, and those added tokens that both have: a number that stands for one added token
    in both must stand for the same.
    """
    ours, theirs = _read(drafter), _read(target)
    for part in ("type", "vocab", "merges"):
        if _pieces(ours, part) != _pieces(theirs, part):
            raise BadDrafter(
                f"{drafter} cannot draft for {target}: the {part} of their tokenizers differ. "
                "Draft with a smaller model of the same family, or with a drafter from `trilby distill`"
            )
    added, known = _added(drafter, ours), _added(target, theirs)
    for number in sorted(added.keys() & known.keys()):
        if added[number] != known[number]:
            raise BadDrafter(
                f"{drafter} cannot draft for {target}: token {number} is {added[number]!r} in one and "
                f"{known[number]!r} in the other. Draft with a model that has the same tokens"
            )


def _read(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise BadDrafter(f"{path} is larger than {MAX_BYTES} bytes")
        found = json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadDrafter(
            f"{path} cannot be read, so nobody knows whether both models have the same tokens: {error}. "
            "Fetch that file of the model too"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise BadDrafter(f"{path} describes no tokenizer; fetch the file again")
    return found


def _pieces(tokenizer: dict[str, Any], part: str) -> object:
    found = tokenizer["model"].get(part)
    if part == "merges" and isinstance(found, list):
        # Older files write a pair as one string.
        return [each.split(" ", 1) if isinstance(each, str) else each for each in found]
    return found


def _added(folder: Path, tokenizer: dict[str, Any]) -> dict[int, str]:
    entries = tokenizer.get("added_tokens") or []
    try:
        return {int(entry["id"]): str(entry["content"]) for entry in entries}
    except (KeyError, TypeError, ValueError) as error:
        raise BadDrafter(f"{folder / FILE} lists added tokens in no known way; fetch the file again") from error
