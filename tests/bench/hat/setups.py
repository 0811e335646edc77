"""The two models that the methods are measured on: where they are, how they are served, and what they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.hat.cells import RATES, WIDE_RATES, Cell, middle
from bench.hat.lengths import DATASETS, POSITIONS, draw
from bench.hat.methods import Method
from bench.hat.prompts import TOLERANCE, Prompt, demo_prompts, real_prompts
from bench.testbed.scenario import Scenario, load

SCENARIOS: Final = Path(__file__).resolve().parents[1] / "testbed" / "scenarios"

STAGE_CORES: Final = 0.12
"""Quota of each stage of a pipeline, of whatever length: four of them and the demo model's three devices, each in its
fastest mode, fit two cores. As in the paper a step takes as long as all stages together do, however many they are."""

ITEM_BYTES: Final = 2
"""Both are served in bfloat16."""


@dataclass(frozen=True)
class Setup:
    """One model as it is measured.

    Attributes:
        split: layers of the input submodel.
        row_bytes: of a hidden state in bfloat16.
        cloud_cores: quota of the cloud; of a stage, where pipelines are compared, it is ``STAGE_CORES``.
        module: what ``python -m`` starts as a device.
    """

    name: str
    model: Path
    split: int
    row_bytes: int
    cloud_cores: float
    module: str

    def cores_of(self, cell: Cell) -> float:
        """Quota of the cloud in a cell, of each stage: the same for every length of a pipeline."""
        return STAGE_CORES if cell.experiment == "stages" else self.cloud_cores

    def prompts(self, cell: Cell) -> list[Prompt]:
        """The prompts of a cell, the same for every method, and at every rate above 0."""
        rates = (RATES if cell.setting == "demo" else WIDE_RATES)[cell.dataset]
        seed = 1000 * cell.repeat + (round(100 * middle(rates)) if cell.rate else 0) + 1
        most = POSITIONS - cell.tokens - TOLERANCE
        if cell.dataset == "real":
            return real_prompts(cell.requests, seed, most)
        return self.texts(draw(DATASETS[cell.dataset], cell.requests, seed, most), seed)

    def texts(self, lengths: Sequence[int], seed: int) -> list[Prompt]:
        """Prompts of these lengths in tokens."""
        if self.name == "demo":
            return demo_prompts(lengths, seed)
        from bench.hat.wide_model import prompt  # As in ``setup``.

        words = [prompt(length, 100_000 * seed + number) for number, length in enumerate(lengths)]
        return [
            Prompt([{"role": "user", "content": text}], length) for text, length in zip(words, lengths, strict=True)
        ]

    def scenario(self, sends_text: bool) -> Path:
        """What is built: where tokens are sent, no device is needed."""
        return _scenario(self.name, sends_text)

    def device_flags(self, method: Method) -> list[str]:
        """The flags of the device, the small model being this model's."""
        small = str(self.model / "drafters" / "small")
        return method.device([small] if method.drafter == "small" else [])


def _scenario(name: str, sends_text: bool) -> Path:
    return SCENARIOS / (f"hat_{name}_cloud.toml" if sends_text else f"hat_{name}.toml")


def declared(name: str, sends_text: bool = False) -> Scenario:
    """The hosts and links that a model is served on, as they are declared."""
    variables = dict.fromkeys(("model", "device_module", "device_flags", "cloud_flags"), "given")
    return load(_scenario(name, sends_text), {**variables, "split": "1", "delay_ms": "0"})


def cloud_cores(name: str) -> float:
    """Quota of a model's cloud."""
    return next(host.cores for host in declared(name).hosts if host.kind == "cloud")


def setup(name: str, cache: Path) -> Setup:
    """The demo model for long prompts with drafters made for it, or the wide one; made in ``cache`` first where it is
    not there."""
    # Only here, since both import PyTorch, which takes seconds that whoever lists cells need not wait.
    if name == "demo":
        from bench.hat.long_demo import long_demo
        from bench.hat.long_drafters import drafted

        return Setup(
            "demo", drafted(long_demo(cache / "long-demo")), 2, 256 * ITEM_BYTES, cloud_cores(name), "device_agent"
        )
    from bench.hat.wide_model import WIDE, made

    wide = made(cache / "wide")
    return Setup("wide", wide, 1, WIDE.hidden * ITEM_BYTES, cloud_cores(name), "bench.hat.replay_device")
