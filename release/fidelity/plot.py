"""Error by position as SVG: mean KL at each place of a window, smoothed, on a logarithmic scale.

Written without a library: the same report gives the same bytes everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from release.fidelity.report import AGAINST_BF16, AGAINST_REFERENCE, Comparison, FidelityReport

_WIDTH: Final = 760
_LEFT, _RIGHT, _TOP = 70, 20, 46
_PLOT_HEIGHT: Final = 220
_LINE_HEIGHT: Final = 18
_POINTS: Final = 200
_SMOOTHING: Final = 24  # the moving mean covers this share of the longest window
_COLOURS: Final = ("#0b61a4", "#d1495b", "#2e933c", "#8e5ea2", "#c77700", "#444444")
_DASHES: Final = ("", "6 3", "2 2")
_SMALLEST: Final = 1e-12
_TITLES: Final = {
    AGAINST_REFERENCE: "KL divergence from the reference, nats, by position in the window",
    AGAINST_BF16: "KL divergence from the bf16 cache of the same package, nats, by position in the window",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """A panel's scales: values of 10**low to 10**high, positions 0 to `length` - 1, and where the panel begins."""

    top: float
    low: int
    high: int
    length: int

    def x(self, position: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * position / max(1, self.length - 1)

    def y(self, value: float) -> float:
        share = (math.log10(max(value, 10.0**self.low)) - self.low) / (self.high - self.low)
        return self.top + _PLOT_HEIGHT * (1 - share)


def plot(report: FidelityReport) -> str:
    """An SVG document with a panel per kind of comparison."""
    texts = ", ".join(text.file for text in report.texts)
    panels = [(title, report.of(against)) for against, title in _TITLES.items()]
    return panels_plot(f"Fidelity to {report.reference.file} over {texts}", panels)


def panels_plot(subject: str, panels: Sequence[tuple[str, Sequence[Comparison]]]) -> str:
    """An SVG document with a panel for each title and its comparisons; those without comparisons are left out.

    Args:
        subject: what the whole is about, for those who cannot see it.
    """
    body: list[str] = []
    top = float(_TOP)
    for title, found in panels:
        if found:
            body += _panel(title, found, top)
            top += _PLOT_HEIGHT + 60 + _LINE_HEIGHT * len(found) + _TOP
    height = math.ceil(top - _TOP + 10)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
            f' height="{height}" font-family="sans-serif" font-size="12" role="img">',
            f"<title>{escape(subject)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def smoothed(values: Sequence[float]) -> list[float]:
    """Moving mean over neighbours, centred; it reaches over a share of the length and is cut at the ends."""
    reach = len(values) // _SMOOTHING // 2
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    result = []
    for place in range(len(values)):
        first, stop = max(0, place - reach), min(len(values), place + reach + 1)
        result.append((sums[stop] - sums[first]) / (stop - first))
    return result


def _panel(title: str, found: Sequence[Comparison], top: float) -> list[str]:
    curves = [_curve(comparison) for comparison in found]
    frame = _frame(curves, top)
    lines = [f'<text x="{_LEFT}" y="{top - 16:.1f}" font-weight="bold">{escape(title)}</text>', *_grid(frame)]
    for index, (comparison, curve) in enumerate(zip(found, curves, strict=True)):
        stroke = _stroke(index)
        lines.append(f'<polyline points="{_points(frame, curve)}" fill="none" {stroke}/>')
        y = top + _PLOT_HEIGHT + 48 + _LINE_HEIGHT * index
        label = (
            f"{comparison.package}, {comparison.backend}, {comparison.kv_cache} cache: mean {comparison.figures.kl:.3e}"
        )
        lines.append(f'<line x1="{_LEFT}" y1="{y - 4:.1f}" x2="{_LEFT + 30}" y2="{y - 4:.1f}" {stroke}/>')
        lines.append(f'<text x="{_LEFT + 38}" y="{y:.1f}">{escape(label)}</text>')
    return lines


def _curve(comparison: Comparison) -> list[tuple[int, float]]:
    places = [place for place, _ in comparison.figures.kl_by_position]
    return list(zip(places, smoothed([value for _, value in comparison.figures.kl_by_position]), strict=True))


def _frame(curves: Sequence[Sequence[tuple[int, float]]], top: float) -> _Frame:
    positive = [value for curve in curves for _, value in curve if value > _SMALLEST] or [_SMALLEST]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return _Frame(top=top, low=low, high=max(high, low + 1), length=max(curve[-1][0] + 1 for curve in curves))


def _grid(frame: _Frame) -> list[str]:
    lines = []
    bottom = frame.top + _PLOT_HEIGHT
    for exponent in range(frame.low, frame.high + 1):
        y = frame.y(10.0**exponent)
        lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{exponent}</text>')
    for position in range(0, frame.length, _step(frame.length)):
        x = frame.x(position)
        lines.append(f'<line x1="{x:.1f}" y1="{frame.top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#eeeeee"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{position}</text>')
    return lines


def _step(length: int) -> int:
    """1, 2 or 5 times a power of ten that gives at most ten marks."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power * 10 >= length:
                return factor * power
        power *= 10


def _points(frame: _Frame, curve: Sequence[tuple[int, float]]) -> str:
    stride = max(1, len(curve) // _POINTS)
    chosen = [*curve[:-1:stride], curve[-1]]
    return " ".join(f"{frame.x(place):.1f},{frame.y(value):.1f}" for place, value in chosen)


def _stroke(index: int) -> str:
    dash = _DASHES[index // len(_COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_COLOURS[index % len(_COLOURS)]}" stroke-width="1.6"{dashed}'
