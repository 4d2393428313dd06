"""ParametricGP and the registry: starting points, checks at the border, what is the paper's."""

import copy
import math
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, RFFKernel, ScaleKernel

from paragp.gp.exact import ExactGP
from paragp.gp.families import Coupled
from paragp.gp.kernels import KERNELS, covariance, make_kernel
from paragp.gp.methods import GAMMAS, METHODS, PP_BETA, VI_BETA
from paragp.gp.model import INITIAL_NOISE, NOISE_FLOOR
from paragp.shape import Shape

from cases import float64, randn, random_data, random_model


def test_grids_are_the_papers():
    assert sorted(VI_BETA) == [0.1, 0.3, 0.5, 1.0]
    assert sorted(PP_BETA) == [0.01, 0.05, 0.2, 1.0]
    assert sorted(GAMMAS) == [1.01, 1.03, 1.05, 1.07]
    assert METHODS["map"].beta == METHODS["gamma-robust"].beta == (1.0,)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_that_is_far_out_leaves_the_others_as_they_are(name):
    model, x = random_model(name, dtype=torch.float32), random_data(20, dtype=torch.float32).x
    far = torch.cat([x, torch.tensor([[1e15, 0.0]])])
    alone, beside = model.predict(x), model.predict(far)
    np.testing.assert_allclose(beside.mean[:-1], alone.mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(beside.std[:-1], alone.std, rtol=1e-3)
    assert np.isfinite(beside.std[-1])


def test_gamma_belongs_to_gamma_robust():
    assert METHODS["gamma-robust"].objective_for(gamma=1.07).keywords == {"gamma": 1.07}
    with pytest.raises(ValueError, match="SVGP has no gamma"):
        METHODS["svgp"].objective_for(gamma=1.07)
    with pytest.raises(ValueError, match="gamma must be above 1"):
        METHODS["gamma-robust"].objective(None, None, None, gamma=1.0)


@pytest.mark.parametrize("name", METHODS)
def test_models_start_at_the_prior(name):
    model = METHODS[name].model("matern52", randn(5, 3))
    q, kl = model(randn(4, 3, seed=1))
    assert torch.equal(q.mean, torch.zeros(4, dtype=float64))
    assert float(kl.detach()) == 0.0
    assert float(model.noise.detach()) == pytest.approx(INITIAL_NOISE, rel=1e-6)
    assert model.kernel_scale == pytest.approx(1.0, rel=1e-6)


def test_noise_stays_above_its_floor():
    model = METHODS["svgp"].model("rbf", randn(3, 2))
    with torch.no_grad():
        model.likelihood.raw.fill_(-1e3)
    assert float(model.noise.detach()) == pytest.approx(NOISE_FLOOR)
    assert NOISE_FLOOR == 1e-4
    with pytest.raises(ValueError, match="above its floor"):
        METHODS["svgp"].model("rbf", randn(3, 2), noise=1e-5)


@pytest.mark.parametrize("make", [
    lambda: METHODS["ppgpr-mfd"].model("rbf", randn(3, 2)),
    lambda: ExactGP(make_kernel("rbf", 2), randn(6, 2), randn(6)),
])  # fmt: skip
def test_tails_are_of_the_state_and_reach_predictions(make):
    model, x = make(), randn(4, 2)
    assert model.shape.dof == model.predict(x).dof == math.inf
    old = {
        name: value.clone()
        for name, value in model.state_dict().items()
        if name not in ("likelihood.tails", "likelihood.parts")
    }
    model.likelihood.tails.fill_(0.25)
    model.likelihood.parts[:2, 0] = 0.5
    model.likelihood.parts[1, 1] = 3.0
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model).float().double()):
        assert same.shape.dof == same.predict(x).dof == 4.0
        assert same.shape == same.predict(x).shape == Shape(4.0, ((0.5, 0.0, 1.0), (0.5, 3.0, 1.0)))
    other = make()
    other.load_state_dict(model.state_dict())
    assert other.shape == model.shape
    np.testing.assert_array_equal(other.predict(x).var, model.predict(x).var)
    other.load_state_dict(old)  # of before there were tails: a checkpoint, say
    assert other.shape == Shape()
    assert "likelihood.tails" not in old


@pytest.mark.parametrize("kernel", KERNELS)
def test_named_kernels_have_a_scale_and_one_lengthscale_per_input(kernel):
    made = make_kernel(kernel, 9)
    base = made.base_kernel
    lengthscale = base.variance.rsqrt() if kernel == "linear" else base.lengthscale
    torch.testing.assert_close(lengthscale.detach(), torch.full((1, 9), 3.0))
    assert float(made.outputscale.detach()) == pytest.approx(1.0)


def test_lengthscales_cannot_underflow():
    kernel = make_kernel("rbf", 2)
    with torch.no_grad():
        kernel.base_kernel.raw_lengthscale.fill_(-1e3)
    assert (kernel.base_kernel.lengthscale >= 1e-4).all()


def test_points_far_from_the_origin_keep_their_digits():
    kernel, x = make_kernel("rbf", 2), randn(5, 2, dtype=torch.float32)
    near, far = (covariance(kernel, x + shift, x[:3] + shift).detach() for shift in (0.0, 4096.0))
    shifted = covariance(kernel.double(), (x + 4096.0).double(), (x[:3] + 4096.0).double()).detach()
    torch.testing.assert_close(far.double(), shifted, atol=1e-6, rtol=0)
    torch.testing.assert_close(far, near, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", "rbf"])
def test_diagonal_of_a_symmetric_matrix_is_exact(kernel):
    x = 1e4 * randn(50, 3, dtype=torch.float32)
    K = covariance(make_kernel(kernel, 3), x, x).detach()
    assert torch.equal(K.diagonal(), torch.ones(50))


def test_kernel_scale_is_the_prior_deviation():
    kernel = ScaleKernel(RBFKernel() + RBFKernel())
    kernel.outputscale = 2.0
    assert METHODS["map"].model(kernel, randn(3, 2)).kernel_scale == pytest.approx(2.0, rel=1e-6)


def test_a_model_owns_its_kernel():
    kernel = make_kernel("rbf", 2)
    first, second = (METHODS["map"].model(kernel, randn(3, 2)) for _ in range(2))
    assert first.kernel is not second.kernel
    assert kernel.outputscale.dtype == torch.float32


def test_unknown_kernel_lists_the_names():
    with pytest.raises(ValueError, match=r"matern12, .*, linear, auto, or a gpytorch.kernels.Kernel; got 'cubic'"):
        make_kernel("cubic", 2)


def test_features_are_evaluated_in_eval_mode_and_put_back():
    dropout = torch.nn.Dropout(0.5)
    model = random_model("ppgpr-mf", features=dropout)
    model.train()
    x = random_data().x
    np.testing.assert_array_equal(model.predict(x).mean, model.predict(x).mean)
    assert dropout.training
    model.eval()
    model.predict(x)
    assert not dropout.training


@pytest.mark.parametrize("kernel", ["matern52", "rq"])
@pytest.mark.parametrize("name", METHODS)
def test_mean_alone_is_the_mean(name, kernel):
    model, x = random_model(name, kernel=kernel), random_data(50).x
    np.testing.assert_allclose(model.predict_mean(x, chunk=7), model.predict(x).mean, rtol=1e-7, atol=1e-9)


def test_prediction_is_the_same_in_any_chunks():
    model, x = random_model("svgp"), random_data(50).x
    whole, parts = model.predict(x), model.predict(x, chunk=7)
    np.testing.assert_allclose(whole.mean, parts.mean, rtol=1e-12)
    np.testing.assert_allclose(whole.std, parts.std, rtol=1e-12)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(4, 1, dtype=float64), r"Expected inputs of shape \(n, 2\) in torch\.float64, got shape \(4, 1\)"),
        (torch.ones(4, 2), r"in torch\.float64, got shape \(4, 2\) in torch\.float32"),
        (torch.ones(4, dtype=float64), r"Expected inputs of shape \(n, 2\)"),
        (torch.full((4, 2), torch.nan, dtype=float64), "x holds 8 NaN or infinite"),
    ],
)
def test_bad_inputs_are_refused_at_prediction(x, message):
    with pytest.raises(ValueError, match=message):
        random_model("ppgpr-mfd").predict(x)


@pytest.mark.parametrize(
    ("Z", "Z_variance", "message"),
    [
        (torch.ones(3), None, r"shape \(M, d\)"),
        (torch.ones(0, 2), None, "at least 1"),
        (torch.ones(3, 2).int(), None, "floating-point"),
        (torch.full((3, 2), torch.inf), None, "NaN or infinite"),
        (torch.ones(3, 2), torch.ones(3, 1), "agree in inputs"),
        (torch.ones(3, 2), torch.ones(3, 2).double(), "agree in inputs and precision"),
    ],
)
def test_bad_inducing_points_are_refused(Z, Z_variance, message):
    with pytest.raises(ValueError, match=message):
        METHODS["ppgpr-mfd"].model("rbf", Z, Z_variance)


def test_a_frozen_mean_still_moves_the_inducing_points():
    """Gradients of Z must not depend on whether m' is trained too."""
    data, gradients = random_data(), []
    for frozen in (False, True):
        model = random_model("svgp")
        model.family.m.requires_grad_(not frozen)
        q, _ = model(data.x)
        gradients.append(torch.autograd.grad(q.mean.sum(), model.family.Z)[0])
    torch.testing.assert_close(*gradients)


def test_coupled_methods_refuse_a_second_set():
    with pytest.raises(ValueError, match="same inducing points for mean and variance"):
        METHODS["svgp"].model("rbf", torch.ones(3, 2), torch.ones(3, 2))
    assert METHODS["svgp"].family is Coupled


def test_any_gpytorch_kernel_serves_in_float32():
    kernel = gpytorch.kernels.RFFKernel(num_samples=20, num_dims=2)
    model = METHODS["svgp"].model(kernel, randn(4, 2, dtype=torch.float32))
    assert np.isfinite(model.predict(randn(9, 2, dtype=torch.float32)).std).all()


def test_what_a_kernel_draws_at_its_first_call_stays():
    """Random Fourier features, here and in other processes."""
    x = randn(6, 2).float()
    kernels = [make_kernel(ScaleKernel(RFFKernel(num_samples=20)), 2) for _ in range(2)]
    with torch.no_grad():
        first, again, other = (covariance(kernel, x, x.clone()) for kernel in (kernels[0], *kernels))
    assert torch.equal(first, again)
    assert torch.equal(first, other)
