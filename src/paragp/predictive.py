"""PredictiveDistribution: what a fitted model says about y, and how much of it is function or noise."""

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paragp.shape import NORMAL, Shape
from paragp.shape import Array as Array

EPSILON = np.finfo(np.float64).epsneg  # 1 less that is the largest level of a quantile
FLOOR_STEP = 0.05  # how closely rows of a mixture share a floor, relative to it


@dataclass(frozen=True)
class PredictiveDistribution:
    """Distributions of y for n rows (Eqn preddist2), with Var[y|x] in its two parts (Eqn predvar).

    All rows have the same `shape`, the normal's unless said otherwise: y = mean + std Z, Z ~ shape.

    >>> dist = PredictiveDistribution(mean=np.zeros(2), function_var=np.array([0.0, 3.0]), noise_var=1.0)
    >>> dist.std
    array([1., 2.])
    >>> dist.interval(0.9).round(2)
    array([[-1.64,  1.64],
           [-3.29,  3.29]])
    >>> replace(dist, shape=Shape(dof=3.0)).interval(0.99).round(2)
    array([[-3.37,  3.37],
           [-6.74,  6.74]])
    """

    mean: Array  # (n,)
    function_var: Array  # (n,), sigma_f(x)^2: the latent function's variance
    noise_var: Array  # (n,) or one number for all, sigma_obs^2: the observation noise
    shape: Shape = NORMAL

    def __post_init__(self) -> None:
        mean = np.atleast_1d(np.asarray(self.mean, dtype=np.float64))
        object.__setattr__(self, "mean", mean)
        for name in ("function_var", "noise_var"):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            if value.shape not in ((), mean.shape) or not np.all(value >= 0):
                raise ValueError(
                    f"{name} must be non-negative, one number or one per row ({mean.shape}); got shape "
                    f"{value.shape} with minimum {value.min() if value.size else 'none'}."
                )
            object.__setattr__(self, name, np.broadcast_to(value, mean.shape))
        if not isinstance(self.shape, Shape):
            raise ValueError(f"shape must be a Shape, such as Shape(dof=4.0), got {self.shape!r}.")

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def var(self) -> Array:
        """Var[y|x] = sigma_obs^2 + sigma_f(x)^2, shape (n,)."""
        return self.function_var + self.noise_var

    @property
    def std(self) -> Array:
        """The deviation of y (not of the latent function), shape (n,)."""
        return np.sqrt(self.var)

    @property
    def dof(self) -> float:
        """The degrees of freedom of Student-t tails; inf: normal."""
        return self.shape.dof

    @property
    def function_std(self) -> Array:
        """The latent function's deviation sigma_f(x), shape (n,)."""
        return np.sqrt(self.function_var)

    @property
    def noise_std(self) -> Array:
        """The observation noise's deviation sigma_obs, shape (n,)."""
        return np.sqrt(self.noise_var)

    @property
    def expected_error(self) -> Array:
        """E|y - mean|, the mean absolute error of a model that is right; shape (n,)."""
        return self.std * self.shape.expected_error

    def z_scores(self, y: ArrayLike) -> Array:
        """(y - mean) / std, of mean 0 and variance 1 if the model is right, and then standard normal if it is normal;
        shape (n,)."""
        return (self.targets(y) - self.mean) / self.std

    def normal_scores(self, y: ArrayLike) -> Array:
        """The standard normal's quantile at cdf(y): standard normal if the model is right, whatever its shape.

        A normal's are its z-scores; others reach no farther than 38. Shape (n,).

        >>> PredictiveDistribution(np.zeros(1), np.ones(1), 0.0, Shape(dof=4.0)).normal_scores(5.0).round(2)
        array([3.07])
        """
        return self.shape.normal_scores(self.z_scores(y))

    def reach(self, y: ArrayLike) -> Array:
        """How far out y is, in the normal's deviations: its normal score, without an end. Shape (n,)."""
        return self.shape.reach(self.z_scores(y))

    def within_reach(self, scores: Array) -> Array:
        """The interval of what is at most so far out to either side, one number or (n,); shape (n, 2)."""
        ends = [self.mean + self.std * self.shape.at_reach(side * np.asarray(scores)) for side in (-1, 1)]
        return np.stack(ends, axis=-1)

    def logpdf(self, y: ArrayLike) -> Array:
        """The log density of y, shape (n,)."""
        return self.shape.logpdf(self.z_scores(y)) - np.log(self.std)

    def cdf(self, y: ArrayLike) -> Array:
        """P(Y <= y), shape (n,)."""
        return self.shape.cdf(self.z_scores(y))

    def ppf(self, p: ArrayLike) -> Array:
        """Quantiles: shape (n,) for one level p, (n, k) for k levels."""
        p = np.asarray(p, dtype=np.float64)
        if p.ndim > 1 or not np.all((p > 0) & (p < 1)):
            raise ValueError(f"Quantile levels must be one or a list, strictly between 0 and 1; got {p}.")
        quantiles = self.mean[:, None] + self.std[:, None] * self.shape.ppf(np.atleast_1d(p))
        return quantiles if p.ndim else quantiles[:, 0]

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds y with probability `coverage`, shape (n, 2)."""
        return self.ppf(central(coverage))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of y, (n,)."""
        return self.std * self.shape.crps(self.z_scores(y))

    def sample(self, n_samples: int = 1, random_state: int | np.random.Generator | None = None) -> Array:
        """Independent draws of y, shape (n, n_samples)."""
        draws = self.shape.sample((len(self), n_samples), np.random.default_rng(random_state))
        return self.mean[:, None] + self.std[:, None] * draws

    def floored(self, min_std: float) -> list[tuple[Any, "PredictiveDistribution"]]:
        """The same with scales (of a normal: std) of at least `min_std`, as rows of one shape each; what is missing
        counts as noise.

        Scores of models that may spike (repeated targets) compare only above a common floor: no log density is then
        above a normal's of that std, whatever the shape. Of a mixture it is each part's scale that is bounded, to
        within 5 %, so that its shape depends on the row.

        >>> dist = PredictiveDistribution(mean=np.zeros(2), function_var=np.array([0.0, 4.0]), noise_var=1e-6)
        >>> [part.std.round(3) for _, part in dist.floored(0.01)]
        [array([0.01, 2.  ])]
        """
        if len(self.shape.parts) == 1:
            missing = np.maximum((min_std / self.shape.least_scale) ** 2 - self.var, 0)
            return [(slice(None), replace(self, noise_var=self.noise_var + missing))]
        with np.errstate(divide="ignore"):
            least = np.maximum(min_std / self.std, self.shape.least_scale)
        steps = np.ceil(np.log(least / self.shape.least_scale) / math.log1p(FLOOR_STEP))
        found = []
        for step in np.unique(steps):
            rows = np.flatnonzero(steps == step)
            shape, size = self.shape.widened(self.shape.least_scale * (1 + FLOOR_STEP) ** step if step else 0.0)
            var = self.var[rows]
            wider = PredictiveDistribution(
                self.mean[rows], self.function_var[rows], self.noise_var[rows] + (size**2 - 1) * var, shape
            )
            found.append((rows, wider))
        return found

    def rescaled(self, shift: float, scale: float) -> "PredictiveDistribution":
        """The distribution of shift + scale y.

        >>> PredictiveDistribution(np.zeros(1), np.ones(1), 0.0).rescaled(10.0, 2.0).interval(0.9).round(1)
        array([[ 6.7, 13.3]])
        """
        return replace(
            self,
            mean=shift + scale * self.mean,
            function_var=scale**2 * self.function_var,
            noise_var=scale**2 * np.asarray(self.noise_var),
            shape=self.shape if scale >= 0 else self.shape.mirrored(),
        )

    def targets(self, y: ArrayLike) -> Array:
        """y as one number per row, checked."""
        y = np.asarray(y, dtype=np.float64)
        if y.shape not in ((), self.mean.shape):
            raise ValueError(f"y has shape {y.shape}, the prediction has {len(self)} rows. Pass one y per row.")
        return y


def central(coverage: float) -> list[float]:
    """The levels of the quantiles between which that share lies.

    >>> central(0.5)
    [0.25, 0.75]
    """
    check_level(coverage)
    below = (1 - coverage) / 2
    return [below, min(1 - below, 1 - EPSILON)]


def check_level(coverage: float) -> None:
    """Refuse what is no level of an interval."""
    if not isinstance(coverage, Real) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number strictly between 0 and 1 (0.9 for 90 %), got {coverage!r}.")
