"""Turn the samples of several contestants into medians, spreads and ratios, as a Markdown table and as an SVG plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

OURS = "cronjobs"


@dataclass(frozen=True)
class Series:
    """One contestant's samples, one per round. If ``floor``, the others on the same database are compared with it."""

    name: str
    database: str
    samples: Sequence[float]
    floor: bool = False


def ratio(samples: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of each round. In one round both had the same noise."""
    return median(one / other for one, other in zip(samples, base, strict=True))


def drain_rates(
    jobs: int, one_s: Sequence[float], many_s: Sequence[float], runs: Sequence[float]
) -> list[float] | None:
    """Return N / (time(N + 1) − time(1)) for each round, with time(1) once for each run of the worker.

    A run with one job starts and loads everything that a drain loads. Use the median of time(1), because starts may
    differ by more than a fast drain of few jobs takes. Return None if a drain still took no longer than its starts.
    """
    start = median(one_s)
    rates = [
        jobs / (took - count * start) if took > count * start else 0 for took, count in zip(many_s, runs, strict=True)
    ]
    return rates if all(rates) else None


def rows(series: Sequence[Series]) -> list[list[str]]:
    floors = {one.database: one for one in series if one.floor}
    ours = {one.database: one for one in series if one.name == OURS}
    return [
        [
            one.name,
            one.database or "–",
            number(median(one.samples)),
            f"{number(min(one.samples))}–{number(max(one.samples))}",
            *(
                number(ratio(one.samples, base[one.database].samples)) if one.database in base else "–"
                for base in (floors, ours)
            ),
        ]
        for one in series
    ]


def number(value: float) -> str:
    """Write the value with three digits, because such a measurement is no more exact than that."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def table(title: str, unit: str, series: Sequence[Series]) -> str:
    head = ["", "database", f"median, {unit}", "min–max", "÷ floor", f"÷ {OURS}"]
    lines = [head, ["---", "---", *["---:"] * 4], *rows(series)]
    return f"### {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def svg(measures: Sequence[tuple[str, str, Sequence[Series]]]) -> str:
    """A bar from each measure's smallest sample for every contestant, on a logarithmic scale, with its spread."""
    left, width, line, y, parts = 300, 520, 18, 10, []
    for title, unit, series in measures:
        low = min(min(one.samples) for one in series) / 1.5
        scale = width / math.log(max(max(one.samples) for one in series) / low)
        y += 2 * line
        parts.append(f'<text x="{left}" y="{y}" font-weight="bold">{escape(title)}, {unit} (logarithmic)</text>')
        for one in series:
            y += line
            least, middle, most = (
                left + scale * math.log(value / low)
                for value in (min(one.samples), median(one.samples), max(one.samples))
            )
            colour = "#c60" if one.name == OURS else "#999" if one.floor else "#69c"
            label = f"{one.name}, {one.database}" if one.database else one.name
            parts += [
                f'<text x="{left - 8}" y="{y}" text-anchor="end">{escape(label)}</text>',
                f'<rect x="{left}" y="{y - 11}" width="{middle - left:.1f}" height="12" fill="{colour}"/>',
                f'<path d="M{least:.1f} {y - 5}H{most:.1f}" stroke="#000"/>',
                f'<text x="{max(most, middle) + 6:.1f}" y="{y}">{number(median(one.samples))}</text>',
            ]
    return _drawing(left + width + 80, y + line, parts)


Curve = tuple[str, Sequence[tuple[float, float]]]  # the curve's name, and its points
COLOURS = ("#c60", "#369", "#393", "#939", "#333")


def curves(panels: Sequence[tuple[str, Sequence[Curve]]], of: str) -> str:
    """Draw one panel for each measure. The vertical axis begins at zero. The horizontal axis, *of*, is logarithmic."""
    left, width, height, y, parts = 80, 480, 130, 30, []
    for title, lines in panels:
        numbers = sorted({x for _, points in lines for x, _ in points})
        most = max(value for _, points in lines for _, value in points) or 1
        across = width / math.log(numbers[-1] / numbers[0] if len(numbers) > 1 else math.e)

        def place(
            x: float, value: float, y: int = y, most: float = most, across: float = across, first: float = numbers[0]
        ) -> str:
            return f"{left + across * math.log(x / first):.1f},{y + height - height * value / most:.1f}"

        parts.append(f'<text x="{left}" y="{y - 10}" font-weight="bold">{escape(title)}</text>')
        for value in (0, most):
            end = y + height - height * value / most
            parts.append(
                f'<text x="{left - 8}" y="{end + 4:.1f}" text-anchor="end">{number(value) if value else 0}</text>'
            )
            parts.append(f'<path d="M{left} {end:.1f}H{left + width}" stroke="#ddd"/>')
        for x in numbers:
            at = place(x, 0).split(",")[0]
            parts.append(f'<text x="{at}" y="{y + height + 16}" text-anchor="middle">{x:g}</text>')
        for number_of, ((name, points), colour) in enumerate(zip(lines, COLOURS, strict=False)):
            way = " ".join(place(x, value) for x, value in points)
            parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
            named = f'<text x="{left + width + 12}" y="{y + 16 + 18 * number_of}" fill="{colour}">{escape(name)}</text>'
            parts.append(named)
        y += height + 60
    parts.append(f'<text x="{left + width}" y="{y - 26}" text-anchor="end">{escape(of)} (logarithmic)</text>')
    return _drawing(left + width + 100, y - 10, parts)


def _drawing(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
