"""Rotary positions: the inverse frequencies of each kind, and the cosines and sines of absolute positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from split_model.errors import UnsupportedModel
from split_model.new_rows import NewRows
from split_model.positions import PositionTable
from split_model.rope_spec import RopeSpec

_FIRST_TABLE_POSITIONS = 256


def inverse_frequencies(spec: RopeSpec) -> torch.Tensor:
    """Radians a position for each pair of dimensions, float32 [head_dim / 2].

    Raises UnsupportedModel for a model whose positions are no rotations.
    """
    if spec.kind == "none":
        raise UnsupportedModel("this model's positions are no rotations, which is what is needed here")
    dim = spec.head_dim
    frequencies = spec.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    plain = 1.0 / frequencies
    if spec.kind == "default":
        return plain
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    assert spec.kind == "yarn"
    return _yarn(spec, plain, 1.0 / (spec.factor * frequencies))


def _llama3(spec: RopeSpec, plain: torch.Tensor) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    longest = spec.original_max_positions / spec.low_freq_factor
    shortest = spec.original_max_positions / spec.high_freq_factor
    wavelength = 2 * math.pi / plain
    stretched = torch.where(wavelength > longest, plain / spec.factor, plain)
    share = spec.original_max_positions / wavelength - spec.low_freq_factor
    share = share / (spec.high_freq_factor - spec.low_freq_factor)
    blended = (1 - share) * stretched / spec.factor + share * stretched
    between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(between, blended, stretched)


def _yarn(spec: RopeSpec, plain: torch.Tensor, stretched: torch.Tensor) -> torch.Tensor:
    """A ramp over the dimensions, from kept to stretched, between two numbers of rotations."""

    def dimension_of(rotations: float) -> float:
        ratio = spec.original_max_positions / (rotations * 2 * math.pi)
        return spec.head_dim * math.log(ratio) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return stretched * (1 - kept) + plain * kept


class Rope(PositionTable):
    """Cosines and sines, from a table that grows with the positions asked for."""

    def __init__(self, spec: RopeSpec, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        self._dtype = dtype
        self._scale = spec.attention_factor
        self._frequencies = inverse_frequencies(spec)
        self._table = self._rows(_FIRST_TABLE_POSITIONS)

    def span(self, start: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`cos, sin` [rows, 1, head_dim] of the positions `start` to `start + rows`.

        Both halves of `cos` are equal. The first half of `sin` is negated, so that a rotation is
        `x * cos + roll(x, head_dim / 2) * sin`.
        """
        cos, sin = self._grown(start + rows)
        return cos.narrow(0, start, rows), sin.narrow(0, start, rows)

    def positions(self, positions: torch.Tensor, end: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for any positions, int64 [rows], all below `end`: who knows it saves a wait for the device."""
        if end is None:
            end = int(positions.max()) + 1 if positions.numel() else 0
        cos, sin = self._grown(end)
        return cos.index_select(0, positions), sin.index_select(0, positions)

    def of(self, spans: Sequence[NewRows]) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for rows of one session or more."""
        cos, sin = super().of(spans)
        return cos, sin

    def _grown(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._table
        if positions > table[0].shape[0]:
            table = self._rows(1 << (positions - 1).bit_length())
            self._table = table  # one assignment, so that another thread sees the old table or the new one
        return table

    def _rows(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        cos, sin = (table.to(self.device, self._dtype).unsqueeze(1) for table in both)
        return cos, sin
