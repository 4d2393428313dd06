"""A kernel from a sample of rows, and the units it gives the inputs."""

import numpy as np
import pytest
import torch

from paragp.data.rows import Data
from paragp.gp.exact import ExactGP
from paragp.gp.kernels import make_kernel
from paragp.gp.linalg import NotPositiveDefiniteError, log_density
from paragp.gp.model import INITIAL_NOISE
from paragp.training import start
from paragp.training.start import FAR, NEAR, choose_kernel, stretch

from cases import generator, randn


def rows(n=200, d=3):
    x = randn(n, d)
    return Data(x, torch.sin(3 * x[:, 0]) + 0.1 * randn(n, seed=1))


def fitted(data, rows=200):
    kernel = make_kernel("matern52", data.x.shape[1]).double()
    return choose_kernel([kernel], data, rows=rows, iterations=60, generator=generator(), deviation=NEAR)


def test_what_matters_gets_a_short_lengthscale_and_the_noise_is_found():
    kernel, noise = fitted(rows())
    first, *others = kernel.base_kernel.lengthscale.detach().flatten().tolist()
    assert min(others) > 3 * first
    assert noise == pytest.approx(0.01, rel=0.5)


def test_the_marginal_likelihood_rises():
    data = rows()
    kernel, noise = fitted(data)
    before = ExactGP(make_kernel("matern52", 3).double(), *data[:2], noise=INITIAL_NOISE).log_marginal()
    assert ExactGP(kernel, *data[:2], noise=noise).log_marginal() > before + 50


def test_a_weight_counts_as_copies():
    data = rows(30)
    copies = torch.arange(30) % 3 + 1
    kernels = [
        fitted(data._replace(weights=copies.double())),
        fitted(Data(data.x.repeat_interleave(copies, 0), data.y.repeat_interleave(copies))),
    ]
    (one, noise), (other, other_noise) = kernels
    torch.testing.assert_close(one.base_kernel.lengthscale, other.base_kernel.lengthscale, rtol=1e-3, atol=0)
    assert noise == pytest.approx(other_noise, rel=1e-3)


def test_rows_of_no_weight_are_not_seen():
    data = rows(60)
    y = data.y.clone()
    y[::2] = 1e3
    weights = torch.tensor([0.0, 1.0] * 30, dtype=torch.float64)
    _, noise = fitted(Data(data.x, y, weights))
    assert noise < 0.5


def test_a_kernel_without_a_factor_stays_as_it_is(monkeypatch):
    def hopeless(*_, **__):
        raise NotPositiveDefiniteError("no")

    monkeypatch.setattr(start.ExactGP, "log_marginal", hopeless)
    kernel, noise = fitted(rows())
    assert noise == INITIAL_NOISE
    torch.testing.assert_close(
        kernel.base_kernel.lengthscale, make_kernel("matern52", 3).double().base_kernel.lengthscale
    )


def test_units_follow_the_lengthscales_up_to_a_limit():
    kernel = make_kernel("rbf", 3).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.5, 5.0, 1e6]])
    np.testing.assert_allclose(stretch(kernel, 3), [1, 10, start.LARGEST_STRETCH], rtol=1e-6)


def test_log_density_is_torchs():
    K = randn(6, 6)
    K = K @ K.T + torch.eye(6)
    y = randn(6, seed=2)
    expected = torch.distributions.MultivariateNormal(torch.zeros(6, dtype=K.dtype), K).log_prob(y)
    torch.testing.assert_close(log_density(K, y), expected)


def test_log_density_gradcheck():
    root, y = randn(4, 6).requires_grad_(), randn(4, seed=2)
    assert torch.autograd.gradcheck(lambda R: log_density(R @ R.T, y), [root])


def test_the_likeliest_kernel_is_chosen_or_the_one_of_least_error():
    x = 3 * torch.rand(100, 1, generator=generator(1), dtype=torch.float64)
    data, seen = Data(x, torch.sin(2 * x[:, 0])), []
    options = {"rows": 60, "iterations": 40, "deviation": FAR}

    def error(kernel, noise):
        seen.append((kernel, kernel.base_kernel.lengthscale.item()))
        return -len(seen)

    kernels = [make_kernel(name, 1).double() for name in ("matern52", "matern12")]
    assert choose_kernel(kernels, data, generator=generator(), **options)[0] is kernels[0]
    found = choose_kernel(kernels, data, generator=generator(), error=error, **options)
    assert found[0] is seen[1][0] is kernels[1]
    assert found[0].base_kernel.lengthscale.item() != seen[1][1]  # it is looked at again, with more rows
    assert [kernel for kernel, _ in seen] == kernels
    assert choose_kernel(kernels[:1], data, generator=generator(), error=error, **options)[0] is kernels[0]
    assert len(seen) == 2
