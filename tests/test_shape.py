import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

from paragp.predictive import PredictiveDistribution
from paragp.shape import Shape

FEW = settings(max_examples=30, deadline=None)
LEANING = Shape(2.6, ((0.3, -0.4, 0.1), (0.65, -0.05, 0.5), (0.05, 3.0, 2.0)))
WIDE = np.array([-30.0, -3.0, -0.5, 0.0, 0.2, 1.0, 8.0, 60.0])


@st.composite
def mixtures(draw):
    part = st.tuples(st.floats(0.05, 1), st.floats(-3, 3), st.floats(0.1, 3))
    return Shape(draw(st.sampled_from([2.2, 3.0, 10.0, math.inf])), tuple(draw(st.lists(part, min_size=1, max_size=4))))


def oracle(shape, z, name):
    """What SciPy's distributions of the parts add up to."""
    narrower = 1 if math.isinf(shape.dof) else math.sqrt(1 - 2 / shape.dof)
    kind = stats.norm if math.isinf(shape.dof) else stats.t(shape.dof)
    terms = [
        (weight, deviation * narrower, (z - mean) / (deviation * narrower)) for weight, mean, deviation in shape.parts
    ]
    if name == "logpdf":
        return logsumexp([math.log(weight / scale) + kind.logpdf(at) for weight, scale, at in terms])
    return sum(weight * getattr(kind, name)(at) for weight, _, at in terms)


@FEW
@given(mixtures())
def test_its_mean_is_zero_and_its_variance_one(shape):
    weights, means, deviations = np.array(shape.parts).T
    assert weights.sum() == pytest.approx(1)
    assert weights @ means == pytest.approx(0, abs=1e-12)
    assert weights @ (deviations**2 + means**2) == pytest.approx(1)


@FEW
@given(mixtures(), st.floats(-20, 20))
def test_density_and_cdf_are_those_of_its_parts(shape, z):
    assert shape.logpdf(np.array(z)) == pytest.approx(oracle(shape, z, "logpdf"), rel=1e-9, abs=1e-9)
    assert shape.cdf(np.array(z)) == pytest.approx(oracle(shape, z, "cdf"), rel=1e-9)


@FEW
@given(mixtures(), st.floats(1e-5, 1 - 1e-5))
def test_quantiles_invert_the_cdf(shape, p):
    assert shape.cdf(shape.ppf(np.array(p))) == pytest.approx(p, rel=1e-8)


@FEW
@given(mixtures(), st.floats(-8, 8))
def test_normal_scores_have_the_same_probability_and_invert(shape, z):
    score = float(shape.normal_scores(np.array(z)))
    tail = "cdf" if score < 0 else "sf"
    assert getattr(stats.norm, tail)(score) == pytest.approx(oracle(shape, z, tail), rel=1e-7)
    assume(abs(score) < 30)
    assert shape.from_normal(np.array(score)) == pytest.approx(z, rel=1e-6, abs=1e-7)


def test_many_quantiles_are_looked_up():
    scores = np.random.default_rng(0).normal(size=20_000)
    np.testing.assert_allclose(
        LEANING.from_normal(scores)[::500], LEANING.from_normal(scores[::500]), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("shape", [LEANING, Shape(parts=((0.5, -1, 0.2), (0.5, 1, 0.2))), Shape(4.0), Shape()])
@pytest.mark.parametrize("z", [-2.0, 0.0, 0.1, 5.0])
def test_the_crps_is_the_integral_of_squared_differences(shape, z):
    def between(low, high, tail):
        edges = [low, *(m for _, m, _ in shape.parts if low < m < high), high]
        edges = sorted({*edges, *(e for e in (-20.0, -1.0, 1.0, 20.0) if low < e < high)})
        return sum(quad(lambda x: oracle(shape, x, tail) ** 2, a, b, epsabs=1e-11)[0] for a, b in pairwise(edges))

    expected = between(-np.inf, z, "cdf") + between(z, np.inf, "sf")
    assert shape.crps(np.array(z)) == pytest.approx(expected, rel=1e-6)


@FEW
@given(mixtures())
def test_the_expected_error_and_the_crps_are_those_of_samples(shape):
    assume(shape.dof > 3)
    draws = shape.sample((40_000,), np.random.default_rng(0))
    assert shape.expected_error == pytest.approx(np.abs(draws).mean(), rel=0.05)
    assert stats.kstest(draws, lambda z: shape.cdf(z)).statistic < 0.012
    one, other = draws.reshape(2, -1)
    expected = np.abs(one - 0.3).mean() - np.abs(one - other).mean() / 2
    assert shape.crps(np.array(0.3)) == pytest.approx(expected, abs=0.02)


def test_far_away_all_is_finite():
    for name in ("logpdf", "cdf", "crps", "normal_scores"):
        assert np.isfinite(getattr(LEANING, name)(np.array([-1e100, 1e100]))).all()
    low, high = LEANING.ppf(np.array([1e-300, 1 - 1e-16]))
    assert low < -1e3
    assert high > 1e3


@FEW
@given(mixtures(), st.floats(1e-4, 0.3))
def test_no_density_of_a_floored_mixture_is_above_the_floors_normal(shape, std):
    dist = PredictiveDistribution(np.zeros(3), np.array([0.4, 0.4, 4.0]) * std**2, np.array(0.6 * std**2), shape)
    peaks = np.unique(np.concatenate([[m for _, m, _ in shape.parts], np.linspace(-3, 3, 301)]))
    seen = []
    for rows, part in dist.floored(0.01):
        seen.extend(np.arange(3)[rows])
        assert (part.var >= dist.var[rows] * (1 - 1e-12)).all()
        np.testing.assert_array_equal(part.function_var, dist.function_var[rows])
        for i, row in enumerate(np.arange(3)[rows]):
            y = dist.std[row] * peaks
            one = PredictiveDistribution(np.zeros(len(y)), np.full(len(y), part.var[i]), 0.0, part.shape)
            assert one.logpdf(y).max() < stats.norm.logpdf(0, scale=0.01) + 1e-9
            own = PredictiveDistribution(np.zeros(len(y)), np.full(len(y), dist.var[row]), 0.0, shape)
            if std * shape.least_scale > 0.0105:  # nothing to bound
                np.testing.assert_allclose(one.logpdf(y), own.logpdf(y), rtol=1e-9, atol=1e-9)
    assert sorted(seen) == [0, 1, 2]


def test_a_floor_widens_the_narrow_parts_alone():
    narrow, wide = Shape(parts=((0.5, 0, 0.1), (0.5, 0, 1.0))).parts
    shape, size = Shape(parts=(narrow, wide)).widened(2 * narrow[2])
    np.testing.assert_allclose(np.array(shape.parts) * size, [[0.5 * size, 0, 2 * narrow[2]], [0.5 * size, 0, wide[2]]])


def test_parts_without_weight_do_not_count():
    assert Shape(4.0, ((1.0, 0.0, 1.0), (0.0, 9.0, 0.0))) == Shape(4.0)


@pytest.mark.parametrize(
    "parts",
    [(), ((1.0, 0.0),), ((1.0, math.nan, 1.0),), ((-1.0, 0.0, 1.0), (2.0, 0.0, 1.0)), ((0.0, 0.0, 1.0),),
     ((1.0, 0.0, 0.0),), ((0.5, 0.0, 0.0), (0.5, 0.0, 1.0)), ((1.0, 0.0, math.inf),)],
)  # fmt: skip
def test_parts_that_are_no_distribution_are_refused(parts):
    with pytest.raises(ValueError, match="parts must be"):
        Shape(parts=parts)


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(2.1), Shape(1000.0), LEANING, Shape(parts=((0.5, -1.0, 0.1), (0.5, 1.0, 3.0)))]
)
def test_how_far_out_rises_without_an_end_and_inverts(shape):
    z = np.array([-1e6, -1e3, -50.0, -3.0, -0.1, 0.0, 0.4, 2.0, 60.0, 1e4, 1e7])
    reach = shape.reach(z)
    assert (np.diff(reach) > 0).all()
    np.testing.assert_allclose(shape.at_reach(reach), z, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(shape.at_reach(np.array(1.3)), shape.at_reach(np.array([1.3]))[0])


def test_how_far_out_is_the_same_among_many():
    shape = Shape(4.0)
    many = np.concatenate([np.linspace(0.5, 3, 5000), [1e6]])
    np.testing.assert_array_equal(shape.at_reach(many)[[0, 2500]], shape.at_reach(many[[0, 2500]]))


def test_a_mirror_turns_a_shape_around():
    z = np.linspace(-3, 5, 9)
    np.testing.assert_allclose(LEANING.mirrored().cdf(-z), 1 - LEANING.cdf(z), atol=1e-12)
    np.testing.assert_allclose(LEANING.mirrored().crps(-z), LEANING.crps(z), rtol=1e-9)


def test_one_level_gives_one_quantile():
    for shape in (Shape(), Shape(3.0), LEANING):
        assert shape.ppf(np.array(0.3)).shape == ()
