"""Raissi's baseline: its conditioning against plain linear algebra, and the uncertainty that it loses."""

import numpy as np
import torch

from paragp import Data
from paragp.gp.kernels import covariance
from paragp.paper.raissi import RaissiGP, fit_raissi

from cases import generator, randn


def joint(model, x):
    """Mean and covariance of (u, f(x)) under the model, in NumPy."""
    with torch.no_grad():
        K, K_x, K_xx = (covariance(model.kernel, a, b).numpy() for a, b in ((model.Z, model.Z), (model.Z, x), (x, x)))
    A = np.linalg.solve(K + 1e-6 * K.diagonal().mean() * np.eye(len(K)), K_x)
    m, S = model.m.numpy(), model.S.numpy()
    return A.T @ m, S @ A, K_xx - K_x.T @ A + A.T @ S @ A


def test_a_step_conditions_on_the_batch():
    model = RaissiGP("matern52", randn(4, 2, seed=1))
    model.m, root = randn(4, seed=2), randn(4, 4, seed=3)
    model.S = root @ root.T
    batch = Data(randn(3, 2, seed=4), randn(3, seed=5))
    mu, C, cov = joint(model, batch.x)
    noisy = cov + float(model.noise.detach()) * np.eye(3)
    residual = batch.y.numpy() - mu
    m = model.m.numpy() + C @ np.linalg.solve(noisy, residual)
    S = model.S.numpy() - C @ np.linalg.solve(noisy, C.T)
    loss = model.step(batch)
    np.testing.assert_allclose(model.m.numpy(), m, atol=1e-4)
    np.testing.assert_allclose(model.S.numpy(), S, atol=1e-4)
    expected = 0.5 * (residual @ np.linalg.solve(noisy, residual) + np.linalg.slogdet(noisy)[1]) / 3
    np.testing.assert_allclose(float(loss.detach()), expected, rtol=1e-4)


def test_prediction_is_the_marginal_and_has_the_noise_only_where_asked():
    model = RaissiGP("matern52", randn(4, 2, seed=1))
    model.step(Data(randn(30, 2, seed=4), randn(30, seed=5)))
    x = randn(6, 2, seed=6)
    mu, _, cov = joint(model, x)
    dist = model.predict(x)
    np.testing.assert_allclose(dist.mean, mu, atol=1e-4)
    np.testing.assert_allclose(dist.function_var, cov.diagonal(), atol=1e-4)
    np.testing.assert_allclose(dist.noise_var, float(model.noise.detach()))
    np.testing.assert_allclose(model.predict_function(x).var, dist.function_var)


def test_it_learns_the_curve_and_forgets_that_rows_came_before():
    x = torch.linspace(-2, 2, 400)[:, None]
    rows = Data(x, torch.sin(3 * x[:, 0]) + 0.3 * torch.randn(400, generator=generator()))
    short, long = (fit_raissi(rows, M=15, iterations=n, batch_size=100, generator=generator()) for n in (20, 200))
    assert np.sqrt(np.mean((long.predict(x).mean - np.sin(3 * x[:, 0].numpy())) ** 2)) < 0.1
    assert float(torch.linalg.slogdet(long.S)[1]) < float(torch.linalg.slogdet(short.S)[1]) - 5
