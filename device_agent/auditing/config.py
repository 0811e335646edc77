"""Settings of `trilby audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from device_agent.auditing.texts import LEAST_TOKENS
from service.draft_settings import DraftSettings
from service.serve import DEMO
from service.settings import changed, setting, tuning
from service.shared_settings import ModelSettings, PaddingSettings, PromptSettings, SplitSettings, words

SAMPLE: Final = DEMO / "heldout.jsonl"
"""What is said in the demo model's held-out conversations: the text where none is named."""

MOST_SPLITS: Final = 12
"""Where nobody names splits, so many of all."""


@dataclass(frozen=True)
class AuditedSettings:
    """What is audited."""

    model: str = changed(ModelSettings, "model", str(DEMO))
    split: str = setting(
        "",
        f"layers on the device, several by commas; empty: all splits that leave the cloud a layer, or {MOST_SPLITS} of "
        "them",
        variable="audit_split",
    )
    tail: int = changed(SplitSettings, "tail", 0)
    dtype: Literal["float32", "bfloat16"] = changed(ModelSettings, "dtype", "float32")
    threads: int = changed(ModelSettings, "threads", 0)
    draft: tuple[str, ...] = changed(DraftSettings, "draft", ())
    pack_rows: Literal["auto", "off"] = changed(PromptSettings, "pack_rows", "auto")
    pad_frames: bool = changed(PaddingSettings, "pad_frames", False, tunes=False)


@dataclass(frozen=True)
class TextSettings:
    """What it is tried on."""

    text: str = setting(
        "",
        "file of plain text, or of JSON lines with text or messages; empty: the demo model's held-out conversations",
        variable="audit_text",
    )
    texts: int = setting(8, "passages that are sent and attacked", minimum=1, maximum=1000, variable="audit_texts")
    prompt_tokens: int = setting(
        64, "tokens of each passage at most", minimum=2 * LEAST_TOKENS, maximum=4096, variable="audit_prompt_tokens"
    )
    new_tokens: int = setting(32, "tokens of each answer at most", minimum=2, maximum=4096, variable="audit_new_tokens")
    seed: int = tuning(0, "which passages are drawn", minimum=0, variable="audit_seed")


@dataclass(frozen=True)
class AttackSettings:
    """The attacks."""

    pairs: str = setting(
        "1000,10000",
        "rows whose tokens an attacker without the weights knows, several numbers by commas; more than the text has: "
        "as many as it has",
        variable="audit_pairs",
    )
    candidates: int = tuning(
        512, "tokens that vocabulary matching tries at one position, at most", minimum=1, variable="audit_candidates"
    )
    within_s: float = setting(
        300.0,
        "seconds that vocabulary matching may take at one split; what it has not read by then does not count",
        minimum=1,
        variable="audit_within_s",
    )


@dataclass(frozen=True)
class AuditConfig(AttackSettings, TextSettings, AuditedSettings):
    """Attack what crosses the wire between device and cloud, and say how much of the text is read off it.

    A cloud server of this machine answers passages of a text as it answers a device; what passes is recorded, and
    attacked with and without the model's weights.
    """

    out: str = setting("", "folder for a table, a plot and the figures; empty: none is written", variable="audit_out")
    json: bool = setting(False, "print data for programs instead of a table", variable="audit_json")

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that are none."""
        numbers("--split", self.split, 0)
        numbers("--pairs", self.pairs, 2)

    @property
    def path(self) -> Path:
        """The text's file."""
        return Path(self.text) if self.text else SAMPLE

    def splits(self, layers: int) -> list[int]:
        """Those to audit of a model with so many layers. Raises ValueError where the cloud would have none."""
        most = layers - self.tail - 1
        if most < 0:
            raise ValueError(f"--tail {self.tail} leaves the cloud no layer: the model has {layers}")
        if self.split:
            asked = numbers("--split", self.split, 0)
            if asked[-1] > most:
                raise ValueError(f"--split {asked[-1]} leaves the cloud no layer; up to {most} can be audited")
            return asked
        count = min(MOST_SPLITS, most + 1)
        return sorted({round(each * most / max(1, count - 1)) for each in range(count)})

    def known(self) -> list[int]:
        """How many pairs the attackers without weights know, fewest first."""
        return numbers("--pairs", self.pairs, 2)


def numbers(flag: str, text: str, least: int) -> list[int]:
    """The whole numbers in a list with commas, in order, each once; none where nothing is said. Raises ValueError for
    anything else."""
    found = words(text)
    good = all(each.isascii() and each.isdigit() and len(each) < 10 and int(each) >= least for each in found)
    if not good or (text and not found):
        raise ValueError(f"{flag} {text} is no list of whole numbers from {least}, with commas between them")
    return sorted({int(each) for each in found})
