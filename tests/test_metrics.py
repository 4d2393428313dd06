import numpy as np
import pytest
import scoringrules
from scipy.integrate import quad
from scipy.stats import kstest, norm

from paragp import metrics
from paragp.predictive import PredictiveDistribution

rng = np.random.default_rng(0)
N = 2000
DIST = PredictiveDistribution(rng.normal(size=N), rng.uniform(0, 2, size=N), np.float64(0.3))
Y = rng.normal(DIST.mean, DIST.std)


def test_crps_agrees_with_scoringrules():
    np.testing.assert_allclose(DIST.crps(Y), scoringrules.crps_normal(Y, DIST.mean, DIST.std), rtol=1e-9)
    assert metrics.crps(DIST, Y) == pytest.approx(DIST.crps(Y).mean())


@pytest.mark.parametrize("i", range(3))
def test_crps_is_the_integral_of_its_definition(i):
    mean, std, y = DIST.mean[i], DIST.std[i], Y[i]
    below = quad(lambda t: norm.cdf(t, mean, std) ** 2, -np.inf, y)[0]
    above = quad(lambda t: (1 - norm.cdf(t, mean, std)) ** 2, y, np.inf)[0]
    assert DIST.crps(Y)[i] == pytest.approx(below + above, rel=1e-6)


def test_nll_and_rmse_by_hand():
    dist = PredictiveDistribution(np.zeros(2), np.array([0.0, 3.0]), np.float64(1.0))
    y = [1.0, -2.0]
    expected = np.mean([0.5 * np.log(2 * np.pi) + 0.5, 0.5 * np.log(2 * np.pi * 4) + 0.5])
    assert metrics.nll(dist, y) == pytest.approx(expected)
    assert metrics.rmse(dist, y) == pytest.approx(np.sqrt(2.5))


def test_noise_fraction_is_a_mean_of_shares():
    dist = PredictiveDistribution(np.zeros(2), np.array([0.0, 3.0]), np.float64(1.0))
    assert metrics.noise_fraction(dist) == pytest.approx((1 + 0.25) / 2)


def test_calibrated_prediction_looks_calibrated():
    for level in (0.5, 0.8, 0.95):
        assert metrics.coverage(DIST, Y, level=level) == pytest.approx(level, abs=0.03)
    assert kstest(metrics.pit(DIST, Y), "uniform").pvalue > 0.01
    assert kstest(metrics.z_scores(DIST, Y), "norm").pvalue > 0.01


def test_overconfident_prediction_does_not():
    sharp = PredictiveDistribution(DIST.mean, DIST.function_var / 9, np.float64(0.3 / 9))
    assert metrics.coverage(sharp, Y) < 0.6
    assert kstest(metrics.pit(sharp, Y), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("name", metrics.METRICS)
def test_weights_count_as_copies(name):
    copies = rng.integers(0, 4, size=50)
    head = PredictiveDistribution(DIST.mean[:50], DIST.function_var[:50], DIST.noise_var[:50])
    rows = np.repeat(np.arange(50), copies)
    repeated = PredictiveDistribution(DIST.mean[rows], DIST.function_var[rows], DIST.noise_var[rows])
    metric = metrics.METRICS[name]
    assert metric(head, Y[:50], weights=copies) == pytest.approx(metric(repeated, Y[rows]))


@pytest.mark.parametrize("name", ["nll", "rmse", "crps", "mae", "coverage_90"])
def test_targets_of_another_shape_are_refused(name):
    with pytest.raises(ValueError, match="Pass one y per row"):
        metrics.METRICS[name](DIST, Y[:, None])


def test_coverage_is_that_of_the_90_percent_interval():
    low, high = DIST.interval(0.9).T
    assert metrics.coverage(DIST, Y) == pytest.approx(np.mean((low <= Y) & (high >= Y)))


def test_directions_are_right():
    """A metric that calls lower better prefers the truth to a shifted prediction."""
    shifted = PredictiveDistribution(DIST.mean + 1, DIST.function_var, DIST.noise_var)
    for metric in metrics.METRICS.values():
        assert metric.better in ("lower", "higher", "neither")
        if metric.better == "lower":
            assert metric(DIST, Y) < metric(shifted, Y)
    assert set(metrics.evaluate(DIST, Y)) == set(metrics.METRICS)


def test_scores_of_parts_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    mean, var, y, weights = rng.standard_normal(50), rng.random(50), rng.standard_normal(50), rng.random(50)
    weights[20:30] = 0.0  # a part that does not count
    scores = metrics.Scores()
    for rows in (slice(0, 20), slice(20, 30), slice(30, 50)):
        scores.add(PredictiveDistribution(mean[rows], var[rows], np.array(0.1)), y[rows], weights[rows])
    whole = metrics.evaluate(PredictiveDistribution(mean, var, np.array(0.1)), y, weights)
    assert scores.total() == pytest.approx(whole, rel=1e-12)
    assert scores.rows == 50
