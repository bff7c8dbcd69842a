"""Deliveries over time under old and new rules, as an SVG of two lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from notifier.operations.preview.report import SIDES, Side
from notifier.texts import seconds_text
from notifier.units import UNITS

WIDTH: Final = 960
HEIGHT: Final = 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 50  # margins
FONT: Final = 'font-family="sans-serif" font-size="12"'
BUCKETS: Final = 240
TICKS: Final = 6
S: Final = UNITS["s"]
COLORS: Final[Mapping[Side, str]] = {"old": "#888888", "new": "#c2410c"}
DASHES: Final[Mapping[Side, str]] = {"old": "6 4", "new": "none"}  # the lines differ without colours too

STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 604800)


def svg(sent_at: Mapping[Side, Sequence[int]], names: Mapping[Side, str]) -> str:
    """Return the drawing. sent_at: the times of sends, in µs. names: the captions of the two lines."""
    end = max((max(times) for times in sent_at.values() if times), default=0) + 1
    bucket = -(-end // BUCKETS)
    counts = {side: Counter(at // bucket for at in sent_at[side]) for side in SIDES}
    most = max((max(count.values()) for count in counts.values() if count), default=1)
    buckets = -(-end // bucket)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">Deliveries each {seconds_text(bucket / 1e6)}</text>',
        *_axes(bucket * buckets, most),
    ]
    for place, side in enumerate(SIDES):
        steps = [counts[side][n] for n in range(buckets)]
        x = LEFT + 200 + 330 * place
        look = f'stroke="{COLORS[side]}" stroke-width="1.5" stroke-dasharray="{DASHES[side]}"'
        parts += [
            f'<polyline fill="none" {look} points="{_points(steps, most)}"/>',
            f'<line x1="{x}" y1="14" x2="{x + 30}" y2="14" {look}/>',
            f'<text x="{x + 36}" y="18">{side}: {escape(names[side])}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _points(steps: Sequence[int], most: int) -> str:
    wide = (WIDTH - LEFT - RIGHT) / len(steps)
    return " ".join(
        f"{LEFT + (n + edge) * wide:.1f},{_height(count, most):.1f}" for n, count in enumerate(steps) for edge in (0, 1)
    )


def _height(count: float, most: int) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count / most


def _axes(end_us: int, most: int) -> list[str]:
    parts = []
    floor = HEIGHT - BOTTOM
    for n in sorted({0, most // 2, most}):
        y = _height(n, most)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{n:,}</text>')
    step = next((s for s in STEPS_S if s * S * TICKS >= end_us), -(-end_us // TICKS // S)) * S
    for at in range(0, end_us, step):
        x = LEFT + (WIDTH - LEFT - RIGHT) * at / end_us
        parts.append(f'<line x1="{x:.1f}" y1="{floor}" x2="{x:.1f}" y2="{floor + 5}" stroke="#444444"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 20}" text-anchor="middle">{seconds_text(at / 1e6)}</text>')
    below = f'x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end"'
    return [*parts, f"<text {below}>since the beginning of the trace</text>"]
