"""The closed-form solves end where the objective's gradient vanishes, over the whole registry."""

import numpy as np
import pytest
import torch

from paragp.data.rows import Data
from paragp.gp.exact import optimal_q
from paragp.gp.methods import METHODS
from paragp.training import solves
from paragp.training.solves import solve, solve_variance
from paragp.training.step import backward

from cases import randn, random_data, random_model

QUADRATIC = [name for name, method in METHODS.items() if not method.gamma]


def weighted(data, seed=4):
    return data._replace(weights=randn(len(data.y), seed=seed).square() + 0.1)


def gradients(name, model, data, beta):
    """Of the objective on all rows, as the loop sees it: weights of mean one, their sum as the number of data."""
    total = len(data.y) if data.weights is None else float(data.weights.sum())
    if data.weights is not None:
        data = data._replace(weights=data.weights * len(data.y) / total)
    model.zero_grad()
    backward(model, METHODS[name].objective_for(), data, num_data=total, beta=beta)
    return {key: parameter.grad for key, parameter in model.named_parameters()}


@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("name", QUADRATIC)
def test_the_solved_mean_is_a_stationary_point(name, with_weights):
    model, data = random_model(name), random_data(40)
    data = weighted(data) if with_weights else data
    before = gradients(name, model, data, 0.3)["family.m"].norm()
    assert solve(model, METHODS[name].objective_for(), data, beta=0.3)
    after = gradients(name, model, data, 0.3)
    for key in [key for key in after if key in ("family.m", "family.a")]:
        assert float(after[key].norm()) < 1e-8 * max(1.0, float(before)), key


@pytest.mark.parametrize("order", [0.4, 1.2])
@pytest.mark.parametrize("name", QUADRATIC)
def test_the_solved_mean_is_a_stationary_point_under_renyis_divergence(name, order):
    model, data = random_model(name), random_data(40)
    model.family.order = order
    model.confine()
    assert solve(model, METHODS[name].objective_for(), data, beta=0.3)
    after = gradients(name, model, data, 0.3)
    for key in [key for key in after if key in ("family.m", "family.a")]:
        assert float(after[key].norm()) < 1e-8, key


@pytest.mark.parametrize("name", [name for name in QUADRATIC if METHODS[name].solved_covariance])
def test_the_solved_covariance_is_a_stationary_point(name):
    model, data = random_model(name), random_data(40)
    assert solve(model, METHODS[name].objective_for(), data, beta=0.3, covariance=True)
    after = gradients(name, model, data, 0.3)
    assert float(after["family.S.L"].tril().norm()) < 1e-8
    assert float(after["family.m"].norm()) < 1e-8


def test_only_objectives_linear_in_svar_have_a_solved_covariance():
    solved = {name for name, method in METHODS.items() if method.solved_covariance}
    assert solved == {"svgp", "vfitc", "gamma-robust", "od-svgp", "od-vfitc"}


def test_repeated_solves_find_gamma_robusts_mean():
    model, data = random_model("gamma-robust"), random_data(40)
    for _ in range(30):
        assert solve(model, METHODS["gamma-robust"].objective_for(gamma=1.05), data, beta=1.0)
    assert float(gradients("gamma-robust", model, data, 1.0)["family.m"].norm()) > 1e-6  # gamma is 1.03 there
    for _ in range(30):
        solve(model, METHODS["gamma-robust"].objective_for(), data, beta=1.0)
    assert float(gradients("gamma-robust", model, data, 1.0)["family.m"].norm()) < 1e-6


def test_svgps_solution_is_the_optimal_q():
    model, data = random_model("svgp"), random_data(30)
    solve(model, METHODS["svgp"].objective, data, beta=1.0, covariance=True)
    with torch.no_grad():
        A = model.family.mean_basis(model.kernel).features(data.x)
        q = optimal_q(A, data.y, model.noise.expand(len(data.y)))
    torch.testing.assert_close(model.family.m.detach(), q.m)
    torch.testing.assert_close(model.family.S.L.detach(), q.L)


@pytest.mark.parametrize("name", ["ppgpr-mfd", "od-svgp"])
def test_a_weight_counts_as_copies(name):
    data = random_data(20)
    copies = torch.arange(20) % 3
    once = Data(data.x, data.y, copies.double())
    twice = Data(data.x.repeat_interleave(copies, 0), data.y.repeat_interleave(copies))
    found = []
    for rows in (once, twice):
        model = random_model(name)
        solve(model, METHODS[name].objective, rows, beta=0.2)
        found.append(model.family.m.detach())
    torch.testing.assert_close(*found)


def test_many_rows_are_taken_in_chunks(monkeypatch):
    data, found = random_data(50), []
    for chunk in (7, 1000):
        monkeypatch.setattr("paragp.training.solves.CHUNK", chunk)
        model = random_model("ppgpr-mfd")
        solve(model, METHODS["ppgpr-mfd"].objective, data, beta=0.2)
        found.append(model.family.m.detach())
    torch.testing.assert_close(*found)


def test_what_cannot_be_solved_is_left_alone():
    model, data = random_model("svgp"), random_data(10)
    before = [model.family.m.detach().clone(), model.family.S.L.detach().clone()]
    bad = data._replace(y=torch.full_like(data.y, torch.nan))
    assert not solve(model, METHODS["svgp"].objective, bad, beta=1.0, covariance=True)
    torch.testing.assert_close([model.family.m.detach(), model.family.S.L.detach()], before)


def test_float32_with_repeated_points_finds_a_solution():
    """Points that coincide leave normal equations without a factor but for the ridge."""
    torch.manual_seed(0)
    Z = torch.randn(5, 2).repeat(20, 1)
    model = METHODS["ppgpr-mfd"].model("matern52", Z, Z, noise=2e-4)
    x = torch.randn(500, 2)
    assert solve(model, METHODS["ppgpr-mfd"].objective, Data(x, torch.sin(x[:, 0])), beta=0.01)
    assert bool(torch.isfinite(model.family.m).all())


DIAGONAL = ["ppgpr-mf", "ppgpr-mfd"]


@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("name", DIAGONAL)
def test_the_solved_variance_is_a_stationary_point(name, with_weights, monkeypatch):
    monkeypatch.setattr(solves, "VARIANCE_STEPS", 3000)
    monkeypatch.setattr(solves, "CHUNK", 16)
    model, data = random_model(name), random_data(40)
    data = data._replace(y=data.y + 2 * randn(40, seed=5).sign())  # errors that S' alone cannot explain
    data = weighted(data) if with_weights else data
    objective = solve_variance(model, data, beta=0.3)
    after = gradients(name, model, data, 0.3)
    assert float(after["family.S.s"].norm()) < 1e-8
    assert float(after["likelihood.raw"].abs()) < 1e-8
    total = 40.0 if data.weights is None else float(data.weights.sum())
    weights = torch.ones(40) if data.weights is None else data.weights
    q, kl = model(data.x)
    terms = METHODS[name].objective(q, data.y, model.noise)
    assert objective == pytest.approx(float((weights.double() @ terms - 0.3 * kl).detach() / total), rel=1e-9)


@pytest.mark.parametrize("name", DIAGONAL)
def test_each_step_of_the_variance_is_one_up(name, monkeypatch):
    found = []
    for steps in range(1, 12):
        monkeypatch.setattr(solves, "VARIANCE_STEPS", steps)
        found.append(solve_variance(random_model(name), random_data(40), beta=0.3))
    assert found == sorted(found)


def test_a_mean_that_leaves_more_or_less_than_asked_leaves_the_variance_alone():
    model, data = random_model("ppgpr-mfd"), random_data(40)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    error = float((data.y - torch.from_numpy(model.predict(data.x).mean)).square().mean())
    assert solve_variance(model, data, beta=0.3, within=(0.0, 0.99 * error)) is None
    assert solve_variance(model, data, beta=0.3, within=(1.01 * error, 9.0)) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert solve_variance(model, data, beta=0.3, within=(0.99 * error, 1.01 * error)) is not None


@pytest.mark.parametrize("name", DIAGONAL)
def test_without_a_regulariser_the_solved_variance_stays_finite(name):
    """Where all errors are far from the points, no direction of S' has a use."""
    model, data = random_model(name), random_data(40)
    data.x[0] = 1e4
    y = torch.from_numpy(model.predict(data.x).mean)
    y[0] += 5
    assert np.isfinite(solve_variance(model, data._replace(y=y), beta=0.0))
    assert bool((model.family.S.s > 0).all())
    assert np.isfinite(float(model.family.kl(model.factorise()).detach()))
