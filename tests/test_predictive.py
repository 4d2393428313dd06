import numpy as np
import pytest
from scipy import stats

from paragp.predictive import PredictiveDistribution

rng = np.random.default_rng(0)
DIST = PredictiveDistribution(rng.normal(size=5), rng.uniform(0, 2, size=5), np.float64(0.3))
Y = rng.normal(size=5)
ORACLE = stats.norm(DIST.mean, np.sqrt(DIST.function_var + 0.3))


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
    dist = PredictiveDistribution(np.zeros(2), np.array([0.0, 4.0]), np.float64(1e-6)).floored(0.01)
    np.testing.assert_allclose(dist.std, [0.01, np.sqrt(4 + 1e-6)])
    np.testing.assert_allclose(dist.function_var, [0, 4])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DIST.logpdf(Y[:3]), r"y has shape \(3,\), the prediction has 5 rows"),
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
