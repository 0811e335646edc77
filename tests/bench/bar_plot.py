"""Bars in groups as an SVG, beside the lines that ``drafting.distill.plots`` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from drafting.distill.plots import COLOURS

WIDTH, HEIGHT = 860, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 170, 36, 36
GAP = 0.25
"""Share of a group's width that is left free."""

STEPS = 5


def bar_plot(title: str, up: str, groups: Sequence[str], bars: Mapping[str, Sequence[float]]) -> str:
    """An SVG document with a group of bars for each of ``groups``; ``bars`` has a value for each of them by name."""
    top = max((value for values in bars.values() for value in values), default=0.0) or 1.0
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    bar = wide * (1 - GAP) / max(1, len(bars))
    floor = HEIGHT - BOTTOM
    tall = floor - TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})" text-anchor="middle">',
        f"{escape(up)}</text>",
    ]
    for step in range(STEPS + 1):
        at = floor - tall * step / STEPS
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{top * step / STEPS:.3g}</text>')
    for place, group in enumerate(groups):
        middle = LEFT + wide * (place + 0.5)
        parts.append(f'<text x="{middle:.1f}" y="{floor + 18}" text-anchor="middle">{escape(group)}</text>')
    for number, (name, values) in enumerate(bars.items()):
        colour = COLOURS[number % len(COLOURS)]
        fade = 1.0 if number < len(COLOURS) else 0.5
        row = TOP + 16 * number
        for place, value in enumerate(values):
            x, height = LEFT + wide * (place + GAP / 2) + bar * number, tall * value / top
            parts.append(
                f'<rect x="{x:.1f}" y="{floor - height:.1f}" width="{bar:.1f}" height="{height:.1f}" '
                f'fill="{colour}" opacity="{fade}"/>'
            )
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 12}" y="{row - 5}" width="18" height="8" fill="{colour}" opacity="{fade}"/>'
        )
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{row + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
