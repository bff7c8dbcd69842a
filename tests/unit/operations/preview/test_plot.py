"""The drawing of a preview."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from notifier.operations.preview.plot import span, svg

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


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0"), (1, "1ms"), (850_000, "850ms"), (S, "1s"), (12_345_678, "12.3s"), (250 * S, "4m10s"), (300 * S, "5m"),
     (11_100 * S, "3h05m"), (7200 * S, "2h"), (187_200 * S, "2d4h"), (172_800 * S, "2d")],
)  # fmt: skip
def test_a_span_for_people(us: int, text: str) -> None:
    """At most two units."""
    assert span(us) == text


SVG = "{http://www.w3.org/2000/svg}"
