"""Every row of the registry against the paper's unwhitened equations in NumPy, to 1e-8."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paragp.gp.covariances import LogPower, Rooted, Zero
from paragp.gp.families import Coupled, Decoupled, OrthogonallyDecoupled, TwoKernels
from paragp.gp.kernels import covariance
from paragp.gp.linalg import JITTER
from paragp.gp.methods import METHODS
from paragp.gp.objectives import estimate

import reference
from cases import STATIONARY, random_data, random_model

BETA = 0.3


def kernel_settings(kernel):
    """Lengthscales, scale and, of a rational quadratic, its exponent alpha."""
    base = kernel.base_kernel
    alpha = base.alpha.item() if hasattr(base, "alpha") else None
    return base.lengthscale.detach().numpy(), float(kernel.outputscale), alpha


def unwhitened(model, data, kernel_name):
    """The model's parameters as the paper writes them: K matrices, m = Lam m', S = Lam S' Lam^T."""
    with torch.no_grad():
        family = model.family
        settings, other = (kernel_settings(kernel) for kernel in (model.kernel, family.variance_kernel(model.kernel)))
        x, y = data.x.numpy(), data.y.numpy()
        Z = family.Z.numpy()
        Z_variance = getattr(family, "Z_variance", family.Z).numpy()

        def k(a, b, settings=settings):
            return reference.kernel(kernel_name, a, b, *settings)

        def with_jitter(K, settings=settings):
            return K + JITTER[torch.float64] * settings[1] * np.eye(len(K))

        K_MM = with_jitter(k(Z_variance, Z_variance, other), other)
        K_mu = with_jitter(k(Z, Z))
        Lam, Lam_mu = np.linalg.cholesky(K_MM), np.linalg.cholesky(K_mu)
        L = Lam @ family.S.factor().numpy() if isinstance(family.S, Rooted) else np.zeros_like(Lam)
        return SimpleNamespace(
            x=x, y=y, noise=float(model.noise), K_MM=K_MM, K_mu=K_mu, S=L @ L.T, Lam=Lam,
            level=None if isinstance(family.S, Rooted) else (family.S.a.numpy(), float(family.S.b)),
            power=(float(family.S.power), int(family.S.leading)) if isinstance(family.S, LogPower) else None,
            K_Mb=k(Z_variance, x, other), K_mu_b=k(Z, x), k_diag=np.full(len(x), other[1]),
            m=(Lam_mu if isinstance(family, Decoupled) else Lam) @ family.m.numpy(),
            a=getattr(family, "a", torch.zeros(len(Z))).numpy(),
            K_gg=k(Z, Z), K_gM=k(Z, Z_variance),
        )  # fmt: skip


def reference_objective(name, p, kl=reference.kl, order=1.0):
    """The sum over the data minus beta_reg times the regulariser, in the paper's own variables.

    Terms that whitening drops (1/2 log det K_mu of MAP, PPGPR-delta and PPGPR-MFD, constants) are left out.
    """
    family, zero_S = METHODS[name].family, not p.S.any()
    if family is OrthogonallyDecoupled:
        mean = reference.od_mean(p.K_MM, p.K_Mb, p.m, p.a, p.K_mu_b, p.K_gM)
        extra = reference.od_kl(p.m, p.S, p.K_MM, p.a, p.K_gg, p.K_gM) - reference.kl(p.m, p.S, p.K_MM)
        regulariser = kl(p.m, p.S, p.K_MM) + order * extra
    elif issubclass(family, Decoupled):
        mean = reference.mean(p.K_mu, p.K_mu_b, p.m)
        spread = kl(0 * p.S[0], p.S, p.K_MM) if p.level is None else 0.5 * p.level[0] @ p.level[0]
        regulariser = 0.5 * p.m @ np.linalg.solve(p.K_mu, p.m) + spread
    else:
        mean = reference.mean(p.K_MM, p.K_Mb, p.m)
        regulariser = 0.5 * p.m @ np.linalg.solve(p.K_MM, p.m) if zero_S else kl(p.m, p.S, p.K_MM)
    svar = reference.svar(p.K_MM, p.K_Mb, p.S)
    if p.level is not None:
        svar = np.exp(p.level[0] @ np.linalg.solve(p.Lam, p.K_Mb) + p.level[1])
    ktilde = reference.ktilde(p.K_MM, p.K_Mb, p.k_diag)
    if p.power is not None:
        power, m = p.power
        known = np.sum(p.K_Mb[:m] * np.linalg.solve(p.K_MM[:m, :m], p.K_Mb[:m]), axis=0)
        ktilde = p.k_diag * (1 - known / p.k_diag) ** power
    moments = (mean, ktilde, svar)
    gamma, alpha = (next(iter(grid), None) for grid in (METHODS[name].gamma, METHODS[name].bb_alpha))
    terms = {
        "map": reference.svgp_terms, "svgp": reference.svgp_terms, "od-svgp": reference.svgp_terms,
        "vfitc": reference.vfitc_terms, "od-vfitc": reference.vfitc_terms,
        "gamma-robust": lambda *args: reference.gamma_robust_terms(*args, gamma=gamma),
        "ppgpr-gamma": lambda *args: reference.ppgpr_gamma_terms(*args, gamma=gamma),
        "bb-alpha": lambda mean, ktilde, svar, y, s2: reference.bb_alpha_terms(mean, ktilde + svar, y, s2, alpha),
        "bb-alpha-u": lambda mean, ktilde, svar, y, s2: reference.bb_alpha_terms(mean, svar, y, s2 + ktilde, alpha),
    }.get(name, reference.ppgpr_terms)(*moments, p.y, p.noise)  # fmt: skip
    return moments, terms, terms.sum() - BETA * regulariser


@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("name", METHODS)
def test_method_equals_the_papers_equations(name, kernel):
    model, data = random_model(name, kernel=kernel), random_data()
    moments, terms, objective = reference_objective(name, unwhitened(model, data, kernel))
    with torch.no_grad():
        q, kl = model(data.x)
        ours = METHODS[name].objective_for()(q, data.y, model.noise)
        total = len(data.y) * estimate(ours, kl, num_data=len(data.y), beta=BETA)
    for mine, theirs in zip(q, moments, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours, terms, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(total, objective, rtol=1e-8)


@pytest.mark.parametrize("order", [0.3, 1.2])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.covariance is not Zero])
def test_the_regulariser_of_an_order_is_renyis_divergence(name, order):
    model, data = random_model(name), random_data()
    with torch.no_grad():
        for parameter in model.family.S.parameters():
            parameter.mul_(0.7)  # within a / (a - 1)
    model.family.order = order
    renyi = partial(reference.renyi, order=order)
    _, terms, objective = reference_objective(name, unwhitened(model, data, "matern52"), renyi, order)
    assert float(model(data.x)[1].detach()) == pytest.approx((terms.sum() - objective) / BETA, rel=1e-8)


@pytest.mark.parametrize("name", METHODS)
def test_predictive_distribution_is_normal_with_both_variances(name):
    model, data = random_model(name), random_data()
    (mean, ktilde, svar), _, _ = reference_objective(name, unwhitened(model, data, "matern52"))
    dist = model.predict(data.x, chunk=5)
    np.testing.assert_allclose(dist.mean, mean, rtol=1e-8, atol=1e-8)
    noisy = svar if model.family.S.is_noise else 0 * svar
    np.testing.assert_allclose(dist.function_var, ktilde + svar - noisy, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(dist.noise_var, float(model.noise.detach()) + noisy, rtol=1e-8)


@pytest.mark.parametrize("kernel", STATIONARY)
def test_kernel_equals_its_formula(kernel):
    model = random_model("map", kernel=kernel)
    x, z = random_data(6).x, random_data(4, seed=3).x
    with torch.no_grad():
        ours = covariance(model.kernel, x, z)
        theirs = reference.kernel(kernel, x.numpy(), z.numpy(), *kernel_settings(model.kernel))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_coupled_rows_share_the_class_the_reference_assumes():
    assert {m.family for m in METHODS.values()} == {Coupled, Decoupled, OrthogonallyDecoupled, TwoKernels}
