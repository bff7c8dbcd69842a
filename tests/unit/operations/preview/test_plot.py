"""The drawing of a preview."""

from xml.etree import ElementTree as ET

import pytest

from notifier.operations.preview.plot import svg

S = 1_000_000


def test_the_drawing() -> None:
    """An SVG of two lines, whose heights are in proportion to the counts, and whose names are as they are."""
    times = {"old": [0] * 4, "new": [0, 0, 239 * S, 239 * S]}
    root = ET.fromstring(svg(times, {"old": "<a & b>.yaml", "new": "new.yaml"}))
    old, new = (
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in root.iter(f"{SVG}polyline")
    )
    floor = max(y for _, y in old)
    assert floor - new[0][1] == pytest.approx((floor - old[0][1]) / 2)
    assert new[-1][1] == new[0][1]
    assert old[-1][1] == floor
    assert "old: <a & b>.yaml" in [text.text for text in root.iter(f"{SVG}text")]


def test_a_drawing_of_nothing() -> None:
    """A trace in which nothing is sent has a drawing too."""
    ET.fromstring(svg({"old": [], "new": []}, {"old": "a", "new": "b"}))


SVG = "{http://www.w3.org/2000/svg}"
