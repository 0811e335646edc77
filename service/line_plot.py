"""Plots of lines as SVG. Written by hand; no library needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 36, 48
COLOURS = ("#1f6feb", "#d1495b", "#2e8b57", "#8a5cd6", "#c9820a", "#555555", "#0b8a8f")

Points = Sequence[tuple[float, float]]


def line_plot(title: str, across: str, up: str, lines: Mapping[str, Points], up_to: float | None = None) -> str:
    """An SVG document with one line for each name. `up_to`: the upper end of the axis; None: that of the values."""
    every = [point for points in lines.values() for point in points]
    left = min((x for x, _ in every), default=0.0)
    right = max((x for x, _ in every), default=1.0)
    top = up_to if up_to is not None else max((y for _, y in every), default=1.0)
    right, top = right if right > left else left + 1, top or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - min(1.0, max(0.0, y / top)) * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(up)}</text>',
    ]
    for step in range(6):
        x, y = left + (right - left) * step / 5, top * step / 5
        at_x, at_y = place(x, y)
        parts.append(f'<path d="M{LEFT} {at_y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at_y + 4:.1f}" text-anchor="end">{_short(y)}</text>')
        parts.append(f'<text x="{at_x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_short(x)}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        row = TOP + 16 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {row}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{row + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def stacked(plots: Sequence[str]) -> str:
    """One SVG document of several, one below the other."""
    high = HEIGHT * len(plots)
    placed = [f'<g transform="translate(0 {HEIGHT * row})">{each}</g>' for row, each in enumerate(plots)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" viewBox="0 0 {WIDTH} {high}">'
    return "\n".join([head, *placed, "</svg>"]) + "\n"


def smoothed(points: Points, most: int = 200) -> list[tuple[float, float]]:
    """At most `most` points, each the mean of as many neighbours."""
    size = max(1, -(-len(points) // most))
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
