"""Links for our models that are as slow, beside our cloud's steps, as the paper's links are beside the paper's. Pure.

The paper's models, links and GPUs are thousands of times what two cores can carry. What its comparisons rest on are
ratios: how long a row's upload takes beside a step of the cloud, and what a row more costs a step. The second is the
model's and the machine's and stays what it is; the first is a matter of bandwidth, which is chosen here. Both are
printed beside the paper's, with every table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CHUNK_ROWS: Final = 128
"""Rows of the step that links are measured by: a chunk of the size that the paper's U-Sarathi takes."""


@dataclass(frozen=True)
class Costs:
    """What a row and a step cost.

    Attributes:
        row_bytes: of one hidden state.
        base_s: a step of the cloud, all its GPUs together, that decodes: of the paper, an average one.
        chunk_s: one that has a chunk of ``CHUNK_ROWS`` rows.
    """

    row_bytes: int
    base_s: float
    chunk_s: float

    @property
    def row_s(self) -> float:
        """What a row more costs a step."""
        return (self.chunk_s - self.base_s) / CHUNK_ROWS

    def slower(self, times: float) -> Costs:
        """Of a cloud that takes so many times as long for everything."""
        return Costs(self.row_bytes, times * self.base_s, times * self.chunk_s)


@dataclass(frozen=True)
class Reference:
    """A model and its link in the paper; bandwidths in bytes a second, the middle of what they vary in."""

    costs: Costs
    up_bytes_s: float
    down_bytes_s: float


PREFILL_S: Final = 0.28
PREFILL_ROWS: Final = 2048
"""Vicuna-7B computes a prompt of so many rows in such a time (section 2.3)."""


def _reference(hidden_size: int, step_ms: float, parameters: float) -> Reference:
    """A model of the paper.

    Args:
        step_ms: what one of four GPUs computes of an average step of U-Sarathi (Figure 8), whose steps are most even.
        parameters: times those of the model whose prefill is known.
    """
    row_s = PREFILL_S / PREFILL_ROWS * parameters
    base_s = 4 * step_ms / 1e3
    return Reference(Costs(2 * hidden_size, base_s, base_s + CHUNK_ROWS * row_s), 7.5e6, 12.5e6)


PAPER: Final[Mapping[str, Reference]] = {
    "specbench": _reference(4096, 6.5, 1.0),
    "cnndm": _reference(5120, 11.9, 13 / 6.7),
}
"""By dataset, as each has its own model, Vicuna-7B and Vicuna-13B in float16. Links: 5 to 10 MB/s up, 10 to 15 down."""


@dataclass(frozen=True)
class ScaledLink:
    """A link's bandwidths in bytes a second."""

    up_bytes_s: float
    down_bytes_s: float


def scaled_link(paper: Reference, ours: Costs) -> ScaledLink:
    """The link whose upload of a row takes as large a share of our cloud's step with a chunk as the paper's of its."""
    share = paper.costs.row_bytes / paper.up_bytes_s / paper.costs.chunk_s
    up = ours.row_bytes / (share * ours.chunk_s)
    return ScaledLink(up, up * paper.down_bytes_s / paper.up_bytes_s)


def ratios(paper: Reference, ours: Costs, link: ScaledLink) -> dict[str, float]:
    """The paper's ratios and ours, by name; times in milliseconds, of rows ``upload_ms``."""

    def of(costs: Costs, up_bytes_s: float, whose: str) -> dict[str, float]:
        upload_s = costs.row_bytes / up_bytes_s
        return {
            f"{whose}_upload_ms": upload_s * 1e3,
            f"{whose}_base_ms": costs.base_s * 1e3,
            f"{whose}_chunk_ms": costs.chunk_s * 1e3,
            f"{whose}_upload_per_step": upload_s / costs.chunk_s,
            f"{whose}_upload_per_base": upload_s / costs.base_s,
            f"{whose}_row_per_base": costs.row_s / costs.base_s,
        }

    return {**of(paper.costs, paper.up_bytes_s, "paper"), **of(ours, link.up_bytes_s, "our")}
