"""How a device drafts: the settings as they are given, and as they are used, by ``device_agent/speculative/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from service.settings import setting, tuning

HAT_PAPER: Final[Mapping[str, Any]] = {
    "draft": ("adapter",),
    "draft_length": "fixed",
    "draft_threshold": 0.6,
    "prepare": "last",
    "stream_rows": "off",
    "pack_rows": "off",
}
"""What the HAT paper drafts with (its sections 3.4, 3.5 and 4.1): a draft is sent once it is complete, its rows as they
are."""


Prepare = Literal["none", "last", "all"]
"""For which verdicts is drafted while one travels."""


@dataclass(frozen=True)
class DraftSettings:
    """Drafting."""

    draft: tuple[str, ...] = setting(
        (),
        "none, adapter, fused, lookup, hybrid, medusa, or a small model (folder or Hugging Face id); several times: "
        "requests may name the later ones; not given: the best there is",
    )
    drafters: str = tuning("", "folder with the drafters' files; empty: drafters/ in the model's folder")
    verify: Literal["keyed", "rejection", "block"] = tuning(
        "keyed",
        "of sampled answers: keyed: the same text as without drafting; rejection, block: the same distribution, more "
        "drafted tokens accepted",
    )
    draft_length: Literal["auto", "fixed"] = tuning(
        "auto", "when to stop a draft: auto: when the next token costs more than it earns; fixed: by --draft-threshold"
    )
    draft_threshold: float = tuning(
        0.6, "chance of the last token below which a draft of fixed length ends", minimum=0, maximum=1
    )
    draft_cap: int = tuning(0, "most tokens in a draft; 0: 8 for fixed, 24 for auto", minimum=0, maximum=64)
    prepare: Prepare = tuning(  # noqa: RUF009
        "all",
        "what is drafted while a verdict travels: none: nothing; last: as if all of the draft were accepted; all: for "
        "each likely verdict",
    )
    stream_rows: Literal["auto", "on", "off"] = tuning(
        "auto", "send the rows of a draft one by one as they are drafted: on, off, or auto: where it saves time"
    )
    hat_paper: bool = tuning(
        False,
        "the HAT paper's settings: --draft adapter --draft-length fixed --draft-threshold 0.6 --prepare last "
        "--stream-rows off --pack-rows off",
    )
