"""PredictiveDistribution: what a fitted model says about y, and how much of it is function or noise."""

import math
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, ndtr, ndtri, stdtr, stdtrit

Array = NDArray[np.float64]
SMALLEST = np.finfo(np.float64).tiny  # of a probability that is turned into a finite score


@dataclass(frozen=True)
class PredictiveDistribution:
    """Distributions of y for n rows (Eqn preddist2), with Var[y|x] in its two parts (Eqn predvar).

    They are normal, or with a finite `dof` Student-t: of the same mean and variance, with heavier tails,

        y = mean + scale T,  T ~ t(dof),  scale = std sqrt((dof - 2) / dof).

    >>> dist = PredictiveDistribution(mean=np.zeros(2), function_var=np.array([0.0, 3.0]), noise_var=1.0)
    >>> dist.std
    array([1., 2.])
    >>> dist.interval(0.9).round(2)
    array([[-1.64,  1.64],
           [-3.29,  3.29]])
    >>> replace(dist, dof=3.0).interval(0.99).round(2)
    array([[-3.37,  3.37],
           [-6.74,  6.74]])
    """

    mean: Array  # (n,)
    function_var: Array  # (n,), sigma_f(x)^2: the latent function's variance
    noise_var: Array  # (n,) or one number for all, sigma_obs^2: the observation noise
    dof: float = math.inf  # degrees of freedom of a Student-t, above 2 as its variance is finite; inf: normal

    @classmethod
    def standard(cls, dof: float = math.inf) -> "PredictiveDistribution":
        """One row with mean 0 and variance 1: its quantiles are in deviations.

        >>> PredictiveDistribution.standard().ppf(0.95).round(3), PredictiveDistribution.standard(4).ppf(0.95).round(3)
        (array([1.645]), array([1.507]))
        """
        return cls(np.zeros(1), np.ones(1), np.zeros(1), dof)

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
        if not isinstance(self.dof, Real) or not self.dof > 2:
            raise ValueError(
                f"dof must be one number above 2 for all rows (math.inf for a normal distribution), got {self.dof!r}."
            )
        object.__setattr__(self, "dof", float(self.dof))

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
    def scale(self) -> Array:
        """What a standard variable, normal or Student-t, is multiplied by; a normal's is its std. Shape (n,)."""
        return self.std / math.sqrt(_standard_variance(self.dof))

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
        if math.isinf(self.dof):
            return self.std * math.sqrt(2 / math.pi)
        return self.scale * (2 * math.sqrt(self.dof) / (self.dof - 1) * math.exp(-betaln(0.5, self.dof / 2)))

    def z_scores(self, y: ArrayLike) -> Array:
        """(y - mean) / std, of mean 0 and variance 1 if the model is right, and then standard normal if it is normal;
        shape (n,)."""
        return (self.targets(y) - self.mean) / self.std

    def normal_scores(self, y: ArrayLike) -> Array:
        """The standard normal's quantile at cdf(y): standard normal if the model is right, whatever its tails.

        A normal's are its z-scores; a Student-t's reach no farther than 38. Shape (n,).

        >>> PredictiveDistribution.standard(4).normal_scores(5.0).round(2)
        array([3.07])
        """
        if math.isinf(self.dof):
            return self.z_scores(y)
        t = self._standardised(y)
        beyond = stdtr(self.dof, -np.abs(t))  # of the nearer tail: the farther one rounds to 1
        return np.copysign(ndtri(np.maximum(beyond, SMALLEST)), t)

    def logpdf(self, y: ArrayLike) -> Array:
        """The log density of y, shape (n,)."""
        if math.isinf(self.dof):
            return -0.5 * (np.log(2 * np.pi * self.var) + self.z_scores(y) ** 2)
        return _log_student(self._standardised(y), self.dof) - np.log(self.scale)

    def cdf(self, y: ArrayLike) -> Array:
        """P(Y <= y), shape (n,)."""
        return _standard_cdf(self._standardised(y), self.dof)

    def ppf(self, p: ArrayLike) -> Array:
        """Quantiles: shape (n,) for one level p, (n, k) for k levels."""
        p = np.asarray(p, dtype=np.float64)
        if p.ndim > 1 or not np.all((p > 0) & (p < 1)):
            raise ValueError(f"Quantile levels must be one or a list, strictly between 0 and 1; got {p}.")
        quantiles = self.mean[:, None] + self.scale[:, None] * _standard_quantile(np.atleast_1d(p), self.dof)
        return quantiles if p.ndim else quantiles[:, 0]

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds y with probability `coverage`, shape (n, 2)."""
        check_level(coverage)
        return self.ppf([(1 - coverage) / 2, (1 + coverage) / 2])

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of y, (n,).

        With z = (y - mean) / scale it is scale (z (2 cdf(z) - 1) + 2 pdf(z) - 1/sqrt(pi)) for a normal, and for a
        Student-t (Jordan, Krüger and Lerch 2019), with the beta function B,

            scale (z (2 cdf(z) - 1) + (2 pdf(z) (dof + z^2) - 2 sqrt(dof) B(1/2, dof - 1/2) / B(1/2, dof/2)^2)
                   / (dof - 1)).
        """
        z = self._standardised(y)
        inside = z * (2 * _standard_cdf(z, self.dof) - 1)
        if math.isinf(self.dof):
            pdf = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
            return self.scale * (inside + 2 * pdf - 1 / np.sqrt(np.pi))
        return self.scale * (inside + _student_crps_rest(z, self.dof))

    def sample(self, n_samples: int = 1, random_state: int | np.random.Generator | None = None) -> Array:
        """Independent draws of y, shape (n, n_samples)."""
        rng, shape = np.random.default_rng(random_state), (len(self), n_samples)
        draws = rng.standard_normal(shape) if math.isinf(self.dof) else rng.standard_t(self.dof, shape)
        return self.mean[:, None] + self.scale[:, None] * draws

    def floored(self, min_std: float) -> "PredictiveDistribution":
        """The same with `scale` (of a normal: std) at least `min_std`; what is missing counts as noise.

        Scores of models that may spike (repeated targets) compare only above a common floor: no log density is then
        above a normal's of that std, whatever the tails.
        """
        missing = np.maximum(min_std**2 * _standard_variance(self.dof) - self.var, 0)
        return replace(self, noise_var=self.noise_var + missing)

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
        )

    def targets(self, y: ArrayLike) -> Array:
        """y as one number per row, checked."""
        y = np.asarray(y, dtype=np.float64)
        if y.shape not in ((), self.mean.shape):
            raise ValueError(f"y has shape {y.shape}, the prediction has {len(self)} rows. Pass one y per row.")
        return y

    def _standardised(self, y: ArrayLike) -> Array:
        """(y - mean) / scale, shape (n,): what is standard normal or Student-t if the model is right."""
        return (self.targets(y) - self.mean) / self.scale


def check_level(coverage: float) -> None:
    """Refuse what is no level of an interval."""
    if not isinstance(coverage, Real) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number strictly between 0 and 1 (0.9 for 90 %), got {coverage!r}.")


def tails_in_words(dof: float) -> str | None:
    """What a distribution's tails are, where they are no normal's.

    >>> tails_in_words(4.2), tails_in_words(math.inf)
    ('Student-t with 4.2 degrees of freedom', None)
    """
    return None if math.isinf(dof) else f"Student-t with {dof:.3g} degrees of freedom"


# --- the standard normal and Student-t ---


def _standard_variance(dof: float) -> float:
    return 1.0 if math.isinf(dof) else dof / (dof - 2)


def _standard_cdf(z: Array, dof: float) -> Array:
    return ndtr(z) if math.isinf(dof) else stdtr(dof, z)


def _standard_quantile(p: Array, dof: float) -> Array:
    if math.isinf(dof):
        return ndtri(p)
    return np.copysign(stdtrit(dof, p), p - 0.5)  # beyond what it can reach, SciPy's is infinite to the wrong side


def _log_student(z: Array, dof: float) -> Array:
    """The log density of t(dof)."""
    constant = -betaln(0.5, dof / 2) - 0.5 * math.log(dof)
    return constant - (dof + 1) / 2 * np.log1p(z**2 / dof)


def _student_crps_rest(z: Array, dof: float) -> Array:
    """A standard Student-t's CRPS without its first term, z (2 cdf(z) - 1)."""
    weight = 2 * math.sqrt(dof) / (dof - 1)
    log_beta = betaln(0.5, dof / 2)
    # pdf(z) (dof + z^2) as one power of 1 + z^2 / dof: far away the product would be 0 times infinity
    density = np.exp(-log_beta - (dof - 1) / 2 * np.log1p(z**2 / dof))
    return weight * (density - math.exp(betaln(0.5, dof - 0.5) - 2 * log_beta))
