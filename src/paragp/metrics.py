"""Scores of predictive distributions. Each metric carries its direction.

`METRICS[name]` holds the functions that give one number for a table; `z_scores` and `pit` give one number
per row. A weight counts as copies of its row.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from paragp.predictive import Array, PredictiveDistribution


def nll(dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Negative log likelihood per row, in nats.

    >>> dist = PredictiveDistribution(mean=np.zeros(1), function_var=np.zeros(1), noise_var=1.0)
    >>> round(nll(dist, [0.0]), 4)
    0.9189
    """
    return _mean(-dist.logpdf(y), weights)


def rmse(dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Root mean squared error of the predictive mean."""
    return float(np.sqrt(_mean((dist.targets(y) - dist.mean) ** 2, weights)))


def mae(dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Mean absolute error of the predictive mean."""
    return _mean(np.abs(dist.targets(y) - dist.mean), weights)


def crps(dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Continuous ranked probability score, in the units of y."""
    return _mean(dist.crps(y), weights)


def sharpness(dist: PredictiveDistribution, y: ArrayLike | None = None, weights: ArrayLike | None = None) -> float:
    """Mean predictive deviation, in the units of y: of two calibrated models the sharper one knows more."""
    return _mean(dist.std, weights)


def noise_fraction(dist: PredictiveDistribution, y: ArrayLike | None = None, weights: ArrayLike | None = None) -> float:
    """Mean share of the predictive variance (Eqn predvar) that is observation noise (Fig ucivarratio)."""
    return _mean(np.asarray(dist.noise_var) / dist.var, weights)


def coverage(
    dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None, *, level: float = 0.9
) -> float:
    """Share of rows whose y lies in the central interval of that level; calibrated means equal to it."""
    low, high = dist.interval(level).T
    y = dist.targets(y)
    return _mean(((low <= y) & (y <= high)).astype(float), weights)


def z_scores(dist: PredictiveDistribution, y: ArrayLike) -> Array:
    """(y - mean) / std per row; standard normal for a calibrated normal prediction (Fig eta).

    For one of another shape it is `dist.normal_scores(y)` that is.
    """
    return dist.z_scores(y)


def pit(dist: PredictiveDistribution, y: ArrayLike) -> Array:
    """Probability integral transform cdf(y) per row; uniform for a calibrated prediction."""
    return dist.cdf(y)


COVERAGE_LEVELS = (50, 80, 90, 95)  # per cent


class Metric(NamedTuple):
    """A score of one table, with its direction."""

    function: Callable[..., float]
    label: str
    better: str  # "lower", "higher", or "neither" for a description

    def __call__(self, dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None) -> float:
        return self.function(dist, y, weights=weights)


METRICS: dict[str, Metric] = {
    "nll": Metric(nll, "NLL", better="lower"),
    "rmse": Metric(rmse, "RMSE", better="lower"),
    "crps": Metric(crps, "CRPS", better="lower"),
    "mae": Metric(mae, "MAE", better="lower"),
    "sharpness": Metric(sharpness, "sharpness", better="neither"),
    "noise_fraction": Metric(noise_fraction, "noise fraction", better="neither"),
    **{
        f"coverage_{level}": Metric(partial(coverage, level=level / 100), f"coverage at {level} %", better="neither")
        for level in COVERAGE_LEVELS
    },
}


def evaluate(dist: PredictiveDistribution, y: ArrayLike, weights: ArrayLike | None = None) -> dict[str, float]:
    """All of `METRICS` at once."""
    return {name: metric(dist, y, weights) for name, metric in METRICS.items()}


class Scores:
    """All of `METRICS` over rows that come in parts; nothing of a part is kept but its scores.

    >>> scores = Scores()
    >>> for y in ([0.0, 1.0], [2.0]):
    ...     scores.add(PredictiveDistribution(np.zeros(len(y)), np.ones(len(y)), np.array(0.0)), np.array(y))
    >>> round(scores.total()["rmse"] ** 2, 3), scores.rows
    (1.667, 3)
    """

    def __init__(self) -> None:
        self.rows, self.weight = 0, 0.0
        self.sums = dict.fromkeys(METRICS, 0.0)

    def add(self, dist: PredictiveDistribution, y: Array, weights: Array | None = None) -> None:
        """Take in some rows."""
        weight = float(len(y)) if weights is None else float(weights.sum())
        self.rows += len(y)
        if not weight:
            return
        self.weight += weight
        for name, score in evaluate(dist, y, weights).items():
            self.sums[name] += weight * (score**2 if name == "rmse" else score)

    def total(self) -> dict[str, float]:
        """The scores of all rows so far."""
        means = {name: value / self.weight for name, value in self.sums.items()}
        return means | {"rmse": float(np.sqrt(means["rmse"]))}


def floored_scores(dist: PredictiveDistribution, y: ArrayLike, min_std: float) -> dict[str, float]:
    """All of `METRICS` with every scale at least `min_std`, as protocols ask that compare models that may spike."""
    y, scores = dist.targets(y), Scores()
    for rows, part in dist.floored(min_std):
        scores.add(part, y[rows])
    return scores.total()


def _mean(values: Array, weights: ArrayLike | None) -> float:
    return float(np.average(values, weights=None if weights is None else np.asarray(weights)))
