"""Groups of rows, and what is true of each: deciles of a number, or the most frequent categories."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from paragp.data.tables import Array, Column
from paragp.report.gather import Sample
from paragp.report.words import number, shown

DECILES = 10
MOST_CATEGORIES = 10
Mask = NDArray[np.bool_]


class Bin(NamedTuple):
    """Rows that are alike in one respect."""

    label: str
    rows: int
    deviation: float  # mean predicted deviation
    error: float  # mean absolute error
    error_margin: float  # two standard errors of it
    noise: float  # mean share of noise in the predicted variance


def by_deviation(sample: Sample) -> list[Bin]:
    """By deciles of the predicted deviation."""
    return [_bin(sample, label, mask) for label, mask in _by_number(sample.dist.std)]


def by_input(sample: Sample, column: Column, values: Array) -> list[Bin]:
    """By deciles of a number or by the most frequent categories; rows where it is missing on their own."""
    known = ~np.isnan(values)
    found = _by_number(values) if column.kind == "numeric" else _by_category(values, column)
    bins = [_bin(sample, label, mask) for label, mask in found]
    return bins if known.all() else [*bins, _bin(sample, "missing", ~known)]


def _by_number(values: Array) -> Iterator[tuple[str, Mask]]:
    known = values[~np.isnan(values)]
    distinct = np.unique(known)
    if len(distinct) <= DECILES:
        yield from ((number(value), values == value) for value in distinct.tolist())
        return
    edges = np.unique(np.quantile(known, np.linspace(0, 1, DECILES + 1), method="lower"))
    for i, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        last = i == len(edges) - 2
        yield f"{number(low, 3)} to {number(high, 3)}", (values >= low) & ((values <= high) if last else values < high)


def _by_category(values: Array, column: Column) -> Iterator[tuple[str, Mask]]:
    positions, rows = np.unique(values[~np.isnan(values)], return_counts=True)
    for i in np.argsort(-rows, kind="stable")[:MOST_CATEGORIES].tolist():
        position = int(positions[i])
        known = position < len(column.categories)
        yield shown(column.categories[position]) if known else "any other", values == position


def _bin(sample: Sample, label: str, mask: Mask) -> Bin:
    error, dist, rows = sample.error[mask], sample.dist, int(mask.sum())
    margin = 2 * float(error.std(ddof=1)) / math.sqrt(rows) if rows > 1 else 0.0
    noise = float((dist.noise_var[mask] / dist.var[mask]).mean())
    return Bin(label, rows, float(dist.std[mask].mean()), float(error.mean()), margin, noise)


def expected_counts(rows: int, bins: int) -> tuple[float, float]:
    """Between which counts a bin of uniform values lies in 95 % of all cases."""
    low, high = binom.interval(0.95, rows, 1 / bins)
    return float(low), float(high)


def margin(level: float, rows: int) -> float:
    """Two standard errors of a share of rows: by how much chance alone moves it."""
    return 2 * math.sqrt(level * (1 - level) / rows)
