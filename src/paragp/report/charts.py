"""Facts as SVG. Charts are as narrow as a phone, so that their text keeps its size; wide screens set them side by side.

Whatever text comes from the data passes `Svg.add`, which escapes it. A mark with a tip shows it when it is pointed at.
"""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from paragp.data.tables import Array
from paragp.report.bins import Bin, margin
from paragp.report.words import LABEL, count, number, percent, shown

WIDTH, HEIGHT = 380, 270
RIGHT, TOP, BOTTOM = 12, 10, 44  # room around the axes
SIGN = 7.0  # width of a sign of text, at most
ROW = 22  # height of a row of bars
LABELS = 124  # width of the labels beside bars
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
CDF_LIMIT = 4.0  # deviations shown to each side
CDF_STEPS = np.arange(-3.0, 3.01, 0.5)
MOST_EPOCHS = 150  # marks of a history

Point = tuple[float, float]


class Svg:
    """A drawing, element by element."""

    def __init__(self, label: str, height: float = HEIGHT) -> None:
        self.label, self.height = label, height
        self.parts: list[str] = []

    def add(self, tag: str, content: str | None = None, **attributes: object) -> None:
        """An element: `class_` and `text_anchor` are written as SVG spells them, and numbers to a tenth of a pixel."""
        self.parts.append(_element(tag, content, **attributes))

    def path(self, points: Sequence[Point], class_: str) -> None:
        self.add("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=class_)

    def text(self, x: float, y: float, text: str, class_: str = "tick", **attributes: object) -> None:
        self.add("text", text, x=x, y=y, class_=class_, **attributes)

    def __str__(self) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" tabindex="0" '
            f'aria-label="{html.escape(self.label)}">{"".join(self.parts)}</svg>'
        )


def _element(tag: str, content: str | None = None, **attributes: object) -> str:
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(_written(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}/>" if content is None else f"<{tag}{written}>{html.escape(content)}</{tag}>"


def _written(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float | np.floating) else str(value)


# --- scales ---


class Axis(NamedTuple):
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)


def widened(low: float, high: float) -> tuple[float, float]:
    """A range with some room, and with some width where all values are one.

    >>> widened(0.0, 10.0), widened(7.0, 7.0)
    ((-0.5, 10.5), (6.3, 7.7))
    """
    size = max(abs(low), abs(high))
    if high - low <= 1e-12 * size or high == low:
        return low - (0.1 * size or 1.0), high + (0.1 * size or 1.0)
    room = 0.05 * (high - low)
    return low - room, high + room


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within a range.

    >>> ticks(0.0, 1e-12), ticks(-3.0, 11.0)
    ([0.0, 2e-13, 4e-13, 6e-13, 8e-13, 1e-12], [0.0, 5.0, 10.0])
    """
    raw = (high - low) / most
    power = math.floor(math.log10(raw))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.15g}") for i in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> tuple[list[str], str]:
    """Short labels of rising ticks, and what the axis title must add to them.

    >>> tick_labels([0.0, 0.5, 1.0])
    (['0.0', '0.5', '1.0'], '')
    >>> tick_labels([0.0, 5e11, 1e12])
    (['0.0', '0.5', '1.0'], ' (×10¹²)')
    >>> tick_labels([1e9, 1e9 + 0.001])
    (['0.000', '0.001'], ' minus 1e9')
    """
    size = max(map(abs, values), default=0.0) or 1.0
    step = values[1] - values[0] if len(values) > 1 else size
    power = math.floor(math.log10(size))
    power = power if power >= 6 or power <= -4 else 0
    decimals = max(0, math.ceil(power - math.log10(step) - 1e-3))
    if decimals > 5:
        labels, note = tick_labels([round((value - values[0]) / step) * step for value in values])
        return labels, f" minus {number(values[0], 15)}{note}"
    labels = [f"{value / 10.0**power:,.{decimals}f}" for value in values]
    return labels, f" (×10{str(power).translate(SUPERSCRIPT)})" if power else ""


def _axes(svg: Svg, x: tuple[float, float], y: tuple[float, float], x_title: str, y_title: str) -> tuple[Axis, Axis]:
    """Grid, ticks and titles; the two scales to draw with."""
    bottom, y_ticks, x_ticks = svg.height - BOTTOM, ticks(*y), ticks(*x)
    labels, note = tick_labels(y_ticks)
    left, right = 30 + SIGN * max(map(len, labels)), WIDTH - RIGHT
    across, up = Axis(*x, left, right), Axis(*y, bottom, TOP)
    for value, label in zip(y_ticks, labels, strict=True):
        svg.add("line", x1=left, x2=right, y1=up(value), y2=up(value), class_="grid")
        svg.text(left - 6, up(value) + 4, label, text_anchor="end")
    middle = f"translate(12 {(TOP + bottom) / 2:.0f}) rotate(-90)"
    svg.text(0, 0, y_title + note, "title", text_anchor="middle", transform=middle)
    labels, note = tick_labels(x_ticks)
    for value, label in zip(x_ticks, labels, strict=True):
        svg.add("line", x1=across(value), x2=across(value), y1=TOP, y2=bottom, class_="grid")
        inside = min(across(value), WIDTH - SIGN * len(label) / 2)
        svg.text(inside, bottom + 15, label, text_anchor="middle")
    svg.text((left + right) / 2, svg.height - 8, x_title + note, "title", text_anchor="middle")
    return across, up


# --- calibration ---


def normal_cdf(z: Array, distance: float, name: str = "z-score") -> str:
    """The distribution of scores that should be normal beside the normal one."""
    svg = Svg(f"Distribution of the {name}s beside the normal one; the largest gap is {number(distance, 3)}.")
    across, up = _axes(svg, (-CDF_LIMIT, CDF_LIMIT), (0.0, 1.0), name, "share of rows below")
    grid = np.linspace(-CDF_LIMIT, CDF_LIMIT, 161)
    found = shares_below(z, grid)
    svg.path([(across(at), up(share)) for at, share in zip(grid, ndtr(grid), strict=True)], "line ideal")
    svg.path([(across(at), up(share)) for at, share in zip(grid, found, strict=True)], "line model")
    for at, share in zip(CDF_STEPS, shares_below(z, CDF_STEPS), strict=True):
        tip = f"{name} below {at:g}: {percent(share)} of the rows, {percent(float(ndtr(at)))} expected"
        svg.add("circle", cx=across(at), cy=up(share), r=3, class_="dot model", data_tip=tip)
    return str(svg)


def shares_below(z: Array, grid: Array) -> Array:
    return np.searchsorted(np.sort(z), grid, side="right") / len(z)


def pit_histogram(counts: NDArray[np.int64], band: tuple[float, float]) -> str:
    """Bars of equal height where the model is right; the band is what chance does to them."""
    svg = Svg("Histogram of the probability integral transform with the band expected of a calibrated model.")
    top = 1.05 * max(float(counts.max()), band[1], 1.0)
    across, up = _axes(svg, (0.0, 1.0), (0.0, top), "predicted probability of a smaller value", "rows")
    low, high = band
    height = max(up(low) - up(high), 1.0)
    svg.add("rect", x=across(0), width=across(1) - across(0), y=up(high), height=height, class_="band")
    for i, rows in enumerate(counts.tolist()):
        start, stop = i / len(counts), (i + 1) / len(counts)
        inside = low <= rows <= high
        tip = f"{start:.2f} to {stop:.2f}: {count(rows)}, {low:.0f} to {high:.0f} expected"
        svg.add(
            "rect", x=across(start) + 1, width=across(stop) - across(start) - 2, y=up(rows), height=up(0) - up(rows),
            class_="bar model see-through" if inside else "bar off", data_tip=tip if inside else f"{tip} (outside)",
        )  # fmt: skip
    return str(svg)


def coverage(levels: Array, covered: Array, rows: int) -> str:
    """The share of rows in intervals of each level; on the diagonal where the model is right."""
    svg = Svg("Share of rows in the model's intervals against the intervals' level.")
    across, up = _axes(svg, (0.0, 1.0), (0.0, 1.0), "level of the interval", "share of rows inside")
    edges = [(level, margin(level, rows)) for level in np.linspace(0, 1, 41).tolist()]
    upper = [(across(level), up(level + spread)) for level, spread in edges]
    lower = [(across(level), up(level - spread)) for level, spread in reversed(edges)]
    svg.path([*upper, *lower], "band")
    svg.path([(across(0.0), up(0.0)), (across(1.0), up(1.0))], "line ideal")
    svg.path([(across(level), up(share)) for level, share in zip(levels, covered, strict=True)], "line model")
    for level, share in zip(levels.tolist(), covered.tolist(), strict=True):
        tip = f"{percent(level)} intervals hold {percent(share)} of the rows"
        svg.add("circle", cx=across(level), cy=up(share), r=3, class_="dot model", data_tip=tip)
    return str(svg)


# --- where the uncertainty is ---


def deviation_and_error(bins: Sequence[Bin], slope: float) -> str:
    """Mean absolute error against predicted deviation, by decile, beside the line of a calibrated model."""
    svg = Svg("Mean absolute error against predicted deviation, beside what a calibrated model has.")
    left, right = widened(min(each.deviation for each in bins), max(each.deviation for each in bins))
    left = 0.0 if left < 0.4 * right else left
    top = 1.08 * max(slope * right, *(each.error + each.error_margin for each in bins))
    across, up = _axes(svg, (left, right), (0.0, top), "predicted deviation", "mean absolute error")
    svg.path([(across(end), up(slope * end)) for end in (left, right)], "line ideal")
    for each in bins:
        x, spread = across(each.deviation), each.error_margin
        svg.add("line", x1=x, x2=x, y1=up(each.error - spread), y2=up(each.error + spread), class_="line model thin")
        tip = (
            f"Predicted deviation {number(each.deviation)}: mean error {number(each.error)}, "
            f"{number(slope * each.deviation)} expected ({count(each.rows)})"
        )
        svg.add("circle", cx=x, cy=up(each.error), r=4, class_="dot model", data_tip=tip)
    return str(svg)


def shares(bins: Sequence[Bin], about: str, key: str) -> str:
    """For each group of rows a bar of the mean predicted deviation, and one that splits the variance in its parts."""
    svg = Svg(f"Predicted deviation, and its share of function and noise, by {about}.", 30 + ROW * len(bins))
    start, width = LABELS + 96, WIDTH - RIGHT - LABELS - 96
    hatch = "M0 6L6 0M-1 1L1 -1M5 7L7 5"
    svg.parts.append(
        f'<defs><pattern id="{key}-noise" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" class="noise"/><path d="{hatch}" class="hatch"/></pattern>'
        f"{_clip(key, svg.height)}</defs>"
    )
    svg.text(LABELS, 12, "deviation", "title")
    svg.text(start, 12, "function", "title")
    svg.text(WIDTH - RIGHT, 12, "noise", "title", text_anchor="end")
    largest = max(each.deviation for each in bins) or 1.0
    for i, each in enumerate(bins):
        y = 20.0 + ROW * i
        tip = (
            f"{each.label}: deviation {number(each.deviation)}, {percent(1 - each.noise)} function and "
            f"{percent(each.noise)} noise ({count(each.rows)})"
        )
        svg.parts.append(_label(each.label, y + 15, key))
        long = 44 * each.deviation / largest
        svg.add("rect", x=LABELS, y=y + 4, width=long, height=ROW - 8, class_="bar model")
        svg.text(LABELS + long + 4, y + 15, number(each.deviation, 3))
        known = width * (1 - each.noise)
        svg.add("rect", x=start, y=y + 3, width=known, height=ROW - 6, class_="bar model")
        svg.add("rect", x=start + known, y=y + 3, width=width - known, height=ROW - 6, fill=f"url(#{key}-noise)")
        svg.add("rect", x=0, y=y, width=WIDTH, height=ROW, class_="hit", data_tip=tip)
    return str(svg)


def relevance(found: Sequence[tuple[str, float]]) -> str:
    """A bar for each input."""
    svg = Svg("Relevance of the inputs, the most relevant first.", 6 + ROW * len(found))
    svg.parts.append(f"<defs>{_clip('relevance', svg.height)}</defs>")
    room, largest = WIDTH - RIGHT - LABELS - 52, max(share for _, share in found) or 1.0
    for i, (name, share) in enumerate(found):
        y = 3.0 + ROW * i
        svg.parts.append(_label(name, y + 15, "relevance"))
        svg.add("rect", x=LABELS, y=y + 3, width=room * share / largest, height=ROW - 6, class_="bar model")
        svg.text(LABELS + room * share / largest + 5, y + 15, percent(share))
        tip = f"{shown(name)}: {percent(share)} of the kernel's sensitivity"
        svg.add("rect", x=0, y=y, width=WIDTH, height=ROW, class_="hit", data_tip=tip)
    return str(svg)


def _clip(key: str, height: float) -> str:
    """Labels wider than their room end there."""
    return f'<clipPath id="{key}-labels"><rect width="{LABELS - 6}" height="{height:.0f}"/></clipPath>'


def _label(name: str, y: float, key: str) -> str:
    text = _element("text", shown(name, LABEL), x=0, y=y, class_="tick label")
    return f'<g clip-path="url(#{key}-labels)">{text}</g>'


# --- predictions and training ---


def predictions(row: NDArray[np.int64], y: Array, mean: Array, bounds: Array) -> str:
    """Each row's 90 % interval at its predicted value, and its actual value: a dot inside, a cross outside."""
    svg = Svg("Actual against predicted values with the model's 90 % intervals.", 320)
    low, high = bounds.T
    limits = widened(min(low.min(), y.min()), max(high.max(), y.max()))
    sides = widened(mean.min(), mean.max())
    across, up = _axes(svg, sides, limits, "predicted", "actual")
    for x, a, b in zip(mean, low, high, strict=True):
        svg.add("line", x1=across(x), x2=across(x), y1=up(a), y2=up(b), class_="interval")
    ends = max(sides[0], limits[0]), min(sides[1], limits[1])
    svg.path([(across(end), up(end)) for end in ends], "line ideal")
    for i, (x, actual) in enumerate(zip(mean.tolist(), y.tolist(), strict=True)):
        inside = low[i] <= actual <= high[i]
        tip = (
            f"Row {row[i]:,}: actual {number(actual)}, predicted {number(x)}, 90 % interval {number(low[i])} to "
            f"{number(high[i])} ({'inside' if inside else 'outside'})"
        )
        at, height = across(x), up(actual)
        if inside:
            svg.add("circle", cx=at, cy=height, r=2.5, class_="dot model", data_tip=tip)
        else:
            cross = f"M{at - 4:.1f} {height - 4:.1f}l8 8m0 -8l-8 8"
            svg.add("path", d=cross, class_="cross", data_tip=tip)
    return str(svg)


def history(values: Sequence[float], name: str, best: int | None, epoch: str = "epoch") -> str:
    """A number by epoch (or whatever there is a record of each), from 1, with the best one marked."""
    svg = Svg(f"{name} by {epoch}" + (f"; {epoch} {best} was the best." if best else "."), 220)
    known = [(i + 1, value) for i, value in enumerate(values) if math.isfinite(value)]
    limits = widened(min(value for _, value in known), max(value for _, value in known))
    room = 0.02 * len(values)
    across, up = _axes(svg, (1 - room, len(values) + room), limits, epoch, name)
    svg.path([(across(i), up(value)) for i, value in known], "line model")
    if best:
        svg.add("line", x1=across(best), x2=across(best), y1=TOP, y2=svg.height - BOTTOM, class_="line ideal")
        late = best > 0.6 * len(values)
        svg.text(across(best) + (-5 if late else 5), TOP + 11, f"best: {best}", text_anchor="end" if late else "start")
    every = math.ceil(len(known) / MOST_EPOCHS)
    for i, value in known:
        if (i - 1) % every == 0 or i == best:
            kind = "dot off" if i == best else "dot model"
            tip = f"{epoch.capitalize()} {i}{' (best)' if i == best else ''}: {name} {number(value)}"
            svg.add("circle", cx=across(i), cy=up(value), r=4 if i == best else 2.5, class_=kind, data_tip=tip)
    return str(svg)
