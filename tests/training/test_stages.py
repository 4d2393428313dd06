"""Training by solves: the mean is FITC's ridge, residuals are left out for real, and the noise finds what is there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from paragp import METHODS, Data
from paragp.gp.kernels import covariance, evened, make_kernel, prior_variance
from paragp.gp.linalg import JITTER
from paragp.metrics import METRICS
from paragp.predictive import PredictiveDistribution
from paragp.shape import Shape
from paragp.training import ridge as ridges
from paragp.training import solves, start
from paragp.training.best import Best
from paragp.training.distributed import ALONE
from paragp.training.noise import SHAPE_UNKNOWNS, Head, log_density, parts_of
from paragp.training.recipe import RECIPES, Settings
from paragp.training.ridge import Ridge, held_out_error
from paragp.training.stages import Validation, solve_in_stages, some
from paragp.training.start import new_model
from paragp.training.train import train

from cases import generator

NOISE = 0.04


def rows(n=200, seed=0, *, noise=lambda x: 0.2, draw=torch.randn):
    x = torch.randn(n, 2, generator=generator(seed), dtype=torch.float64)
    return Data(x, torch.sin(2 * x[:, 0]) + noise(x) * draw(n, generator=generator(seed + 1), dtype=torch.float64))


def student(n, *, generator, dtype):
    return torch.from_numpy(np.random.default_rng(generator.initial_seed()).standard_t(3, n)).to(dtype)


def fresh(data, **options):
    wanted = Settings(METHODS["two-stage"], n_inducing=12, n_inducing_variance=10, kernel="matern52", **options)
    return new_model(wanted, data, generator())


def ridge_of(model, data, **options):
    with torch.no_grad():
        return Ridge(model, data, NOISE, ALONE, **options)


def left_out(model, data, beta, **options):
    with torch.no_grad():
        ridge = ridge_of(model, data, **options)
        return ridge.left_out(ridge.solve(beta), data)


def fitc_mean(model, data, x, beta):
    """FITC's predictive mean with the prior's precision times beta, in NumPy, from the unwhitened matrices."""
    kernel, Z = model.kernel, model.family.Z
    with torch.no_grad():
        K, K_ZX, K_Zx = (covariance(kernel, Z, other).numpy() for other in (Z, data.x, x))
        k = prior_variance(kernel, data.x).numpy()
    K = K + 1e-6 * K[0, 0] * np.eye(len(K))
    ktilde = k - np.einsum("ij,ij->j", K_ZX, np.linalg.solve(K, K_ZX))
    c = (1 if data.weights is None else data.weights.numpy()) / (ktilde + NOISE)
    return K_Zx.T @ np.linalg.solve((K_ZX * c) @ K_ZX.T + beta * K, K_ZX @ (c * data.y.numpy()))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_is_fitcs(weighted):
    data, other = rows(), rows(30, seed=9)
    if weighted:
        data = data._replace(weights=torch.rand(200, generator=generator(3), dtype=torch.float64))
    model = fresh(data)
    ridge = ridge_of(model, data)
    with torch.no_grad():
        model.family.m.copy_(ridge.solve(0.3).m)
    np.testing.assert_allclose(model.predict_mean(other.x), fitc_mean(model, data, other.x, 0.3), atol=1e-5)


def test_residuals_are_those_of_a_mean_that_has_not_seen_their_row():
    data = rows(60)
    model = fresh(data)
    found = left_out(model, data, 0.3)
    for i in (0, 17, 59):
        others = torch.arange(60) != i
        expected = float(data.y[i]) - fitc_mean(model, data.take(others), data.x[i : i + 1], 0.3)[0]
        assert float(found[i]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_estimated_leverages_leave_out_the_same(weighted, monkeypatch):
    """With a relative error of one over the root of half the probes, however large a leverage is, and no bias."""
    data = rows(1500)
    if weighted:
        data = data._replace(weights=torch.arange(1500).double() % 3)
    model = METHODS["two-stage"].model("matern52", data.x[:600].clone(), data.x[:10].clone(), noise=NOISE)
    exact = left_out(model, data, 0.003)
    monkeypatch.setattr(ridges, "EXACT_LEVERAGES", 0)
    monkeypatch.setattr(ridges, "CHUNK", 400)
    found = left_out(model, data, 0.003, keep=True)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        kept = data.y - ridge.mean(ridge.solve(0.003), data.x)
    ratio = (found / exact).numpy()
    assert float((exact / kept).max()) > 20  # some leverages are close to one
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / ridges.PROBES)
    assert 0.01 < ratio.std() < np.sqrt(2 / ridges.PROBES)
    assert np.mean(ratio**2) == pytest.approx(1, abs=0.015)


def test_estimated_leverages_know_what_was_added_to_the_sums(monkeypatch):
    """Where the sums have no factor, their diagonal is raised; the exact way sees that in the factor."""
    data = rows(1500)
    model = METHODS["two-stage"].model("matern52", data.x[:200].clone(), data.x[:10].clone(), noise=NOISE)
    plain = solves.factor_of
    monkeypatch.setattr(ridges, "factor_of", lambda H: plain(H + 0.1 * H.diagonal().diag()))
    exact = left_out(model, data, 0.003)
    monkeypatch.setattr(ridges, "EXACT_LEVERAGES", 0)
    ratio = (left_out(model, data, 0.003, keep=True) / exact).numpy()
    assert np.mean(ratio) == pytest.approx(1, abs=0.01)
    assert ratio.std() > 0.001  # they are estimated


def test_the_default_estimates_leverages_of_large_tables(monkeypatch):
    called = []
    probed = Ridge._probed
    monkeypatch.setattr(ridges, "EXACT_LEVERAGES", 0)
    monkeypatch.setattr(Ridge, "_probed", lambda *words: called.append(1) or probed(*words))
    trained(rows(300), rows(100, seed=5))
    assert called == [1]


def test_validation_rows_choose_the_weight_of_the_prior():
    data, held_out = rows(), rows(100, seed=7)
    model = fresh(data)
    y = held_out.y.numpy()
    betas = (3000.0, 300.0, 30.0, 3.0, 0.3, 0.03)
    errors = [np.mean((fitc_mean(model, data, held_out.x, beta) - y) ** 2) for beta in betas]
    expected = next(i for i in range(6) if i == 5 or errors[i + 1] >= 0.99 * errors[i])
    assert 0 < expected < 5
    with torch.no_grad():
        ridge = ridge_of(model, data)
        chosen, there = ridge.choose(betas, held_out)
        np.testing.assert_allclose(model.predict_mean(held_out.x), there, atol=1e-6)
        assert ridge.choose(betas, None)[0].beta == 3000.0
    assert chosen.beta == betas[expected]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_error_of_a_kernel_is_that_of_the_mean_at_rows_held_out(weighted):
    data, held_out = rows(), rows(100, seed=7)
    if weighted:
        held_out = held_out._replace(weights=torch.rand(100, generator=generator(3), dtype=torch.float64))
    model = fresh(data)
    model.likelihood.start(NOISE)
    square = (fitc_mean(model, data, held_out.x, 0.3) - held_out.y.numpy()) ** 2
    expected = np.average(square, weights=None if held_out.weights is None else held_out.weights.numpy())
    assert held_out_error(model, data, held_out, [0.3]) == pytest.approx(expected, rel=1e-4)


def kind(kernel):
    return type(kernel.base_kernel), getattr(kernel.base_kernel, "nu", None)


@pytest.mark.parametrize("best", range(5))
def test_the_kernel_is_the_one_of_least_error_at_rows_held_out(best, monkeypatch):
    data, seen = rows(300)._replace(weights=torch.arange(300.0).double() % 3), []

    def error(model, known, judged, betas):
        seen.append(kind(model.kernel))
        assert known.size == 4 * judged.size == 160  # of the 200 rows that count
        assert len(torch.cat([known.x, judged.x]).unique(dim=0)) == 200
        assert len(model.family.Z) == 30  # no more than the mean will have
        assert betas == (0.3,)
        return float(len(seen) != best + 1)

    monkeypatch.setattr(start, "held_out_error", error)
    quick = replace(RECIPES["auto"], kernel_rows=60, kernel_iterations=3)
    wanted = Settings(METHODS["two-stage"], n_inducing=30, n_inducing_variance=10, beta=0.3, recipe=quick)
    assert kind(new_model(wanted, data, generator()).kernel) == seen[best]
    assert seen == [kind(make_kernel(name, 2)) for name in ("matern52", "matern32", "matern12", "rbf", "rq")]


def test_one_kernel_and_few_rows_are_not_judged(monkeypatch):
    monkeypatch.setattr(start, "held_out_error", None)
    new_model(Settings(METHODS["two-stage"], n_inducing=30), rows(100), generator())
    fresh(rows(100))


@pytest.mark.parametrize("kernel", ["matern52", "linear"])
def test_of_rows_that_are_points_the_others_leave_unknown_what_counts(kernel):
    data, others = rows(12), rows(5, seed=3)
    model = METHODS["two-stage"].model(kernel, data.x.clone(), data.x[:8].clone(), noise=0.1).double()
    with torch.no_grad():
        head = Head(model, model.kernel, data, data.y)
        found = head.seen.log_u.exp().numpy()
        jitter = JITTER[torch.float64]
        K = covariance(model.kernel, data.x, data.x).numpy()
        new = head.inputs(others.x).log_u.exp().numpy()
        across = covariance(model.kernel, data.x[:8], others.x).numpy()
        k_new = prior_variance(model.kernel, others.x).numpy()
    K[range(8), range(8)] += jitter * K.diagonal()[:8].mean()
    for i in range(12):
        kept = [j for j in range(8) if j != i]
        k = K[kept, i]
        left = K[i, i] - k @ np.linalg.solve(K[np.ix_(kept, kept)], k)
        assert found[i] == pytest.approx(min(left / (K[i, i] - (i < 8) * jitter), 1), rel=0.05, abs=1e-4)
    expected = 1 - np.einsum("ij,ij->j", across, np.linalg.solve(K[:8, :8], across)) / k_new
    np.testing.assert_allclose(new, expected, atol=1e-6)


MIXTURE = np.array([-1.0, 0.3, -2.0, -0.5, 0.1, 1.5, -1.0, -0.3, 0.6])


@pytest.mark.parametrize(("tails", "parts"), [(0.0, []), (0.2, []), (0.2, MIXTURE)])
def test_the_heads_gradient_is_its_losss(tails, parts):
    data = rows(80)
    model = fresh(data)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        head = Head(model, model.kernel, data, ridge.left_out(ridge.solve(0.3), data))
    at = np.concatenate([0.3 * np.random.default_rng(0).normal(size=10), [-2.0, 0.4, tails], parts])
    loss, gradient = head._loss(at, 1.0)
    for i in [*range(12), *(range(12, len(at)) if tails else [])]:
        step = np.zeros_like(at)
        step[i] = 1e-5
        slope = (head._loss(at + step, 1.0)[0] - head._loss(at - step, 1.0)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, abs=1e-6)
    assert np.isfinite(loss)


@pytest.mark.parametrize(("tails", "mixture"), [(False, False), (True, False), (True, True)])
def test_the_noise_is_fitted_to_the_end(tails, mixture):
    """In few steps, with many features that say nearly the same."""
    data = rows(600, draw=student, noise=lambda x: 0.05 + 0.3 * torch.sigmoid(3 * x[:, 1]))
    model = METHODS["two-stage"].model("rbf", data.x[:20].clone(), data.x[:300].clone(), noise=NOISE)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        head = Head(model, model.kernel, data, ridge.left_out(ridge.solve(0.3), data))
        head.fit(0.03, tails, mixture)
    _, gradient = head._loss(np.concatenate([head.at.a, head.at[1:4], head.at.parts]), 0.03)
    free = np.delete(gradient, [301, 302])  # power and tails may be at their limits
    assert np.abs(free).max() < (1e-3 if mixture else 1e-4)
    assert np.abs(head.at.a).max() > 0.1


@pytest.mark.parametrize("mixture", [False, True])
def test_what_the_head_says_is_what_the_model_predicts(mixture):
    data, other = rows(80, draw=student), rows(30, seed=5)
    model = fresh(data)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        mean, _ = ridge.choose([0.3], None)
        head = Head(model, evened(model.kernel, 2), data, ridge.left_out(mean, data), other.x)
        head.fit(1.0, tails=True, mixture=mixture)
        ours, theirs = head.predict(mean.m @ ridge.features(other.x)), model.predict(other.x)
    assert ours.shape == theirs.shape
    assert ours.dof < 1000
    assert len(ours.shape.parts) == (3 if mixture else 1)
    for part in ("mean", "function_var", "noise_var"):
        np.testing.assert_allclose(getattr(ours, part), getattr(theirs, part), rtol=1e-6, atol=1e-9)


def test_log_densities_are_scipys():
    from scipy import stats

    residuals, var = torch.tensor([0.0, -0.7, 3.0]).double(), torch.tensor([0.2, 1.0, 4.0]).double()
    for tails in (0.0, 0.25):
        found = log_density(residuals, var, torch.tensor(tails).double(), parts_of(torch.empty(0).double()))
        scale = np.sqrt(var.numpy() * (1 - 2 * tails))
        law = stats.norm(scale=scale) if not tails else stats.t(df=1 / tails, scale=scale)
        np.testing.assert_allclose(found, law.logpdf(residuals), rtol=1e-9)


def test_log_densities_of_mixtures_are_the_shapes():
    residuals, var = torch.tensor([0.0, -0.7, 3.0]).double(), torch.tensor([0.2, 1.0, 4.0]).double()
    parts = parts_of(torch.from_numpy(MIXTURE))
    dist = PredictiveDistribution(np.zeros(3), var.numpy(), 0.0, Shape(4.0, tuple(map(tuple, parts.tolist()))))
    np.testing.assert_allclose(dist.shape.parts, parts, rtol=1e-12)  # of mean 0 and variance 1 as they are
    found = log_density(residuals, var, torch.tensor(0.25).double(), parts)
    np.testing.assert_allclose(found, dist.logpdf(residuals.numpy()), rtol=1e-9)


def trained(data, held_out, **options):
    return train(Settings(METHODS["two-stage"], **{"n_inducing": 20, **options}), data, held_out, generator=generator())


def test_noise_that_depends_on_what_says_nothing_of_the_mean_is_found():
    made = {"noise": lambda x: 0.05 + 0.3 * torch.sigmoid(8 * x[:, 1])}
    found = trained(rows(800, **made), rows(200, seed=5, **made), n_inducing=40).model
    test = rows(500, seed=11, **made)
    std = found.predict(test.x).std
    high, low = (test.x[:, 1] > 0.5).numpy(), (test.x[:, 1] < -0.5).numpy()
    assert 0.25 < np.median(std[high]) < 0.5
    assert 0.04 < np.median(std[low]) < 0.12


def test_few_rows_do_not_rule_out_one_that_is_far_off():
    """However normal they are; tails grow light with the number of rows."""
    tails = []
    for n in (200, 2000):
        data = rows(n)
        model = fresh(data)
        with torch.no_grad():
            head = Head(model, model.kernel, data, torch.randn(n, generator=generator(4)))
            head.fit(30.0, tails=True)
        tails.append(head.at.tails)
    assert 0.03 < tails[0] < 0.15
    assert tails[1] < tails[0] / 2


def test_a_mixture_leans_as_its_residuals_do_to_either_side():
    """What is added for a row that was not seen leans to neither."""
    data = rows(300)
    model = fresh(data)
    residuals, far = torch.randn(300, generator=generator(6)).exp(), torch.tensor([-5.0, -1.0, 0.0, 1.0, 5.0])
    found = []
    with torch.no_grad():
        for sign in (1.0, -1.0):
            head = Head(model, model.kernel, data, sign * (residuals - residuals.mean()))
            head.fit(30.0, tails=True)
            head.fit(30.0, tails=True, mixture=True)
            found.append(model.shape.logpdf(sign * far.numpy()))
    np.testing.assert_allclose(found[0], found[1], atol=0.02)


def test_heavy_tails_are_found_and_light_ones_left_alone():
    heavy = trained(rows(1500, draw=student), rows(500, seed=5, draw=student)).model
    assert 2.2 < heavy.shape.dof < 6
    assert trained(rows(1500), rows(500, seed=5)).model.shape.dof > 15


def leaning(n, *, generator, dtype):
    """Draws of mean 0 and variance near 1 that mostly lie just below it."""
    high = torch.rand(n, generator=generator, dtype=dtype) < 0.1
    draws = torch.randn(n, generator=generator, dtype=dtype)
    return torch.where(high, 2.7 + 0.8 * draws, -0.3 + 0.25 * draws)


def test_residuals_that_lean_to_one_side_get_a_mixture():
    found = trained(rows(1500, draw=leaning), rows(500, seed=5, draw=leaning)).model
    assert len(found.shape.parts) == 3
    test = rows(3000, seed=11, draw=leaning)
    dist = found.predict(test.x)
    for level in (50, 80, 90, 95):
        assert METRICS[f"coverage_{level}"](dist, test.y.numpy()) == pytest.approx(level / 100, abs=0.04)
    assert float(dist.shape.ppf(np.array(0.5))) < -0.1
    assert len(trained(rows(1500), rows(500, seed=5)).model.shape.parts) == 1


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_residuals_that_are_all_too_large_or_small_are_put_right_by_the_validation_rows(factor):
    data, other = rows(600), rows(300, seed=5)
    model = fresh(data)
    best = Best(model, other, 5, None)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        mean, there = ridge.choose([0.3], other)
        head = Head(model, model.kernel, data, factor * ridge.left_out(mean, data), other.x)
        head.fit(1.0, tails=True)
        before = head.at.b
        check = Validation(best, other, there, ALONE)
        check.attempt(head, lambda: check.level(head))
        assert head.at.b - before == pytest.approx(-2 * np.log(factor), abs=0.4)
        kept = head.at
        check.attempt(head, lambda: check.level(head))
    assert head.at is kept  # once is enough
    assert METRICS["coverage_80"](model.predict(other.x), other.y.numpy()) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("lean", [True, False])
def test_a_shape_that_only_the_validation_rows_have_is_taken_from_them(lean):
    draw = {"draw": leaning} if lean else {}
    data, other, test = rows(600), rows(400, seed=5, **draw), rows(3000, seed=11, **draw)
    model = fresh(data)
    best = Best(model, other, 5, None)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        mean, there = ridge.choose([0.3], other)
        head = Head(model, model.kernel, data, ridge.left_out(mean, data), other.x)
        head.fit(1.0, tails=True)
        kept, check = head.at, Validation(best, other, there, ALONE)
        check.attempt(head, lambda: check.shape(head), fitted=SHAPE_UNKNOWNS)
    if not lean:
        assert head.at is kept
        return
    assert head.at.log_power == kept.log_power
    assert np.array_equal(head.at.a, kept.a)
    dist = model.predict(test.x)
    for level in (50, 80, 90, 95):
        assert METRICS[f"coverage_{level}"](dist, test.y.numpy()) == pytest.approx(level / 100, abs=0.04)


def test_what_a_fit_to_the_validation_rows_gains_by_chance_does_not_count():
    data, other = rows(300), rows(100, seed=5)
    model = fresh(data)
    with torch.no_grad():
        ridge = ridge_of(model, data)
        mean, there = ridge.choose([0.3], other)
        head = Head(model, model.kernel, data, ridge.left_out(mean, data), other.x)
        head.fit(1.0)
        wide = head.at._replace(b=head.at.b + 1.0)
        for fitted, n, undone in ((0, 100, False), (90, 100, True), (0, 1, True)):
            head.at, few = wide, other.take(slice(n))
            head.held_out = head.inputs(few.x)
            check = Validation(Best(model, few, 5, None), few, there[:n], ALONE)
            check.attempt(head, lambda check=check: check.level(head), fitted=fitted)
            assert (head.at is wide) == undone


def test_on_noise_it_stays_at_the_marginal():
    noise = [Data(rows(60, seed=s).x, rows(60, seed=s + 20).x[:, 0]) for s in (1, 2)]
    found = trained(*noise)
    assert found.best_epoch == 0
    dist = found.model.predict(noise[1].x)
    assert np.ptp(dist.mean) == 0
    np.testing.assert_allclose(dist.std, 1, rtol=1e-3)


def test_far_away_the_prior_returns():
    found = trained(rows(300), rows(100, seed=5)).model
    far = found.predict(torch.full((1, 2), 1e3, dtype=torch.float64))
    assert far.function_var[0] == pytest.approx(found.kernel_scale**2, rel=1e-6)
    assert found.predict(rows(50, seed=6).x).function_var.mean() < 0.2 * far.function_var[0]


def test_without_validation_rows_the_first_values_count():
    found = trained(rows(), None)
    assert (found.beta, len(found.history), found.model.shape.dof) == (METHODS["two-stage"].beta[0], 1, np.inf)


def test_a_second_training_on_other_rows_keeps_its_own_mean():
    """Also where only the fit with tails beats what was there before."""
    first = trained(rows(600, draw=student), rows(300, seed=5, draw=student))
    data, held_out = (
        rows(600, seed=seed, draw=student)._replace(y=rows(600, seed=seed, draw=student).y + 0.3) for seed in (30, 40)
    )
    again = train(
        Settings(METHODS["two-stage"], n_inducing=20), data, held_out, generator=generator(), start=first.model
    )
    scores = [record.validation["nll"] for record in again.history]
    ended = -again.model.predict(held_out.x).logpdf(held_out.y.numpy()).mean()
    assert ended == pytest.approx(min(scores), abs=1e-6)


def test_sorted_rows_are_sampled_throughout():
    data = Data(torch.arange(10.0)[:, None], torch.arange(10.0))
    assert some(data, 4).y.tolist() == [0, 3, 6, 9]
    assert some(data, 10) is data


def test_single_precision_leaves_the_same_out():
    data = rows(400)
    model = fresh(data)
    expected = left_out(model, data, 0.1)
    found = left_out(model.float(), Data(data.x.float(), data.y.float()), 0.1)
    np.testing.assert_allclose(found, expected, atol=0.02 * float(expected.std()))


def test_single_precision_predicts_what_was_solved_for_where_points_nearly_coincide():
    """The weights of such points are large and cancel: with sums in single precision the error is three times this."""
    x = torch.randn(40, 2, generator=generator(1)).repeat(50, 1) + 0.3 * torch.randn(2000, 2, generator=generator(2))
    data = Data(x, torch.sin(3 * x[:, 0]) + 0.01 * torch.randn(2000, generator=generator(3)))
    model = METHODS["two-stage"].model("rbf", x[:1200].clone(), x[:10].clone(), noise=3e-4)
    with torch.no_grad():
        _, there = Ridge(model, data, 3e-4, ALONE).choose([0.01], data)
    np.testing.assert_allclose(model.predict_mean(x), there, atol=0.006)


def test_mean_points_are_as_many_as_the_rows_can_pay_for():
    wanted = Settings(METHODS["two-stage"])
    assert wanted.points(30_000) == [7000, 1000]
    assert wanted.points(9_000) == [6000, 1000]
    assert wanted.points(500) == [1000, 1000]
    assert wanted.points(500_000) == [4472, 1000]
    assert wanted.points(10**8) == [1000, 1000]
    assert Settings(METHODS["two-stage"], n_inducing=50, n_inducing_variance=30).points(1000) == [50, 30]
    assert Settings(METHODS["ppgpr-mfd"]).points(1000) == [1000, 1000]
    assert Settings(METHODS["svgp"]).points(1000) == [1000]


def test_processes_end_at_the_same_sums():
    """Two shares' sums are the whole's."""
    from paragp.data.rows import Share

    data = rows()
    model = fresh(data)
    whole = ridge_of(model, data)
    parts = [ridge_of(model, Share(data, rank, 2)) for rank in (0, 1)]
    torch.testing.assert_close(parts[0].target + parts[1].target, whole.target)
    torch.testing.assert_close(parts[0].H + parts[1].H, whole.H)


def test_the_best_state_is_kept_and_its_history_told():
    data, held_out = rows(300), rows(100, seed=5)
    model = fresh(data)
    best = Best(model, held_out, 10, None)
    assert solve_in_stages(model, data, best, (0.3, 0.1), ALONE)
    scores = [record.validation["nll"] for record in best.history]
    assert best.nll == min(scores)
    assert -model.predict(held_out.x).logpdf(held_out.y.numpy()).mean() == pytest.approx(best.nll, abs=1e-6)
    assert best.trial.beta in (0.3, 0.1)


def test_a_mixture_a_level_and_a_shape_are_tried_in_that_order(monkeypatch):
    tried = []

    def told(label, call):
        return lambda *args, **kwargs: (tried.append(label), call(*args, **kwargs))[1]

    fit = Head.fit
    monkeypatch.setattr(
        Head, "fit",
        lambda head, penalty, tails=False, mixture=False: (
            tried.append("mixture" if mixture else "tails" if tails else "normal"), fit(head, penalty, tails, mixture),
        )[1],
    )  # fmt: skip
    monkeypatch.setattr(Validation, "level", told("level", Validation.level))
    monkeypatch.setattr(Validation, "shape", told("shape", Validation.shape))
    data = rows(300)
    train(Settings(METHODS["two-stage"], n_inducing=12), data, rows(80, seed=5), generator=generator())
    assert list(dict.fromkeys(tried)) == ["normal", "tails", "mixture", "level", "shape"]
    assert tried[-3:] == ["mixture", "level", "shape"]


def test_weights_near_the_largest_leave_a_factor():
    """They swamp the penalty, which else keeps the curvature from being singular."""
    x = torch.rand(300, 1, generator=generator(), dtype=torch.float64) * 2 - 1
    data = Data(x, x[:, 0].square() + 0.1 * torch.randn(300, generator=generator(), dtype=torch.float64))
    data = data._replace(weights=torch.full((300,), 9e14, dtype=torch.float64))
    found = train(Settings(METHODS["two-stage"], kernel="rbf"), data, generator=generator())
    assert found.history
