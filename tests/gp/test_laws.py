"""The mathematics as laws over the whole registry."""

from functools import partial
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, PeriodicKernel, RBFKernel, ScaleKernel
from hypothesis import given

from paragp.data.rows import batches
from paragp.gp.covariances import Dense, Diagonal, LogLinear, Zero
from paragp.gp.exact import ExactGP, fitc_log_marginal, optimal_q
from paragp.gp.families import Coupled
from paragp.gp.kernels import KERNELS, covariance, make_kernel, prior_variance
from paragp.gp.linalg import whiten
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.gp.moments import Moments
from paragp.gp.objectives import bb_alpha, bb_alpha_u, estimate, gamma_robust, ppgpr, ppgpr_gamma, svgp, vfitc

import reference
from cases import float64, generator, randn, random_data, random_model

numbers = st.floats(-10, 10)
variances = st.floats(1e-6, 1e3)


def values(model, data, objective):
    q, kl = model(data.x)
    return objective(q, data.y, model.noise), kl


# --- objectives ---
@given(mean=numbers, ktilde=variances, svar=variances, y=numbers, noise=variances)
def test_ppgpr_bounds_vfitc_bounds_svgp(mean, ktilde, svar, y, noise):
    q = Moments(*torch.tensor([[mean], [ktilde], [svar]], dtype=float64))
    y, noise = torch.tensor([y], dtype=float64), torch.tensor(noise, dtype=float64)
    tops = [float(objective(q, y, noise)) for objective in (ppgpr, vfitc, svgp)]
    slack = 1e-9 * max(map(abs, tops))
    assert tops[0] >= tops[1] - slack
    assert tops[1] >= tops[2] - slack


@pytest.mark.parametrize("name", METHODS)
def test_bounds_hold_for_the_moments_of_every_row(name):
    model, data = random_model(name), random_data()
    with torch.no_grad():
        top, middle, bottom = (values(model, data, objective)[0] for objective in (ppgpr, vfitc, svgp))
    assert (top >= middle - 1e-12).all()
    assert (middle >= bottom - 1e-12).all()


def test_without_svar_vfitc_is_ppgpr():
    q = Moments(randn(9), randn(9, seed=1).square(), torch.zeros(9, dtype=float64))
    y, noise = randn(9, seed=2), torch.tensor(0.3, dtype=float64)
    torch.testing.assert_close(vfitc(q, y, noise), ppgpr(q, y, noise), rtol=1e-14, atol=0)


LIMITS = {  # objectives that come to others at the ends of their parameter
    "gamma-robust": (partial(gamma_robust, gamma=1 + 1e-7), svgp),
    "gamma-robust as published": (partial(gamma_robust, gamma=1 + 1e-7, published_sign=True), svgp),
    "ppgpr-gamma": (partial(ppgpr_gamma, gamma=1 + 1e-7), ppgpr),
    "bb-alpha at zero": (partial(bb_alpha, alpha=1e-7), svgp),
    "bb-alpha at one": (partial(bb_alpha, alpha=1.0), ppgpr),
    "bb-alpha over u at zero": (partial(bb_alpha_u, alpha=1e-7), vfitc),
    "bb-alpha over u at one": (partial(bb_alpha_u, alpha=1.0), ppgpr),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_objectives_have_the_others_gradient(limit):
    model, data = random_model("svgp"), random_data()

    def gradient(objective):
        terms, kl = values(model, data, objective)
        return torch.autograd.grad(estimate(terms, kl, num_data=12), list(model.parameters()))

    for ours, theirs in zip(*map(gradient, LIMITS[limit]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@given(mean=numbers, ktilde=variances, svar=variances, y=numbers, noise=variances, alpha=st.floats(0.01, 0.99))
def test_bb_alpha_lies_between_its_ends_and_rises(mean, ktilde, svar, y, noise, alpha):
    q = Moments(*torch.tensor([[mean], [ktilde], [svar]], dtype=float64))
    y, noise = torch.tensor([y], dtype=float64), torch.tensor(noise, dtype=float64)
    for energy, bottom in ((bb_alpha, svgp), (bb_alpha_u, vfitc)):
        ladder = [bottom(q, y, noise), *(energy(q, y, noise, alpha=a) for a in (alpha / 2, alpha)), ppgpr(q, y, noise)]
        for low, high in pairwise(map(float, ladder)):
            assert low <= high + 1e-9 * max(abs(low), abs(high), 1)


@pytest.mark.parametrize("objective", [bb_alpha, bb_alpha_u])
@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_alpha_lies_above_zero_up_to_one(objective, alpha):
    q = Moments(*torch.ones(3, 1))
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        objective(q, torch.ones(1), torch.ones(()), alpha=alpha)


def test_the_gamma_divergence_gives_up_on_outliers():
    q = Moments(torch.zeros(1, dtype=float64), torch.ones(1, dtype=float64), torch.zeros(1, dtype=float64))
    noise = torch.ones((), dtype=float64)

    def slope(objective, y):
        mean = torch.zeros(1, dtype=float64, requires_grad=True)
        (found,) = torch.autograd.grad(objective(q._replace(mean=mean), torch.tensor([y]), noise).sum(), mean)
        return float(found)

    robust = partial(ppgpr_gamma, gamma=1.5)
    assert slope(ppgpr, 30.0) > slope(ppgpr, 3.0) > 0
    assert slope(robust, 30.0) < 1e-6 < slope(robust, 3.0)


def test_gamma_robust_signs_differ_away_from_one():
    q = Moments(randn(3), randn(3, seed=1).square(), randn(3, seed=2).square())
    args = q, randn(3, seed=3), torch.tensor(0.3, dtype=float64)
    assert not torch.allclose(gamma_robust(*args, gamma=1.5), gamma_robust(*args, gamma=1.5, published_sign=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_minibatch_estimates_average_to_the_full_batch(name, weighted):
    model, data = random_model(name), random_data(N=11)
    if weighted:
        weights = torch.linspace(0, 3, 11, dtype=float64)
        data = data._replace(weights=weights / weights.mean())
    objective = METHODS[name].objective_for()

    def value(rows):
        terms, kl = values(model, rows, objective)
        return float(estimate(terms, kl, num_data=11, beta=0.3, weights=rows.weights).detach())

    parts = list(batches(data, 4, generator()))
    average = sum(len(b.y) * value(b) for b in parts) / 11
    assert average == pytest.approx(value(data), rel=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_counts_as_copies_of_its_row(name):
    model, data = random_model(name), random_data(N=4)
    copies = torch.tensor([1, 3, 0, 2])
    objective = METHODS[name].objective_for()
    repeated = data.take(torch.repeat_interleave(torch.arange(4), copies))
    terms, kl = values(model, repeated, objective)
    expected = estimate(terms, kl, num_data=6, beta=0.3)
    terms, kl = values(model, data, objective)
    ours = estimate(terms, kl, num_data=6, beta=0.3, weights=copies.to(float64) * 4 / 6)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)


# --- families and covariances ---
def copy_parameters(source, target):
    with torch.no_grad():
        theirs = dict(source.named_parameters())
        for name, parameter in target.named_parameters():
            if name in theirs and parameter.shape == theirs[name].shape:
                parameter.copy_(theirs[name])


def assert_same(model, other, x):
    with torch.no_grad():
        (q, kl), (q_other, kl_other) = model(x), other(x)
    for mine, theirs in zip((*q, kl), (*q_other, kl_other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_mfd_with_shared_points_is_mf():
    mf = random_model("ppgpr-mf")
    mfd = METHODS["ppgpr-mfd"].model("matern52", mf.family.Z, noise=0.2)
    copy_parameters(mf, mfd)
    with torch.no_grad():
        mfd.family.Z_variance.copy_(mf.family.Z)
    assert_same(mf, mfd, random_data().x)


@pytest.mark.parametrize("name", ["svgp", "vfitc"])
def test_without_extra_weights_orthogonal_mean_functions_change_nothing(name):
    plain = random_model(name)
    od = METHODS[f"od-{name}"].model("matern52", randn(3, 2, seed=9), plain.family.Z, noise=0.2)
    copy_parameters(plain, od)
    with torch.no_grad():
        od.family.Z_variance.copy_(plain.family.Z)
        od.family.a.zero_()
    assert_same(plain, od, random_data().x)


def test_dense_with_diagonal_factor_is_diagonal():
    mf = random_model("ppgpr-mf")
    chol = METHODS["ppgpr-chol"].model("matern52", mf.family.Z, noise=0.2)
    copy_parameters(mf, chol)
    with torch.no_grad():
        chol.family.S.L.copy_(mf.family.S.s.diag())
    assert_same(mf, chol, random_data().x)


def test_two_equal_kernels_are_one():
    mfd = random_model("ppgpr-mfd")
    both = METHODS["ppgpr-mfd-2k"].model(mfd.kernel, mfd.family.Z, mfd.family.Z_variance, noise=0.2)
    copy_parameters(mfd, both)
    assert_same(mfd, both, random_data().x)
    with torch.no_grad():
        both.family.own_kernel.outputscale = 3.0
        (q, _), (p, _) = mfd(random_data().x), both(random_data().x)
    torch.testing.assert_close(q.mean, p.mean)  # the mean has the other
    assert (p.fvar > q.fvar).all()


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if m.covariance is not Zero])
def test_renyis_divergence_rises_with_its_order_through_the_kl(name):
    model = random_model(name)
    factor, found = model.factorise(), []
    with torch.no_grad():
        for parameter in model.family.S.parameters():
            parameter.mul_(0.7)
        for order in (0.2, 0.999999, 1.0, 1.000001, 1.3):
            model.family.order = order
            found.append(float(model.family.kl(factor)))
    assert all(after >= before - 1e-12 for before, after in pairwise(found))
    assert found[1] == pytest.approx(found[2], rel=1e-4)
    assert found[3] == pytest.approx(found[2], rel=1e-4)


@pytest.mark.parametrize("covariance_type", [Diagonal, Dense])
def test_renyis_divergence_is_infinite_where_it_has_no_value(covariance_type):
    S = covariance_type(3).double()
    with torch.no_grad():
        for parameter in S.parameters():
            parameter.mul_(1.5)  # S' = 2.25 > 2 / (2 - 1)
        assert torch.isinf(S.renyi(2.0))
        assert torch.isfinite(S.renyi(1.5))
        before = S.factor()
        S.confine(1.5)  # nothing to do
        torch.testing.assert_close(S.factor(), before, rtol=0, atol=0)
        S.confine(2.0)
        assert torch.isfinite(S.renyi(2.0))
        assert 1.9 < float(torch.linalg.eigvalsh(S.joint(torch.eye(3).double())).max()) < 2.0


def test_a_log_linear_level_is_positive_finite_and_noise():
    model, x = random_model("ppgpr-log"), random_data().x
    with torch.no_grad():
        A = whiten(model.factorise().W, covariance(model.family.own_kernel, model.family.Z_variance, x))
        level = model.family.S.level(A)
        torch.testing.assert_close(level, (model.family.S.a @ A + model.family.S.b).exp())
        joint = model.predict_covariance(x)
        dist = model.predict(x)
        np.testing.assert_allclose(dist.noise_var, level + model.noise, rtol=1e-9)
        np.testing.assert_allclose(np.diag(joint), dist.var, rtol=1e-6)
        model.family.S.a.fill_(1e6)
        assert torch.isfinite(model(x)[0].svar).all()


@pytest.mark.parametrize("covariance_type", [Zero, Diagonal, Dense])
def test_covariance_answers_match_its_factor(covariance_type):
    S = covariance_type(4).to(float64)
    with torch.no_grad():
        for parameter in S.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(), dtype=float64))
        A, L = randn(4, 3), S.factor()
        W = torch.eye(4, dtype=float64)
        for enabled in (False, True):  # prediction and training
            with torch.set_grad_enabled(enabled):
                q = S.moments(W, S.form(W), A, torch.ones(3, dtype=float64), None)
            torch.testing.assert_close(q.svar, (A.T @ (L @ L.T) @ A).diagonal())
        if covariance_type is not Zero:
            assert float(S.kl()) == pytest.approx(reference.kl(np.zeros(4), (L @ L.T).numpy(), np.eye(4)))


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if m.covariance in (Zero, Dense)])
def test_permuting_the_inducing_points_changes_nothing(name):
    """With m' and S' carried through Q = Lam_p^-1 P Lam. (A diagonal S', or LogLinear, depends on the order of Z.)"""
    model, x = random_model(name), random_data().x
    permuted = random_model(name)
    family, other = model.family, permuted.family
    with torch.no_grad():
        for points in {"Z", "Z_variance"} & set(dict(family.named_parameters())):
            Z = getattr(family, points)
            order = torch.randperm(len(Z), generator=generator(4))
            getattr(other, points).copy_(Z[order])
            if points == "Z" and hasattr(family, "a"):
                other.a.copy_(family.a[order])
                continue
            kernel = family.variance_kernel(model.kernel) if points == "Z_variance" else model.kernel
            Lam = torch.linalg.cholesky(_K(kernel, Z))
            Q = torch.linalg.solve(torch.linalg.cholesky(_K(kernel, Z[order])), Lam[order])
            if len(Q) == len(family.m):
                other.m.copy_(Q @ family.m)
            if len(list(family.S.parameters())) and len(Q) == len(family.variance_points):
                L = Q @ family.S.factor()
                other.S.L.copy_(torch.linalg.cholesky(L @ L.T))
    assert_same(model, permuted, x)


def _K(kernel, Z):
    K = covariance(kernel, Z, Z)
    return K + 1e-6 * K.diagonal().mean() * torch.eye(len(Z), dtype=float64)


# --- moments ---
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", METHODS)
def test_ktilde_lies_between_zero_and_the_prior(name, kernel):
    model, x = random_model(name, kernel=kernel), random_data(40).x
    x = torch.cat([x, model.family.Z.detach()])
    with torch.no_grad():
        q, _ = model(x)
        prior = prior_variance(model.family.variance_kernel(model.kernel), x)
    assert (q.ktilde >= 0).all()
    assert (q.ktilde <= prior).all()
    assert (q.svar >= 0).all()


@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", "rbf", "rq"])
@pytest.mark.parametrize("name", METHODS)
def test_far_from_the_inducing_points_the_prior_returns(name, kernel):
    model = random_model(name, kernel=kernel)
    far = 1e6 * torch.tensor([[1.0, 1.0], [-1.0, 2.0]], dtype=float64)
    with torch.no_grad():
        q, _ = model(far)
    torch.testing.assert_close(q.mean, torch.zeros(2, dtype=float64), rtol=0, atol=1e-4)
    prior = prior_variance(model.family.variance_kernel(model.kernel), far).detach()
    level = model.family.S.b.detach().exp() if isinstance(model.family.S, LogLinear) else 0.0
    torch.testing.assert_close(q.fvar, prior + level, rtol=1e-4, atol=0)


# --- marginal likelihoods ---
def gp_on_its_own_rows(N=8):
    data = random_data(N)
    kernel = make_kernel("matern52", 2).double()
    model = ParametricGP(kernel, Coupled(data.x, Dense), noise=0.2)
    return model, data, ExactGP(kernel, data.x, data.y, noise=0.2)


def projection(model, data):
    A = whiten(model.factorise().W, covariance(model.kernel, model.family.Z, data.x))
    return A, prior_variance(model.kernel, data.x) - A.square().sum(0)


def set_optimal_q(model, data, inflate_by_ktilde):
    with torch.no_grad():
        A, ktilde = projection(model, data)
        q = optimal_q(A, data.y, model.noise + (ktilde if inflate_by_ktilde else 0 * ktilde))
        model.family.m.copy_(q.m)
        model.family.S.L.copy_(q.L)


def test_svgp_on_all_rows_with_the_optimal_q_is_the_exact_log_marginal():
    model, data, exact = gp_on_its_own_rows()
    set_optimal_q(model, data, inflate_by_ktilde=False)
    terms, kl = values(model, data, svgp)
    assert float((terms.sum() - kl).detach()) == pytest.approx(float(exact.log_marginal().detach()), abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_svgp_never_exceeds_the_exact_log_marginal(seed):
    model, data, exact = gp_on_its_own_rows()
    set_optimal_q(model, data, inflate_by_ktilde=False)
    with torch.no_grad():
        for parameter in model.family.parameters():  # any inducing points, any q
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(seed), dtype=float64))
        terms, kl = values(model, data, svgp)
        assert float(terms.sum() - kl) < float(exact.log_marginal())


def test_vfitc_with_the_optimal_q_is_fitcs_marginal_likelihood():
    model, data = random_model("vfitc"), random_data()
    set_optimal_q(model, data, inflate_by_ktilde=True)
    terms, kl = values(model, data, vfitc)
    with torch.no_grad():
        A, ktilde = projection(model, data)
        marginal = fitc_log_marginal(A, ktilde + model.noise, data.y)
    assert float((terms.sum() - kl).detach()) == pytest.approx(float(marginal), rel=1e-10)


# --- kernels ---
def test_sums_and_products_of_kernels_are_kernels():
    """Any GPyTorch kernel serves: its moments equal those of the matrices it gives."""
    d = 2
    kernel = ScaleKernel(RBFKernel(ard_num_dims=d)) * ScaleKernel(PeriodicKernel()) + LinearKernel(ard_num_dims=d)
    model = METHODS["ppgpr-chol"].model(kernel.double(), randn(5, d))
    x = random_data().x
    with torch.no_grad():
        q, _ = model(x)
        K_MM = kernel(model.family.Z).to_dense()
        K_MM += 1e-6 * K_MM.diagonal().mean() * torch.eye(5, dtype=float64)
        K_Mb, k_diag = kernel(model.family.Z, x).to_dense(), kernel(x).to_dense().diagonal()
    expected = reference.ktilde(K_MM.numpy(), K_Mb.numpy(), k_diag.numpy())
    np.testing.assert_allclose(q.ktilde, expected, rtol=1e-7, atol=1e-8)


# --- a network for the mean ---
def test_a_network_for_the_mean_leaves_the_variance_and_its_regulariser():
    data, Z = random_data(), randn(6, random_data().x.shape[1], seed=3)
    kernel = make_kernel("matern52", Z.shape[1]).double()
    decoupled = METHODS["ppgpr-mfd"].model(kernel, Z)
    linear = torch.nn.Linear(Z.shape[1], 1).double()
    model = METHODS["ppgpr-mfd"].model(kernel, Z, mean=linear)
    with torch.no_grad():
        for both in (decoupled, model):
            both.family.S.s.copy_(0.5 + randn(6, seed=4).abs())
        (q, kl), (p, other) = model(data.x), decoupled(data.x)
        torch.testing.assert_close(q.fvar, p.fvar, rtol=1e-12, atol=0)
        torch.testing.assert_close(q.mean, linear(data.x)[:, 0], rtol=1e-12, atol=0)
        torch.testing.assert_close(kl, other, rtol=1e-12, atol=0)  # m' = 0 there


def test_only_the_decoupled_family_takes_a_network_for_the_mean():
    for name, method in METHODS.items():
        assert method.takes_mean == (name in ("ppgpr-mfd", "ppgpr-gamma"))
        if not method.takes_mean:
            with pytest.raises(ValueError, match="these take one, and one set of points Z: PPGPR-MFD, PPGPR-γ"):
                method.model("rbf", randn(4, 2), mean=torch.nn.Linear(2, 1))
