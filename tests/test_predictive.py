import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from paragp.predictive import PredictiveDistribution
from paragp.shape import Shape

rng = np.random.default_rng(0)
DIST = PredictiveDistribution(rng.normal(size=5), rng.uniform(0, 2, size=5), np.float64(0.3))
Y = rng.normal(size=5)
ORACLE = stats.norm(DIST.mean, np.sqrt(DIST.function_var + 0.3))
DOFS = st.floats(2.05, 200)
NUMBERS = st.floats(-30, 30)
SCALES = st.floats(0.01, 100)
FEW = settings(max_examples=50, deadline=None)


def student(dof, mean=0.0, std=1.0):
    """One row, and SciPy's distribution of it."""
    oracle = stats.t(dof, mean, std * math.sqrt((dof - 2) / dof))
    return PredictiveDistribution(np.array([mean]), np.array([0.4 * std**2]), 0.6 * std**2, Shape(dof)), oracle


@pytest.mark.parametrize("name", ["logpdf", "cdf"])
def test_density_and_cdf_are_the_normals(name):
    np.testing.assert_allclose(getattr(DIST, name)(Y), getattr(ORACLE, name)(Y), rtol=1e-12)


def test_quantiles_and_intervals():
    np.testing.assert_allclose(DIST.ppf(0.2), ORACLE.ppf(0.2), rtol=1e-12)
    levels = [0.05, 0.5, 0.95]
    np.testing.assert_allclose(DIST.ppf(levels), np.stack([ORACLE.ppf(p) for p in levels], 1), rtol=1e-12)
    np.testing.assert_allclose(DIST.interval(0.8), np.stack(ORACLE.interval(0.8), 1), rtol=1e-12)
    np.testing.assert_allclose(DIST.cdf(DIST.ppf(0.37)), 0.37)


def test_parts_add_up():
    np.testing.assert_allclose(DIST.function_std**2 + DIST.noise_std**2, DIST.std**2)
    assert len(DIST) == 5


def test_samples_have_the_distribution_and_repeat():
    draws = DIST.sample(20_000, random_state=1)
    assert draws.shape == (5, 20_000)
    np.testing.assert_allclose(draws.mean(1), DIST.mean, atol=0.05)
    np.testing.assert_allclose(draws.std(1), DIST.std, rtol=0.03)
    np.testing.assert_array_equal(draws, DIST.sample(20_000, random_state=1))


def test_floor_binds_only_below_and_counts_as_noise():
    dist = PredictiveDistribution(np.zeros(2), np.array([0.0, 4.0]), np.float64(1e-6))
    ((_, dist),) = dist.floored(0.01)
    np.testing.assert_allclose(dist.std, [0.01, np.sqrt(4 + 1e-6)])
    np.testing.assert_allclose(dist.function_var, [0, 4])


# --- Student-t tails ---


@FEW
@given(DOFS, NUMBERS, NUMBERS, SCALES)
def test_density_cdf_and_variance_are_the_students(dof, y, mean, std):
    dist, oracle = student(dof, mean, std)
    for name in ("logpdf", "cdf"):
        np.testing.assert_allclose(getattr(dist, name)(y), getattr(oracle, name)(y), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(dist.var[0], oracle.var())


@FEW
@given(DOFS, st.floats(1e-6, 1 - 1e-6), NUMBERS, SCALES)
def test_quantiles_and_intervals_are_the_students(dof, p, mean, std):
    dist, oracle = student(dof, mean, std)
    np.testing.assert_allclose(dist.ppf(p), oracle.ppf(p), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(dist.interval(p)[0], oracle.interval(p), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dist.cdf(dist.ppf(p)), p, rtol=1e-8)


@pytest.mark.parametrize("dof", [2.1, 3.0, 4.2, 30.0])
@pytest.mark.parametrize("y", [-3.0, 0.0, 0.4, 7.0])
def test_the_students_crps_is_the_integral_of_squared_differences(dof, y):
    dist, oracle = student(dof, 0.3, 1.7)
    below = quad(lambda x: oracle.cdf(x) ** 2, -np.inf, y, epsabs=1e-10)[0]
    above = quad(lambda x: oracle.sf(x) ** 2, y, np.inf, epsabs=1e-10)[0]
    assert dist.crps(y)[0] == pytest.approx(below + above, rel=1e-7)


@pytest.mark.parametrize("dof", [2.1, 3.0, 10.0])
def test_the_students_expected_error_is_the_mean_of_errors(dof):
    dist, oracle = student(dof, 0.3, 1.7)
    expected = 2 * quad(lambda x: (x - 0.3) * oracle.pdf(x), 0.3, np.inf)[0]
    assert dist.expected_error[0] == pytest.approx(expected, rel=1e-6)


def test_the_normals_expected_error():
    np.testing.assert_allclose(DIST.expected_error, DIST.std * np.sqrt(2 / np.pi), rtol=1e-15)


@pytest.mark.parametrize("dof", [1e8, 1e14, 1e300])
def test_the_normal_is_the_limit(dof):
    near = replace(DIST, shape=Shape(dof))
    levels = [1e-9, 0.05, 0.5, 0.99]
    for name, argument in (
        ("logpdf", Y), ("cdf", Y), ("crps", Y), ("normal_scores", Y), ("ppf", levels), ("interval", 0.9),
    ):  # fmt: skip
        found, expected = getattr(near, name)(argument), getattr(DIST, name)(argument)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(near.expected_error, DIST.expected_error, rtol=1e-7)
    np.testing.assert_allclose(near.floored(3.0)[0][1].std, DIST.floored(3.0)[0][1].std, rtol=1e-7)


def test_a_normals_normal_scores_are_z_scores():
    assert math.isinf(DIST.dof)
    np.testing.assert_array_equal(DIST.normal_scores(Y), DIST.z_scores(Y))


@FEW
@given(DOFS, NUMBERS)
def test_normal_scores_have_the_same_probability(dof, y):
    dist, oracle = student(dof)
    found = dist.normal_scores(y)[0]
    below = stats.norm.cdf(-abs(found)), oracle.cdf(-abs(y))
    assert below[0] == pytest.approx(below[1], rel=1e-9)
    assert found * y >= 0


def test_units_that_point_the_other_way_mirror_a_shape():
    leaning = Shape(parts=((0.8, -0.3, 0.2), (0.2, 1.2, 1.0)))
    dist = PredictiveDistribution(np.zeros(1), np.ones(1), 0.0, leaning)
    levels = np.array([0.05, 0.5, 0.95])
    np.testing.assert_allclose(dist.rescaled(1.0, -2.0).ppf(levels), 1.0 - 2.0 * dist.ppf(1 - levels), rtol=1e-9)


@pytest.mark.parametrize("coverage", [1 - 1e-16, 1 - 2e-16, 1e-16])
def test_the_widest_and_narrowest_intervals_have_ends(coverage):
    for shape in (Shape(), Shape(3.0), Shape(parts=((0.8, -0.3, 0.2), (0.2, 1.2, 1.0)))):
        low, high = PredictiveDistribution(np.zeros(1), np.ones(1), 0.0, shape).interval(coverage)[0]
        assert np.isfinite([low, high]).all()
        assert low <= high


def test_scores_of_targets_far_away_are_numbers():
    dist, _ = student(4.0)
    far = np.array(1e120)
    assert dist.crps(far)[0] == pytest.approx(1e120)
    assert -1400 < dist.logpdf(far)[0] < -1300
    assert dist.logpdf(np.array(1e200))[0] == pytest.approx(dist.logpdf(far)[0] - 5 * 80 * math.log(10), rel=1e-9)
    assert dist.crps(np.array(1e200))[0] == pytest.approx(1e200)
    assert replace(dist, shape=Shape()).logpdf(np.array(1e200))[0] == -math.inf
    for dof in (4.0, 1e6):
        above, below = (replace(dist, shape=Shape(dof)).normal_scores(sign * far)[0] for sign in (1, -1))
        assert above == -below
        assert 10 < above < 38
    low, high = replace(dist, shape=Shape(4.2)).ppf([1e-300, 1 - 1e-16])[0]
    assert low < -1e3
    assert high > 1e3


@FEW
@given(DOFS, NUMBERS, NUMBERS, SCALES)
def test_rescaling_a_student_is_a_change_of_units(dof, y, shift, scale):
    dist, _ = student(dof, 1.0, 2.0)
    other, moved = dist.rescaled(shift, scale), shift + scale * y
    assert other.dof == dof
    np.testing.assert_allclose(other.std, scale * dist.std)
    np.testing.assert_allclose(other.logpdf(moved), dist.logpdf(y) - math.log(scale), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.cdf(moved), dist.cdf(y), rtol=1e-6)
    np.testing.assert_allclose(other.crps(moved), scale * dist.crps(y), rtol=1e-6)


@FEW
@given(DOFS, st.floats(0, 0.1))
def test_no_density_of_a_floored_student_is_above_the_floors_normal(dof, std):
    dist = PredictiveDistribution(np.zeros(1), np.array([0.5 * std**2]), np.array(0.5 * std**2), Shape(dof))
    ((_, floored),) = dist.floored(0.01)
    np.testing.assert_allclose(floored.std, max(0.01 / math.sqrt((dof - 2) / dof), std))
    np.testing.assert_array_equal(floored.function_var, dist.function_var)
    assert floored.logpdf(0.0)[0] < stats.norm.logpdf(0, scale=0.01) < 3.69
    np.testing.assert_allclose(floored.floored(0.01)[0][1].var, floored.var, rtol=1e-12)


def test_samples_of_a_student_have_its_variance_and_its_tails():
    dist = replace(DIST, shape=Shape(8.0))
    draws = dist.sample(40_000, random_state=1)
    np.testing.assert_allclose(draws.mean(1), DIST.mean, atol=0.05)
    np.testing.assert_allclose(draws.var(1), DIST.var, rtol=0.05)
    np.testing.assert_allclose((draws <= dist.ppf(0.001)[:, None]).mean(1), 0.001, atol=6e-4)
    np.testing.assert_array_equal(draws, dist.sample(40_000, random_state=1))


def test_tails_stay_with_a_copy():
    assert pickle.loads(pickle.dumps(replace(DIST, shape=Shape(5)))).dof == 5.0


@pytest.mark.parametrize("dof", [2, 1.5, -3.0, math.nan, "4", None, True, np.full(5, 4.0)])
def test_bad_degrees_of_freedom_are_refused(dof):
    with pytest.raises(ValueError, match="dof must be one number above 2 for all rows"):
        Shape(dof)


# --- bad use ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DIST.logpdf(Y[:3]), r"y has shape \(3,\), the prediction has 5 rows"),
        (lambda: replace(DIST, shape=4.0), r"a Shape, such as Shape\(dof=4\.0\)"),
        (lambda: DIST.ppf(1.0), "strictly between 0 and 1"),
        (lambda: DIST.interval(90), r"0\.9 for 90 %"),
        (lambda: PredictiveDistribution(np.zeros(2), np.array([-1.0, 1.0]), np.float64(1)), "non-negative"),
        (lambda: PredictiveDistribution(np.zeros(2), np.full(2, np.nan), np.float64(1)), "non-negative"),
        (lambda: PredictiveDistribution(np.zeros(2), np.zeros(3), np.float64(1)), r"one per row \(\(2,\)\)"),
    ],
)
def test_bad_use_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
