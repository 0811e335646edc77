"""The methods compared, and the flags of the product that are each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from service.draft_settings import HAT_PAPER
from service.setting_names import command_line

SARATHI_ROWS: Final[Mapping[str, int]] = MappingProxyType({"specbench": 128, "cnndm": 256, "real": 128})
"""The paper's chunks of U-Sarathi, which are its rows of a step here."""

_PAPER_DRAFTS: Final = {
    name: value
    for name, value in HAT_PAPER.items()
    if name in ("draft", "draft_length", "draft_threshold", "stream_rows", "pack_rows")
}
"""HAT's drafter and its rule, without parallel drafting."""

_AS_THEY_ARE: Final = {"pack_rows": "off"}
_NO_DRAFTS: Final = {"draft": ("none",), **_AS_THEY_ARE}

CHUNK_SIZES: Final = (512, 128)
"""Rows of the chunks that prompts are cut into where their number is compared."""


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        about: in a few words.
        mode: the product's ``--mode``.
        settings: further settings of the device.
    """

    about: str
    mode: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def drafter(self) -> str:
        """What drafts; empty: what the product takes by itself, ``none``: nothing."""
        if self.mode == "u-medusa":
            return "medusa"
        return str(next(iter(self.settings.get("draft", ())), "" if self.mode == "hat" else "none"))

    def device(self, draft: Sequence[str] = ()) -> list[str]:
        """The device's flags; ``draft``: in place of the drafters it names."""
        settings = dict(self.settings)
        if draft:
            settings["draft"] = tuple(draft)
        return command_line(mode=self.mode, **settings)

    def cloud(self, dataset: str) -> list[str]:
        """The cloud server's flags for this dataset's prompts."""
        rows = SARATHI_ROWS[dataset] if self.mode == "u-sarathi" else None
        return command_line(mode=self.mode, whole_prompts=self.settings.get("whole_prompts"), step_rows=rows)


_ALL_DOWN: Final = {"download": "all"}
_WHOLE: Final = {"whole_prompts": True}

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "ushape-full": Method("U-shape, every deep row of a prompt downloaded", "ushape", _ALL_DOWN),
        "ushape": Method("U-shape, the one row that is needed downloaded", "ushape"),
        "u-sarathi": Method("U-shape, prompts cut in the cloud", "u-sarathi"),
        "u-medusa": Method("U-shape with Medusa's heads", "u-medusa"),
        "u-small": Method("U-shape with an independent small model", "u-small", {"draft": ("small",)}),
        "cloud": Method("tokens sent, the whole model in the cloud", "cloud"),
        "hat-paper": Method("HAT with the paper's settings", "hat", {"hat_paper": True}),
        "hat": Method("Trilby as it is", "hat"),
        "hat-plain": Method("Trilby, its rows sent as they are", "hat", _AS_THEY_ARE),
        # Table 5: one strategy more or less, every deep row of a prompt downloaded in all of them.
        "none": Method("U-shape", "ushape", _ALL_DOWN),
        "pc": Method("prompt chunking", "hat", {**_NO_DRAFTS, **_ALL_DOWN}),
        "sd": Method("speculative decoding", "hat", {**_PAPER_DRAFTS, "prepare": "none", **_WHOLE, **_ALL_DOWN}),
        "sd+pd": Method("and parallel drafting", "hat", {**_PAPER_DRAFTS, "prepare": "last", **_WHOLE, **_ALL_DOWN}),
        "sd+pc": Method("drafting and chunking", "hat", {**_PAPER_DRAFTS, "prepare": "none", **_ALL_DOWN}),
        "sd+pc+pd": Method("all three", "hat", {**_PAPER_DRAFTS, "prepare": "last", **_ALL_DOWN}),
        # Chunks alone, the one row that is needed downloaded.
        **{
            f"chunk-{rows}": Method(f"prompts in chunks of {rows} rows", "hat", {**_NO_DRAFTS, "chunk": rows})
            for rows in CHUNK_SIZES
        },
        "chunk-auto": Method("prompts in chunks as the cloud advises", "hat", _NO_DRAFTS),
    }
)
