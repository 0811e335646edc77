"""Seconds that the parts of a model take on each node of a group, from its profile. Pure."""

from __future__ import annotations

from device_agent.planning.lan import Lan
from device_agent.planning.shape import ModelShape
from split_model.offload.units import HALVES, Half


class MemberCosts:
    """What was measured, asked for by node; what was asked once is remembered."""

    def __init__(self, shape: ModelShape, lan: Lan) -> None:
        self._shape = shape
        self._seconds = [device.seconds for device in lan.devices]
        self._known: dict[tuple[object, ...], float] = {}
        self._tiles: dict[tuple[object, ...], list[list[float]]] = {}

    def of(self, node: int, part: str, *sizes: float) -> float:
        """Seconds of a part (see `profile.AXES`) at these sizes; none where one of them is 0."""
        key = node, part, sizes
        if key not in self._known:
            self._known[key] = self._seconds[node][part](*sizes)
        return self._known[key]

    def tiles(self, part: str, units: tuple[int, ...], rows: tuple[int, ...]) -> list[list[float]]:
        """Seconds of each member's units of a part ("project" for all projections) with each tile of rows."""
        key = part, units, rows
        if key not in self._tiles:
            self._tiles[key] = [
                [self._product(member, part, tile, width) for tile in rows] for member, width in enumerate(units)
            ]
        return self._tiles[key]

    def _product(self, node: int, part: str, rows: int, width: int) -> float:
        return self.project(node, rows, width) if part == "project" else self.of(node, part, rows, width)

    def measured(self, node: int, part: str) -> bool:
        """Whether a part that need not be measured was."""
        return part in self._seconds[node]

    def project(self, node: int, rows: float, groups: int) -> float:
        """Queries, keys and values of rows."""
        return self.of(node, "query", rows, groups) + self.of(node, "key_value", rows, groups)

    def mlp(self, node: int, rows: float) -> float:
        """An MLP without its norm, all columns of it."""
        columns = self._shape.intermediate
        return self.of(node, "up", rows, columns) + self.of(node, "down", rows, columns)

    def attention(self, node: int, rows: float, positions: float, groups: int | None = None) -> float:
        """An attention block without its norm: of `groups`, None for all, by rows that each see so many positions."""
        groups = self._shape.kv_heads if groups is None else groups
        return (
            self.project(node, rows, groups)
            + self.of(node, "attend", rows, positions, groups)
            + self.of(node, "output", rows, groups)
        )

    def layer(self, node: int, number: int, rows: float, positions: float, read: float = 0, source: float = 0) -> float:
        """A whole layer, norms included. Where it also attends to `source` rows of an encoder, keys and values of so
        many of them as are now `read` are made."""
        if self._shape.attentions(number) == 1:
            return sum(self.half(node, number, half, rows, positions) for half in HALVES)
        found = self.attention(node, rows, positions) + self.mlp(node, rows) + 2 * self.of(node, "norm", rows)
        groups = self._shape.kv_heads
        return (
            found
            + self.of(node, "key_value", read, groups)
            + self.of(node, "query", rows, groups)
            + self.of(node, "attend", rows, source, groups)
            + self.of(node, "output", rows, groups)
            + self.of(node, "norm", rows)
        )

    def half(self, node: int, number: int, half: Half, rows: float, positions: float) -> float:
        """A whole layer's attention, or its MLP, with its norm."""
        if half == "mlp":
            return self.mlp(node, rows) + self.of(node, "norm", rows)
        return self._shape.attentions(number) * (self.attention(node, rows, positions) + self.of(node, "norm", rows))
