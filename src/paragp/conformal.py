"""Intervals with a guarantee: split conformal prediction on how far out rows are that the model has not seen.

A row's score z is the normal quantile at its cdf: for a normal, (y - mean) / std. Where rows are exchangeable, an
interval of all that is at most q far out, with q the ceil((n + 1) level)-th smallest |z| of n such rows, holds the next
row with a probability of at least `level`, and of at most level + 1 / (n + 1) where no two scores are equal, whatever
the model's faults (Vovk et al. 2005; Lei et al. 2018). The probability is over rows of all kinds; with scores by group
it is so in each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from paragp.predictive import Array, check_level

SLACK = 1e-5  # of an interval's reach: where scores repeat (counts, say), rounding must not leave out all equal ones


def rows_needed(level: float) -> int:
    """The fewest rows by which a level can be guaranteed.

    >>> [rows_needed(level) for level in (0.5, 0.9, 0.95)]
    [1, 9, 19]
    """
    share = _exact(level)
    return math.ceil(share / (1 - share))


def _exact(level: float) -> Fraction:
    """The level as it was meant: .9 is nine tenths, and ten times it is not a little more than 9."""
    check_level(level)
    near = Fraction(float(level)).limit_denominator(10**9)
    return near if 0 < near < 1 else Fraction(float(level))


@dataclass(frozen=True)
class Calibration:
    """What is known of a model's errors: |z| of rows it has not seen, rising; also by group.

    The z are those of `PredictiveDistribution.reach`: intervals lean to where the model's distributions do.
    """

    scores: Array
    by: str | None = None  # the column that says a row's group
    groups: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, z: Array, by: str | None = None, keys: Sequence[str | None] = ()) -> "Calibration":
        """From z-scores (n,) and, by group, the rows' groups."""
        if not len(z) or not np.isfinite(z).all():
            raise ValueError(
                f"A calibration needs rows with finite predictions and targets, got {int(np.isfinite(z).sum())} of "
                f"{len(z)}."
            )
        scores = np.abs(z)
        found: dict[str, list[float]] = {}
        for key, score in zip(keys, scores.tolist() if len(keys) else (), strict=True):
            if key is not None:
                found.setdefault(key, []).append(score)
        return cls(np.sort(scores), by, {key: np.sort(found[key]) for key in sorted(found)})

    def factor(self, level: float, keys: Sequence[str | None] | None = None) -> Array:
        """How far out an interval of this level reaches to each side; by group for each of the rows' groups.

        A row of a group that was not seen, or of none, gets that of all rows.
        """
        whole = _quantile(self.scores, level, "calibration")
        if keys is None:
            return np.array(whole)
        wanted = {key for key in keys if key in self.groups}
        by_group = {key: _quantile(self.groups[key], level, f"group {key!r}") for key in wanted if key is not None}
        return np.array([whole if key is None else by_group.get(key, whole) for key in keys])


def _quantile(scores: Array, level: float, where: str) -> float:
    needed = rows_needed(level)
    if len(scores) < needed:
        raise ValueError(
            f"A coverage of {level} can be guaranteed from {needed} calibration rows on; the {where} has "
            f"{len(scores)}. Calibrate with more rows, or ask for a lower coverage."
        )
    rank = math.ceil((len(scores) + 1) * _exact(level))
    return float(scores[rank - 1]) * (1 + SLACK)
