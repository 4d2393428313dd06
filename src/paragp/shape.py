"""Shape: the standard distribution that a prediction stretches to its deviation and shifts to its mean."""

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import betaln, logsumexp, ndtr, ndtri, stdtr, stdtrit

Array = NDArray[np.float64]
SMALLEST = np.finfo(np.float64).tiny  # of a probability that is turned into a finite score
FARTHEST = 1e100  # quantile; and what can be squared
FARTHEST_SCORE = 37.0  # a standard normal's: its probability is still a number
HALVINGS = 200  # of an interval that holds a quantile, at most
MANY = 4001  # quantiles that are looked up between as many, evenly spaced, instead of each searched for


@dataclass(frozen=True)
class Shape:
    """A distribution with mean 0 and variance 1: a mixture of Student-t (`dof` of inf: normal) distributions.

    `parts` are (weight, mean, deviation) each, and are brought to the mixture's mean 0 and variance 1. One part alone
    is the normal or Student-t itself; several may lean to one side, or have a peak and long tails at once.

    >>> Shape().ppf(np.array([0.95])).round(3), Shape(4.0).ppf(np.array([0.95])).round(3)
    (array([1.645]), array([1.507]))
    >>> leaning = Shape(parts=((0.8, -0.3, 0.2), (0.2, 1.2, 1.0)))
    >>> leaning.ppf(np.array([0.05, 0.5, 0.95])).round(2)
    array([-0.81, -0.32,  2.44])
    """

    dof: float = math.inf  # above 2, as the variance is finite
    parts: tuple[tuple[float, float, float], ...] = ((1.0, 0.0, 1.0),)

    def __post_init__(self) -> None:
        if not isinstance(self.dof, Real) or isinstance(self.dof, bool) or not self.dof > 2:
            raise ValueError(
                f"dof must be one number above 2 for all rows (math.inf for a normal distribution), got {self.dof!r}."
            )
        found = np.array(self.parts, dtype=np.float64)
        if (
            found.ndim != 2
            or found.shape[1] != 3
            or not np.isfinite(found).all()
            or not (found[:, 0] >= 0).all()
            or not found[:, 0].any()
            or not (found[found[:, 0] > 0, 2] > 0).all()
        ):
            raise ValueError(
                "parts must be (weight, mean, deviation) each, finite, with weights and deviations above 0; "
                f"got {self.parts!r}."
            )
        weights, means, deviations = found[found[:, 0] > 0].T
        weights = weights / weights.sum()
        means = means - weights @ means
        size = math.sqrt(weights @ (deviations**2 + means**2))
        parts = np.column_stack([weights, means / size, deviations / size]).tolist()
        object.__setattr__(self, "dof", float(self.dof))
        object.__setattr__(self, "parts", tuple(tuple(part) for part in parts))

    @cached_property
    def _columns(self) -> tuple[Array, Array, Array]:
        """The parts' weights, means and scales: what a standard normal or Student-t is multiplied by; (k,) each."""
        weights, means, deviations = np.array(self.parts).T
        return weights, means, deviations * math.sqrt(1.0 if math.isinf(self.dof) else 1 - 2 / self.dof)

    @property
    def is_normal(self) -> bool:
        """Whether it is the standard normal distribution."""
        return math.isinf(self.dof) and len(self.parts) == 1

    def __str__(self) -> str:
        """What it is, in words.

        >>> print(Shape(), Shape(4.2), Shape(4.2, ((0.9, 0.0, 1.0), (0.1, 2.0, 3.0))), sep="; ")
        normal; Student-t with 4.2 degrees of freedom; a mixture of 2 Student-t with 4.2 degrees of freedom
        """
        kind = "normal" if math.isinf(self.dof) else f"Student-t with {self.dof:.3g} degrees of freedom"
        return kind if len(self.parts) == 1 else f"a mixture of {len(self.parts)} {kind}"

    def logpdf(self, z: Array) -> Array:
        """The log density."""
        weights, _, scales = self._columns
        return logsumexp(np.log(weights / scales) + _log_density(self._units(z), self.dof), axis=-1)

    def cdf(self, z: Array) -> Array:
        """P(Z <= z)."""
        return _cdf(self._units(z), self.dof) @ self._columns[0]

    def normal_scores(self, z: Array) -> Array:
        """The standard normal's quantile at cdf(z): z itself for the normal, and else no farther out than 38."""
        if self.is_normal:
            return z
        below = self.cdf(z)
        above = _cdf(-self._units(z), self.dof) @ self._columns[0]
        nearer = ndtri(np.maximum(np.minimum(below, above), SMALLEST))  # the farther tail rounds to 1
        return np.where(below < above, nearer, -nearer)

    def ppf(self, p: Array) -> Array:
        """Quantiles, for levels strictly between 0 and 1."""
        if len(self.parts) > 1:
            return self.from_normal(ndtri(p))
        quantile = ndtri(p) if math.isinf(self.dof) else np.copysign(stdtrit(self.dof, p), p - 0.5)
        return float(self._columns[2][0]) * quantile  # beyond what it can reach, SciPy's is infinite to the wrong side

    def from_normal(self, scores: Array) -> Array:
        """What has these normal scores: `normal_scores`, inverted."""
        if self.is_normal:
            return scores
        if np.size(scores) > MANY:
            some = np.linspace(scores.min(), scores.max(), MANY)
            return np.interp(scores, some, self.from_normal(some))
        _, means, scales = self._columns
        far = np.clip(scores, -FARTHEST_SCORE, FARTHEST_SCORE)
        tail = ndtr(-np.abs(far))
        quantiles = (
            far if math.isinf(self.dof) else np.copysign(np.minimum(np.abs(stdtrit(self.dof, tail)), FARTHEST), far)
        )
        each = means + scales * quantiles[..., None]
        low, high = each.min(axis=-1), each.max(axis=-1)  # the mixture's lies between those of its parts
        for _ in range(HALVINGS if len(self.parts) > 1 else 0):
            middle = low + (high - low) / 2
            if np.all((middle == low) | (middle == high)):
                break
            beyond = self.normal_scores(middle) > far
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        return high

    def reach(self, z: Array) -> Array:
        """How far out z is: its normal score, and beyond FARTHEST_SCORE, where probabilities are no numbers, one more
        for each deviation. For the normal it is z. `at_reach` is the inverse."""
        if self.is_normal:
            return z
        low, high = self._edges
        inside = np.clip(self.normal_scores(z), -FARTHEST_SCORE, FARTHEST_SCORE)
        return inside + np.maximum(z - high, 0) + np.minimum(z - low, 0)

    def at_reach(self, scores: Array) -> Array:
        """What is as far out as that.

        >>> Shape(4.0).at_reach(Shape(4.0).reach(np.array([-2.0, 0.5]))).round(6)
        array([-2. ,  0.5])
        """
        if self.is_normal:
            return scores
        values, places = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
        beyond = np.sign(values) * np.maximum(np.abs(values) - FARTHEST_SCORE, 0)
        parts = np.array_split(values, 1 + len(values) // MANY)  # few enough that none is looked up between others
        found = np.concatenate([self.from_normal(part) for part in parts]) + beyond
        return found[places].reshape(np.shape(scores))

    @cached_property
    def _edges(self) -> tuple[float, float]:
        """The quantiles of the farthest scores."""
        low, high = self.from_normal(np.array([-FARTHEST_SCORE, FARTHEST_SCORE])).tolist()
        return low, high

    def mirrored(self) -> "Shape":
        """The shape of -Z."""
        return Shape(self.dof, tuple((weight, -mean, deviation) for weight, mean, deviation in self.parts))

    def crps(self, z: Array) -> Array:
        """Continuous ranked probability score E|Z - z| - E|Z - Z'| / 2, Z and Z' independent."""
        return self._distance(z) - self._spread

    @property
    def expected_error(self) -> float:
        """E|Z|."""
        return float(self._distance(np.zeros(())))

    @property
    def least_scale(self) -> float:
        """The narrowest part's scale: the normal's is 1, a Student-t's less."""
        return float(self._columns[2].min())

    def widened(self, least: float) -> tuple["Shape", float]:
        """With parts that have at least that scale, and the deviation that it then has in deviations of before."""
        scale = np.sqrt(1.0 if math.isinf(self.dof) else 1 - 2 / self.dof)
        parts = [(weight, mean, max(deviation, least / scale)) for weight, mean, deviation in self.parts]
        size = math.sqrt(sum(weight * (deviation**2 + mean**2) for weight, mean, deviation in parts))
        return Shape(self.dof, tuple(parts)), size

    def sample(self, size: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Independent draws."""
        draws = rng.standard_normal(size) if math.isinf(self.dof) else rng.standard_t(self.dof, size)
        weights, means, scales = self._columns
        if len(weights) == 1:
            return scales * draws
        which = rng.choice(len(weights), size, p=weights)
        return means[which] + scales[which] * draws

    def _units(self, z: Array) -> Array:
        """z as each of the parts sees it, (..., k)."""
        _, means, scales = self._columns
        return (np.asarray(z)[..., None] - means) / scales

    def _distance(self, z: Array) -> Array:
        """E|Z - z|."""
        weights, _, scales = self._columns
        return _distance(self._units(z), self.dof) @ (weights * scales)

    @cached_property
    def _spread(self) -> float:
        """E|Z - Z'| / 2 of two that are independent: the integral of cdf (1 - cdf)."""
        if len(self.parts) == 1:
            return float(self._columns[2][0]) * _spread(self.dof)

        def inside(t: float) -> float:  # at z = sinh(t), that tails end
            z = np.array(math.sinh(t))
            return float(self.cdf(z) * (_cdf(-self._units(z), self.dof) @ self._columns[0])) * math.cosh(t)

        reach = 40 / (min(self.dof, 3.0) - 1)
        at = np.arcsinh(self._columns[1]).clip(-reach, reach).tolist()
        return float(quad(inside, -reach, reach, points=at, limit=1000, epsabs=1e-11, epsrel=1e-11)[0])


NORMAL = Shape()


# --- the standard normal and Student-t ---


def _cdf(z: Array, dof: float) -> Array:
    return ndtr(z) if math.isinf(dof) else stdtr(dof, z)


def _log_density(z: Array, dof: float) -> Array:
    if math.isinf(dof):
        with np.errstate(over="ignore"):  # of 1e155 deviations there is no density
            return -0.5 * (math.log(2 * math.pi) + z**2)
    constant = -betaln(0.5, dof / 2) - 0.5 * math.log(dof)
    return constant - (dof + 1) / 2 * _log_of_square(z, dof)


def _log_of_square(z: Array, dof: float) -> Array:
    """log(1 + z^2 / dof), however far z is."""
    size = np.abs(z)
    return np.log1p(np.minimum(size, FARTHEST) ** 2 / dof) + 2 * np.log(np.maximum(size / FARTHEST, 1.0))


def _distance(z: Array, dof: float) -> Array:
    """E|T - z| of a standard T: z (2 cdf(z) - 1) + 2 pdf(z), for a Student-t with pdf(z) (dof + z^2) / (dof - 1)."""
    inside = z * (2 * _cdf(z, dof) - 1)
    if math.isinf(dof):
        return inside + 2 * np.exp(_log_density(z, dof))
    # pdf(z) (dof + z^2) as one power of 1 + z^2 / dof: far away the product would be 0 times infinity
    density = np.exp(-betaln(0.5, dof / 2) - (dof - 1) / 2 * _log_of_square(z, dof))
    return inside + 2 * math.sqrt(dof) / (dof - 1) * density


def _spread(dof: float) -> float:
    """E|T - T'| / 2 of standard ones (Jordan, Krüger and Lerch 2019), with the beta function B:
    2 sqrt(dof) / (dof - 1) B(1/2, dof - 1/2) / B(1/2, dof/2)^2, and 1 / sqrt(pi) for the normal."""
    if math.isinf(dof):
        return 1 / math.sqrt(math.pi)
    return 2 * math.sqrt(dof) / (dof - 1) * math.exp(betaln(0.5, dof - 0.5) - 2 * betaln(0.5, dof / 2))
