"""The full-batch baselines: against scikit-learn, against NumPy, and their two solvers against each other."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from paragp.gp import exact
from paragp.gp.exact import ConvergenceWarning, ExactGP, fit_exact, fit_fitc, optimal_q, pivoted_cholesky
from paragp.gp.kernels import covariance, make_kernel
from paragp.gp.linalg import inverse_cholesky
from paragp.metrics import nll, rmse

import reference
from cases import float64, generator, randn, random_data

LENGTHSCALE, SCALE, NOISE = [0.7, 1.3], 1.4, 0.05


def gp(N=40, **options):
    kernel = make_kernel("matern52", 2).double()
    kernel.base_kernel.lengthscale = torch.tensor([LENGTHSCALE], dtype=float64)
    kernel.outputscale = torch.tensor(SCALE, dtype=float64)
    data = random_data(N)
    return ExactGP(kernel, data.x, data.y, **({"noise": NOISE} | options))


def K_of(model, a, b):
    with torch.no_grad():
        return covariance(model.kernel, a, b).numpy()


def test_exact_agrees_with_scikit_learn():
    ours = gp()
    kernel = ConstantKernel(SCALE, "fixed") * Matern(LENGTHSCALE, "fixed", nu=2.5) + WhiteKernel(NOISE, "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=0).fit(ours.X.numpy(), ours.y.numpy())
    x = random_data(15, seed=3).x
    dist = ours.predict(x, chunk=4)
    mean, std = theirs.predict(x.numpy(), return_std=True)
    np.testing.assert_allclose(dist.mean, mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(dist.std, std, rtol=1e-6)
    assert float(ours.log_marginal().detach()) == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-7)


def test_exact_log_marginal_is_eqn_marg():
    model = gp()
    expected = reference.exact_log_marginal(K_of(model, model.X, model.X), model.y.numpy(), float(model.noise.detach()))
    assert float(model.log_marginal().detach()) == pytest.approx(expected, rel=1e-10)


@pytest.fixture
def small_blocks(monkeypatch):
    """Few rows at a time, few preconditioner columns: the paths of a large table on a small one."""
    monkeypatch.setattr(exact, "BLOCK", 7)
    monkeypatch.setattr(exact, "PRECONDITIONER_RANK", 10)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("noise", [0.05, 2e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conjugate_gradients_predict_as_cholesky(noise, dtype):
    """At the tolerance that is shipped, a hard (nearly noise-free) case included."""
    x = random_data(15, seed=3).x
    expected = gp(N=300, noise=noise, solver="cholesky").predict(x)
    cg = gp(N=300, noise=noise, solver="cg").to(dtype).predict(x.to(dtype))
    np.testing.assert_allclose(cg.mean, expected.mean, atol=5e-3 if dtype == torch.float32 else 1e-4)
    np.testing.assert_allclose(cg.std, expected.std, rtol=1e-2)


def test_the_preconditioner_saves_iterations(monkeypatch):
    model, calls = gp(N=300, noise=1e-3, solver="cg"), []
    multiply = model._multiply
    monkeypatch.setattr(model, "_multiply", lambda V: calls.append(1) or multiply(V))
    model.solve(model.y[:, None], model._preconditioner())
    with_it = len(calls)
    model.solve(model.y[:, None], lambda V: V.clone())
    assert with_it < 0.5 * (len(calls) - with_it)


@pytest.mark.usefixtures("small_blocks")
def test_conjugate_gradients_give_the_gradient_of_the_log_marginal(monkeypatch):
    """With the N probes sqrt(N) e_i the trace is exact, so the two gradients must agree."""
    monkeypatch.setattr(exact, "CG_TOLERANCE", 1e-10)
    model = gp()
    expected = torch.autograd.grad(model.log_marginal(), list(model.parameters()))
    model.add_log_marginal_gradient(40**0.5 * torch.eye(40, dtype=float64))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)


def test_unconverged_solve_says_so(monkeypatch):
    monkeypatch.setattr(exact, "CG_ITERATIONS", 1)
    monkeypatch.setattr(exact, "PRECONDITIONER_RANK", 1)
    model = gp(solver="cg")
    rhs = torch.stack([model.y, 1e-6 * model.y], 1)  # residuals count relative to each column
    with pytest.warns(ConvergenceWarning, match=r"relative residual of \d\.\de[+-]0[01] "):
        model.solve(rhs, model._preconditioner())


def test_exact_refuses_other_columns_at_prediction():
    with pytest.raises(ValueError, match=r"inputs of shape \(n, 2\)"):
        gp().predict(torch.ones(3, 1, dtype=float64))


def test_solver_is_chosen_by_rows_and_said(monkeypatch):
    assert gp().solver == "cholesky"
    monkeypatch.setattr(exact, "CONDITION_BY_CHOLESKY", 10)
    assert gp().solver == "cg"
    with pytest.raises(ValueError, match="solver must be 'cholesky', 'cg' or None"):
        gp(solver="lu")


def test_pivoted_cholesky_reproduces_the_matrix_at_full_rank():
    model = gp(12)
    P = pivoted_cholesky(model.kernel, model.X, 12)
    np.testing.assert_allclose(P @ P.T, K_of(model, model.X, model.X), atol=1e-8)


def test_pivoted_cholesky_takes_the_largest_remaining_variance():
    """At low rank it leaves less than the leading rows in their given order would."""
    model = gp(4)
    X = torch.cat([model.X[:1] + 1e-3 * randn(10, 2), model.X])  # ten rows that nearly coincide, then the others
    P = pivoted_cholesky(model.kernel, X, 4)
    rest = K_of(model, X, X).trace() - float(P.square().sum())
    leading = K_of(model, X[:4], X)
    explained = np.einsum("mn,mn->", leading, np.linalg.solve(K_of(model, X[:4], X[:4]), leading))
    assert rest < 0.5 * (K_of(model, X, X).trace() - explained)


def test_pivoted_cholesky_stops_at_the_rank_of_the_matrix():
    model = gp(6)
    P = pivoted_cholesky(model.kernel, torch.cat([model.X, model.X]), 12)
    assert P.shape[1] <= 7
    assert torch.isfinite(P).all()


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_equal_rows_are_one_row_that_was_measured_better(solver):
    data = random_data(12)
    X, y = data.x[[0, 1, 1, 2, 2, 2, *range(3, 12)]], randn(15, seed=4)
    kernel = gp().kernel
    model = ExactGP(kernel, X, y, noise=NOISE, solver=solver)
    assert sorted(model.copies.tolist()) == [1.0] * 10 + [2.0, 3.0]
    K = K_of(model, X, X) + NOISE * np.eye(15)
    x = random_data(5, seed=9).x
    K_Nx = K_of(model, X, x)
    dist = model.predict(x)
    np.testing.assert_allclose(dist.mean, K_Nx.T @ np.linalg.solve(K, y.numpy()), rtol=1e-5)
    explained = (K_Nx * np.linalg.solve(K, K_Nx)).sum(0)
    np.testing.assert_allclose(dist.function_var, np.diag(K_of(model, x, x)) - explained, rtol=1e-4, atol=1e-7)
    expected = -0.5 * (y.numpy() @ np.linalg.solve(K, y.numpy()) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert float(model.log_marginal().detach()) == pytest.approx(expected)


def test_the_gradient_by_conjugate_gradients_knows_equal_rows():
    data = random_data(12)
    X, y = data.x[[0, 1, 1, 2, 2, 2, *range(3, 12)]], randn(15, seed=4)
    model = ExactGP(gp().kernel, X, y, noise=NOISE, solver="cg")
    model.add_log_marginal_gradient(12**0.5 * torch.eye(12, dtype=float64))  # E[z z^T] = I without chance
    found = [parameter.grad.clone() for parameter in model.parameters()]
    expected = torch.autograd.grad(model.log_marginal(), list(model.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def noisy_sine(N, seed=0):
    x = torch.rand(N, 1, generator=generator(seed), dtype=float64)
    return x, torch.sin(6 * x[:, 0]) + 0.1 * randn(N, seed=seed + 1)


@pytest.mark.parametrize("learn_rows", [100, 40])
def test_fit_exact_learns_kernel_and_noise(learn_rows):
    X, y = noisy_sine(100)
    model = fit_exact("rbf", X, y, generator=generator(), iterations=50, learn_rows=learn_rows)
    assert 0.07 < float(model.noise.detach()) ** 0.5 < 0.14
    assert model.kernel_scale == pytest.approx(float(model.kernel.outputscale.detach()) ** 0.5)
    x, target = noisy_sine(200, seed=5)
    assert rmse(model.predict(x), target) < 0.13


def test_steps_by_conjugate_gradients_raise_the_log_marginal_of_all_rows():
    X, y = noisy_sine(200)

    def log_marginal(cg_steps):
        model = fit_exact("rbf", X, y, generator=generator(), iterations=1, learn_rows=20, cg_steps=cg_steps)
        return float(model.log_marginal().detach())

    values = [log_marginal(steps) for steps in (0, 5, 10)]
    assert values[0] + 5 < values[1] < values[2]


@pytest.mark.parametrize("fit", [lambda X, y: fit_exact("rbf", X, y, generator=generator()),
                                 lambda X, y: fit_fitc("rbf", X, y, X[:3])])  # fmt: skip
def test_baselines_refuse_bad_rows(fit):
    X, y = noisy_sine(20)
    with pytest.raises(ValueError, match="y holds 1 NaN"):
        fit(X, torch.cat([y[:-1], torch.tensor([torch.nan])]))
    with pytest.raises(ValueError, match="one target per row"):
        fit(X, y[:, None])


def test_fitc_refuses_inducing_points_of_other_width():
    X, y = noisy_sine(20)
    with pytest.raises(ValueError, match=r"inputs of shape \(n, 2\)"):
        fit_fitc("rbf", X, y, randn(3, 2))


def test_maximise_keeps_the_best_and_steps_back_from_what_cannot_be_factorised():
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.tensor([0.0], dtype=float64))

    def value():
        if float(module.p.detach()) > 1.5:
            raise exact.NotPositiveDefiniteError("too far")
        return -(module.p - 1.4).square().sum()

    exact.maximise(module, value, 50)
    assert float(module.p.detach()) == pytest.approx(1.4, abs=1e-3)


def test_fitc_log_marginal_is_eqn_fitcmarg():
    X, y = noisy_sine(30)
    model = fit_fitc("matern52", X, y, X[::6], iterations=1)
    Z, noise = model.family.Z.detach(), float(model.noise.detach())
    scale = float(model.kernel.outputscale.detach())
    K_MM = K_of(model, Z, Z) + 1e-6 * scale * np.eye(len(Z))
    expected = reference.fitc_log_marginal(K_MM, K_of(model, Z, X), np.full(30, scale), y.numpy(), noise)
    with torch.no_grad():
        W = inverse_cholesky(torch.from_numpy(K_MM), jitter=0.0)
        K_MN = covariance(model.kernel, Z, X)
        A = exact.whiten(W, K_MN)
        ours = exact.fitc_log_marginal(A, scale - A.square().sum(0) + model.noise, y)
    assert float(ours) == pytest.approx(expected, rel=1e-10)


def test_fitc_predicts_with_its_posterior():
    """Against the textbook form: Sigma = (K_MM + K_MN D^-1 K_NM)^-1."""
    X, y = noisy_sine(60)
    model = fit_fitc("matern52", X, y, X[::10], iterations=20)
    Z, noise, x = model.family.Z.detach(), float(model.noise.detach()), noisy_sine(20, seed=7)[0]
    scale = float(model.kernel.outputscale.detach())
    K_MM = K_of(model, Z, Z) + 1e-6 * scale * np.eye(len(Z))
    K_MN, K_Mb = K_of(model, Z, X), K_of(model, Z, x)
    D = reference.ktilde(K_MM, K_MN, np.full(60, scale)) + noise
    Sigma = np.linalg.inv(K_MM + (K_MN / D) @ K_MN.T)
    dist = model.predict(x)
    np.testing.assert_allclose(dist.mean, K_Mb.T @ Sigma @ (K_MN / D) @ y.numpy(), rtol=1e-4, atol=1e-5)
    var = reference.ktilde(K_MM, K_Mb, np.full(20, scale)) + np.einsum("mb,mn,nb->b", K_Mb, Sigma, K_Mb)
    np.testing.assert_allclose(dist.function_var, var, rtol=1e-4, atol=1e-6)


def test_fit_fitc_learns():
    X, y = noisy_sine(200)
    x, target = noisy_sine(200, seed=5)
    start, end = (fit_fitc("rbf", X, y, X[::20], iterations=i).predict(x) for i in (0, 60))
    assert nll(end, target) < nll(start, target) - 0.5
    assert rmse(end, target) < 0.13


def test_optimal_q_is_stationary_for_the_elbo():
    A, y, var = randn(4, 9), randn(9, seed=1), randn(9, seed=2).square() + 0.1
    m, L = (t.clone().requires_grad_() for t in optimal_q(A, y, var))
    residual = (y - A.T @ m).square() + (L.T @ A).square().sum(0)
    kl = 0.5 * (m.square().sum() + L.square().sum()) - L.diagonal().log().sum()
    (-0.5 * (residual / var).sum() - kl).backward()
    assert m.grad.abs().max() < 1e-9
    assert L.grad.tril().abs().max() < 1e-9
