"""Plots as SVG, without a library."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from service.line_plot import line_plot, smoothed


def test_plot_lies_within_its_frame() -> None:
    """Every point of a line is inside of the picture, the first at the left and the highest at the top."""
    drawn = line_plot("a < b", "x", "y", {"one & two": [(10, 1.0), (20, 4.0), (30, 2.0)]})
    root = ElementTree.fromstring(drawn)
    (line,) = root.findall("{*}polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert points[0][0] == 64 and points[1][1] == 36
    assert all(0 <= x <= 640 and 36 <= y <= 360 for x, y in points)
    assert {each.text for each in root.findall("{*}text")} >= {"a < b", "one & two"}


def test_smoothing_keeps_the_mean() -> None:
    """Neighbours become their mean; few points stay as they are."""
    assert smoothed([(0.0, 1.0), (1.0, 3.0)], 2) == [(0.0, 1.0), (1.0, 3.0)]
    assert smoothed([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (3.0, 7.0)], 2) == [(0.5, 2.0), (2.5, 6.0)]
