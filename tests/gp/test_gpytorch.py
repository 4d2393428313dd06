"""Parity with GPyTorch in float64 for what it implements, and for the gamma-Robust terms.

GPyTorch puts its jitter on the data's diagonal too; `ktilde` is compared after taking it off again.
"""

import math

import gpytorch
import pytest
import torch
from gpytorch.variational import (
    BatchDecoupledVariationalStrategy,
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
    VariationalStrategy,
)

from paragp.gp.methods import METHODS
from paragp.gp.moments import Moments
from paragp.gp.objectives import estimate, gamma_robust, ppgpr, svgp

from cases import float64, randn, random_data, random_model

DISTRIBUTIONS = {
    "map": DeltaVariationalDistribution,
    "ppgpr-delta": DeltaVariationalDistribution,
    "ppgpr-mf": MeanFieldVariationalDistribution,
    "ppgpr-mfd": MeanFieldVariationalDistribution,
    "ppgpr-chol": CholeskyVariationalDistribution,
    "svgp": CholeskyVariationalDistribution,
}
SCALE, NOISE, BETA, M, D = 1.7, 0.3, 0.4, 5, 2


class Peer(gpytorch.models.ApproximateGP):
    """What a GPyTorch user writes for one of the methods."""

    def __init__(self, name, jitter):
        decoupled = name == "ppgpr-mfd"
        strategy = BatchDecoupledVariationalStrategy if decoupled else VariationalStrategy
        distribution = DISTRIBUTIONS[name](M)
        super().__init__(strategy(self, torch.zeros(M, D, dtype=float64), distribution, jitter_val=jitter))
        batch = torch.Size([1]) if decoupled else torch.Size()
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=D, batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=batch)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def pair(name):
    """Our model and GPyTorch's with the same parameters."""
    ours = random_model(name, M=M, d=D)
    if name == "ppgpr-mfd":  # GPyTorch's two sets have the same size
        ours = METHODS[name].model(ours.kernel, randn(M, D), randn(M, D, seed=5), noise=NOISE)
        with torch.no_grad():
            ours.family.m.copy_(randn(M, seed=6))
            ours.family.S.s.copy_(randn(M, seed=7))
    ours.kernel.outputscale = SCALE
    jitter = 1e-6 * SCALE
    peer = Peer(name, jitter).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = ours.noise.detach()
    strategy, family = peer.variational_strategy, ours.family
    with torch.no_grad():
        peer.covar_module.outputscale = SCALE
        peer.covar_module.base_kernel.lengthscale = ours.kernel.base_kernel.lengthscale
        points = torch.stack([family.Z, family.Z_variance]) if name == "ppgpr-mfd" else family.Z
        strategy.inducing_points.copy_(points)
        distribution = strategy._variational_distribution
        distribution.variational_mean.copy_(family.m)
        if DISTRIBUTIONS[name] is MeanFieldVariationalDistribution:
            distribution._variational_stddev.copy_(family.S.s)
        if DISTRIBUTIONS[name] is CholeskyVariationalDistribution:
            distribution.chol_variational_covar.copy_(family.S.factor())
    strategy.variational_params_initialized.fill_(1)
    return ours, peer, likelihood, jitter


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments_regulariser_and_objectives(name):
    ours, peer, likelihood, jitter = pair(name)
    data = random_data()
    peer.train()
    q, kl = ours(data.x)
    theirs = peer(data.x)
    torch.testing.assert_close(q.mean, theirs.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(q.fvar + jitter, theirs.variance, rtol=1e-8, atol=1e-9)
    their_kl = peer.variational_strategy.kl_divergence()
    if METHODS[name].covariance.__name__ == "Zero" or name == "ppgpr-mfd":
        their_kl = their_kl - 0.5 * M * math.log(2 * math.pi)  # a Delta's constant, dropped here
    torch.testing.assert_close(kl, their_kl, rtol=1e-8, atol=1e-9)

    bound = Moments(q.mean, q.ktilde + jitter, q.svar)
    for objective, theirs_class in ((svgp, "VariationalELBO"), (ppgpr, "PredictiveLogLikelihood")):
        mll = getattr(gpytorch.mlls, theirs_class)(likelihood, peer, num_data=len(data.y), beta=BETA)
        expected = mll(peer(data.x), data.y)
        constant = BETA * (peer.variational_strategy.kl_divergence() - their_kl) / len(data.y)
        value = estimate(objective(bound, data.y, ours.noise), kl, num_data=len(data.y), beta=BETA)
        torch.testing.assert_close(value, expected + constant, rtol=1e-8, atol=1e-9)


def test_gamma_robust_terms_with_the_published_sign():
    q = Moments(randn(6), randn(6, seed=1).square(), randn(6, seed=2).square())
    y, noise, gamma = randn(6, seed=3), torch.tensor(NOISE, dtype=float64), 1.05
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise
    mll = gpytorch.mlls.GammaRobustVariationalELBO(likelihood, Peer("svgp", 1e-6), num_data=6, gamma=gamma)
    theirs = mll._log_likelihood_term(gpytorch.distributions.MultivariateNormal(q.mean, q.fvar.diag()), y)
    ours = gamma_robust(q, y, noise, gamma=gamma, published_sign=True) + gamma / (gamma - 1)
    torch.testing.assert_close(ours.sum(), theirs, rtol=1e-9, atol=0)
