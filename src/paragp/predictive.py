"""PredictiveDistribution: what a fitted model says about y, and how much of it is function or noise."""

from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PredictiveDistribution:
    """Normal distributions of y for n rows (Eqn preddist2), with Var[y|x] in its two parts (Eqn predvar).

    >>> dist = PredictiveDistribution(mean=np.zeros(2), function_var=np.array([0.0, 3.0]), noise_var=1.0)
    >>> dist.std
    array([1., 2.])
    >>> dist.interval(0.9).round(2)
    array([[-1.64,  1.64],
           [-3.29,  3.29]])
    """

    mean: Array  # (n,)
    function_var: Array  # (n,), sigma_f(x)^2: the latent function's variance
    noise_var: Array  # (n,) or one number for all, sigma_obs^2: the observation noise

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
    def function_std(self) -> Array:
        """The latent function's deviation sigma_f(x), shape (n,)."""
        return np.sqrt(self.function_var)

    @property
    def noise_std(self) -> Array:
        """The observation noise's deviation sigma_obs, shape (n,)."""
        return np.sqrt(self.noise_var)

    def z_scores(self, y: ArrayLike) -> Array:
        """(y - mean) / std, standard normal if the model is right; shape (n,)."""
        return (self.targets(y) - self.mean) / self.std

    def logpdf(self, y: ArrayLike) -> Array:
        """The log density of y, shape (n,)."""
        return -0.5 * (np.log(2 * np.pi * self.var) + self.z_scores(y) ** 2)

    def cdf(self, y: ArrayLike) -> Array:
        """P(Y <= y), shape (n,)."""
        return ndtr(self.z_scores(y))

    def ppf(self, p: ArrayLike) -> Array:
        """Quantiles: shape (n,) for one level p, (n, k) for k levels."""
        p = np.asarray(p, dtype=np.float64)
        if p.ndim > 1 or not np.all((p > 0) & (p < 1)):
            raise ValueError(f"Quantile levels must be one or a list, strictly between 0 and 1; got {p}.")
        quantiles = self.mean[:, None] + self.std[:, None] * ndtri(np.atleast_1d(p))
        return quantiles if p.ndim else quantiles[:, 0]

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds y with probability `coverage`, shape (n, 2)."""
        check_level(coverage)
        return self.ppf([(1 - coverage) / 2, (1 + coverage) / 2])

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of y: std (z (2 cdf(z) - 1) + 2 pdf(z) - 1/sqrt(pi)), (n,)."""
        z = self.z_scores(y)
        pdf = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return self.std * (z * (2 * ndtr(z) - 1) + 2 * pdf - 1 / np.sqrt(np.pi))

    def sample(self, n_samples: int = 1, random_state: int | np.random.Generator | None = None) -> Array:
        """Independent draws of y, shape (n, n_samples)."""
        rng = np.random.default_rng(random_state)
        return self.mean[:, None] + self.std[:, None] * rng.standard_normal((len(self), n_samples))

    def floored(self, min_std: float) -> "PredictiveDistribution":
        """The same with std at least `min_std`; what is missing counts as noise.

        Scores of models that may spike (repeated targets) compare only above a common floor.
        """
        missing = np.maximum(min_std**2 - self.var, 0)
        return replace(self, noise_var=self.noise_var + missing)

    def rescaled(self, shift: float, scale: float) -> "PredictiveDistribution":
        """The distribution of shift + scale y.

        >>> PredictiveDistribution(np.zeros(1), np.ones(1), 0.0).rescaled(10.0, 2.0).interval(0.9).round(1)
        array([[ 6.7, 13.3]])
        """
        return PredictiveDistribution(
            shift + scale * self.mean, scale**2 * self.function_var, scale**2 * np.asarray(self.noise_var)
        )

    def targets(self, y: ArrayLike) -> Array:
        """y as one number per row, checked."""
        y = np.asarray(y, dtype=np.float64)
        if y.shape not in ((), self.mean.shape):
            raise ValueError(f"y has shape {y.shape}, the prediction has {len(self)} rows. Pass one y per row.")
        return y


def check_level(coverage: float) -> None:
    """Refuse what is no level of an interval."""
    if not isinstance(coverage, Real) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number strictly between 0 and 1 (0.9 for 90 %), got {coverage!r}.")
