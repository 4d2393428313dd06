"""Intervals with a guarantee: split conformal prediction on the z-scores of rows that the model has not seen.

Where rows are exchangeable, an interval mean +- q std, with q the ceil((n + 1) level)-th smallest |z| of n such rows,
holds the next row with a probability of at least `level` and at most level + 1 / (n + 1), whatever the model's faults
(Vovk et al. 2005; Lei et al. 2018). The probability is over rows of all kinds; with scores by group it is so in each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paragp.predictive import Array


def rows_needed(level: float) -> int:
    """The fewest rows by which a level can be guaranteed.

    >>> [rows_needed(level) for level in (0.5, 0.9, 0.95)]
    [1, 9, 19]
    """
    return max(1, math.ceil(round(level / (1 - level), 9)))


@dataclass(frozen=True)
class Calibration:
    """What is known of a model's errors: |z| of rows it has not seen, rising; also by group."""

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
        known = sorted({key for key in keys if key is not None})
        found = {key: np.sort(scores[np.array([key == other for other in keys])]) for key in known}
        return cls(np.sort(scores), by, found)

    def factor(self, level: float, keys: Sequence[str | None] | None = None) -> Array:
        """How many deviations an interval of this level reaches to each side; by group for each of the rows' groups.

        A row of a group that was not seen, or of none, gets that of all rows.
        """
        whole = _quantile(self.scores, level, "calibration")
        if keys is None:
            return np.array(whole)
        wanted = {key for key in keys if key in self.groups}
        by_group = {key: _quantile(self.groups[key], level, f"group {key!r}") for key in wanted if key is not None}
        return np.array([whole if key is None else by_group.get(key, whole) for key in keys])


def _quantile(scores: Array, level: float, where: str) -> float:
    if not 0 < level < 1:
        raise ValueError(f"The coverage must lie between 0 and 1 (.9 for 90 %), got {level}.")
    if len(scores) < rows_needed(level):
        raise ValueError(
            f"A coverage of {level:g} can be guaranteed from {rows_needed(level)} calibration rows on; the {where} has "
            f"{len(scores)}. Calibrate with more rows, or ask for a lower coverage."
        )
    rank = math.ceil(round((len(scores) + 1) * level, 9))  # .9 * 10 is a little more than 9 in binary
    return float(scores[min(rank, len(scores)) - 1])
