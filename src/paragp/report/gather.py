"""From batches of rows to plain facts, in memory that does not grow with their number.

Scores, coverage, the probability integral transform, the data summary and the most surprising rows are of all rows;
pictures that need the rows themselves are of a uniform sample.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paragp.checks import check_spread
from paragp.data.tables import Array, Coded, Column, read_columns
from paragp.fitted import Fitted
from paragp.metrics import COVERAGE_LEVELS, Scores
from paragp.predictive import PredictiveDistribution
from paragp.report.words import number, shown

MOST_ROWS = 100_000  # that pictures are made of
MOST_SURPRISING = 10
MOST_IMPORTANT = 6  # inputs that are looked at one by one
LEVELS = np.array([*np.arange(5, 100, 5), 99]) / 100
PIT_BINS, FEW_PIT_BINS, FEW_ROWS = 20, 10, 400  # rows below which the bins are fewer
FAR = 5.0  # deviations from the training mean
EXAMPLES = 5  # of categories that were never seen


class Guaranteed(NamedTuple):
    """Intervals of one level: with a guarantee, and beside them the model's own."""

    level: float
    coverage: float
    width: float
    own_coverage: float
    own_width: float


class Surprise(NamedTuple):
    """A row far from its prediction."""

    row: int  # from 1
    actual: float
    predicted: float
    deviation: float
    z: float
    values: tuple[str, ...]  # of the important inputs


@dataclass(frozen=True)
class Sample:
    """Rows, rising; `order` puts them in a random order."""

    row: NDArray[np.int64]  # from 1
    order: NDArray[np.intp]
    y: Array
    dist: PredictiveDistribution
    inputs: Array  # (n, k), of the important columns: numbers, or positions among the categories; NaN where missing

    @property
    def normal_scores(self) -> Array:
        return self.dist.normal_scores(self.y)

    @property
    def error(self) -> Array:
        return np.abs(self.y - self.dist.mean)


@dataclass
class ColumnFacts:
    """What one column of the data holds, beside what training saw of it."""

    column: Column
    missing: int = 0
    low: float = np.inf
    high: float = -np.inf
    counts: dict[str, int] = field(default_factory=dict)  # of the categories known from training
    unknown: int = 0  # values that training did not see, or that lie far outside
    examples: list[str] = field(default_factory=list)  # of unknown categories

    def add(self, values: Array | Coded) -> None:
        if isinstance(values, Coded):
            self._add_categories(values)
        else:
            self._add_numbers(values)

    def _add_numbers(self, values: Array) -> None:
        known = values[~np.isnan(values)]
        self.missing += len(values) - len(known)
        if len(known):
            self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))
            distance = np.abs(known / self.column.deviation - self.column.mean / self.column.deviation)
            self.unknown += int((distance > FAR).sum())

    def _add_categories(self, values: Coded) -> None:
        totals = np.bincount(values.which, minlength=len(values.keys)).tolist()
        for key, total in zip(values.keys, totals, strict=True):
            if key is None:
                self.missing += total
            elif key in self.column.categories:
                self.counts[key] = self.counts.get(key, 0) + total
            elif total:
                self.unknown += total
                if len(self.examples) < EXAMPLES and shown(key) not in self.examples:
                    self.examples.append(shown(key))


@dataclass(frozen=True)
class Facts:
    """All that a report says of the data."""

    rows: int
    scores: dict[str, float]
    baseline: dict[str, float]  # of a normal that is the same for each row
    covered: Array  # share of rows in the model's intervals, by LEVELS
    pit: NDArray[np.int64]  # counts of cdf(y) in bins of equal width
    guaranteed: list[Guaranteed]
    surprising: list[Surprise]
    columns: list[ColumnFacts]
    important: list[int]  # positions of columns
    sample: Sample


class Gathering:
    """Takes in rows, block by block."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted
        self.rows = 0
        self.low, self.high = np.inf, -np.inf
        self.scores, self.baseline = Scores(), Scores()
        self.covered = np.zeros(len(LEVELS))
        self.pit = np.zeros(PIT_BINS, dtype=np.int64)
        levels = [] if fitted.calibration is None else [level / 100 for level in COVERAGE_LEVELS]
        self.guaranteed = {level: np.zeros(4) for level in levels}
        self.surprising: list[Surprise] = []
        self.columns = [ColumnFacts(column) for column in fitted.columns]
        self.important = important_columns(fitted)
        self._rng = np.random.default_rng(0)
        self._kept = np.empty((0, 6 + len(self.important)))  # key, row, y, mean, variances, inputs

    def add(self, X: Any, y: Array) -> None:
        """Rows of a table with the model's columns, and their targets."""
        self._check("target", "Leave such rows out", y)
        self.low, self.high = min(self.low, float(y.min())), max(self.high, float(y.max()))
        check_spread(self.high - self.low)
        dist = self.fitted.predict(X)
        self._check("prediction", "Look at these rows' inputs, or fit again", dist.mean, dist.std)
        with np.errstate(over="ignore"):  # a target that is far away in deviations: scores of it may be infinite
            self._score(X, dist, y)
        found = list(read_columns(self.fitted.columns, X))
        for column, values in zip(self.columns, found, strict=True):
            column.add(values)
        seen = [found[i] for i in self.important]
        self._surprise(dist, y, seen)
        self._sample(dist, y, seen)
        self.rows += len(y)

    def facts(self) -> Facts:
        if not self.rows:
            raise ValueError("There are no rows to report on. Pass at least one.")
        few = self.rows < FEW_ROWS
        return Facts(
            self.rows, self.scores.total(), self.baseline.total(), self.covered / self.rows,
            self.pit.reshape(FEW_PIT_BINS, -1).sum(axis=1) if few else self.pit,
            [Guaranteed(level, *(sums / self.rows).tolist()) for level, sums in self.guaranteed.items()],
            sorted(self.surprising, key=_least_surprising, reverse=True), self.columns, self.important, self._sampled(),
        )  # fmt: skip

    def _check(self, what: str, advice: str, *parts: Array) -> None:
        bad = ~np.logical_and.reduce([np.isfinite(part) for part in parts])
        if bad.any():
            first = self.rows + 1 + int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"The {what} is missing or infinite in {int(bad.sum())} of the rows {self.rows + 1} to "
                f"{self.rows + len(bad)}, the first time in row {first} (counted from 1). {advice}."
            )

    def _score(self, X: Any, dist: PredictiveDistribution, y: Array) -> None:
        target, n = self.fitted.target, len(y)
        self.scores.add(dist, y)
        constant = PredictiveDistribution(np.full(n, target.mean), np.zeros(n), np.array(target.deviation**2))
        self.baseline.add(constant, y)
        pit = dist.cdf(y)
        self.covered += np.searchsorted(np.sort(np.abs(2 * pit - 1)), LEVELS, side="right")
        bins = np.minimum((pit * PIT_BINS).astype(np.int64), PIT_BINS - 1)
        self.pit += np.bincount(bins, minlength=PIT_BINS)
        for level in list(self.guaranteed):
            try:
                bounds = self.fitted.interval(X, level, guaranteed=True, dist=dist)
            except ValueError:  # too few calibration rows, or too few of one group
                del self.guaranteed[level]
                continue
            self.guaranteed[level] += np.array([*_held(bounds, y), *_held(dist.interval(level), y)])

    def _surprise(self, dist: PredictiveDistribution, y: Array, inputs: Sequence[Array | Coded]) -> None:
        z = dist.z_scores(y)
        for i in np.argsort(-np.abs(z), kind="stable")[:MOST_SURPRISING].tolist():
            self.surprising.append(
                Surprise(
                    self.rows + i + 1, float(y[i]), float(dist.mean[i]), float(dist.std[i]), float(z[i]),
                    tuple(_cell(values, i) for values in inputs),
                )
            )  # fmt: skip
        self.surprising = heapq.nlargest(MOST_SURPRISING, self.surprising, key=_least_surprising)

    def _sample(self, dist: PredictiveDistribution, y: Array, inputs: Sequence[Array | Coded]) -> None:
        """Each row draws a number, and those with the smallest stay: a uniform sample, however the rows are cut."""
        numbers = [
            _positions(values, self.fitted.columns[i]) if isinstance(values, Coded) else values
            for i, values in zip(self.important, inputs, strict=True)
        ]
        keys, rows = self._rng.random(len(y)), self.rows + 1 + np.arange(len(y))
        new = np.column_stack([keys, rows, y, dist.mean, dist.function_var, dist.noise_var, *numbers])
        if len(self._kept) == MOST_ROWS:
            new = new[keys < self._kept[:, 0].max()]
        both = np.concatenate([self._kept, new])
        if len(both) > MOST_ROWS:
            both = both[np.argpartition(both[:, 0], MOST_ROWS)[:MOST_ROWS]]
        self._kept = both

    def _sampled(self) -> Sample:
        kept = self._kept[np.argsort(self._kept[:, 1])]
        keys, row, y, mean, function_var, noise_var = kept[:, :6].T
        dist = PredictiveDistribution(mean, function_var, noise_var, self.fitted.shape)
        return Sample(row.astype(np.int64), np.argsort(keys), y, dist, kept[:, 6:])


def important_columns(fitted: Fitted) -> list[int]:
    """The positions of the most relevant inputs; of the first ones where relevance is unknown."""
    relevance = fitted.feature_relevance
    order = list(range(len(fitted.columns)))
    if relevance is not None:
        order.sort(key=lambda i: -relevance[fitted.columns[i].name])
    return order[:MOST_IMPORTANT]


def _least_surprising(row: Surprise) -> tuple[float, int]:
    return abs(row.z), -row.row


def _held(bounds: Array, y: Array) -> tuple[float, float]:
    """How many targets lie in their intervals, and the sum of the intervals' widths."""
    low, high = bounds.T
    return float(((low <= y) & (y <= high)).sum()), float((high - low).sum())


def _cell(values: Array | Coded, i: int) -> str:
    if isinstance(values, Coded):
        key = values.keys[values.which[i]]
        return "missing" if key is None else shown(key)
    return "missing" if np.isnan(values[i]) else number(float(values[i]))


def _positions(values: Coded, column: Column) -> Array:
    """Each row's position among the categories known from training; one past the end for any other."""
    known = {key: float(i) for i, key in enumerate(column.categories)}
    others = float(len(column.categories))
    return np.array([np.nan if key is None else known.get(key, others) for key in values.keys])[values.which]
