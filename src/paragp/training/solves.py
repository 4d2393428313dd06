"""Closed-form solves: what the objective's best mean, and the ELBO's best covariance, are for all else as it is.

An objective of this library sees the mean of a row through a square, c_i (y_i - mean_i)^2 / 2 with a curvature c_i that
depends on the variances: 1/sigma_obs^2 (SVGP, MAP), 1/(ktilde + sigma_obs^2) (VFITC), 1/(sigma_f^2 + sigma_obs^2)
(PPGPR), 1/(sigma_obs^2 + alpha sigma_f^2) (BB-alpha, and over q(u) alone 1/(ktilde + sigma_obs^2 + alpha svar)). So the
best mean is a ridge regression with weights c on the functions of `Family.mean_basis`, and one pass over the rows
replaces the long, ill-conditioned way of a gradient method. For gamma-Robust and PPGPR-gamma, whose curvature depends
on the residual, it is one step of iteratively reweighted least squares.

Of a diagonal S' and the noise PPGPR's optimum has no closed form, but steps that need neither a rate nor a bound
(`solve_variance`).
"""

import math

import torch
from torch import Tensor

from paragp.data.rows import Data, Rows
from paragp.gp.covariances import Dense, Diagonal
from paragp.gp.features import evaluating
from paragp.gp.kernels import covariance as kernel_matrix
from paragp.gp.kernels import prior_variance
from paragp.gp.linalg import keep_freed_memory, whiten
from paragp.gp.model import NOISE_FLOOR, ParametricGP
from paragp.gp.moments import Moments
from paragp.gp.objectives import Objective
from paragp.gp.products import lower_of_product
from paragp.training.distributed import ALONE, Group

CHUNK = 2000  # rows taken together
SMALLEST_RESIDUAL = 1e-3  # in standardised units: below, a residual is too small to tell the curvature by
VARIANCE_STEPS, SHARE_AT_START = 30, 0.5  # of the residuals' mean square, that noise and S' have each
LEAST_S2 = 1e-12  # of s^2, and of what it is divided by: without a regulariser nothing else keeps either from zero
RIDGES = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)  # of H's diagonal, in turn: float32 sums may leave H without a factor


@torch.no_grad()
def solve(
    model: ParametricGP,
    objective: Objective,
    data: Rows,
    *,
    beta: float,
    covariance: bool = False,
    group: Group = ALONE,
) -> bool:
    """Set the mean's coefficients to their optimum, and with `covariance` the dense S' to the ELBO's.

    False means that no finite solution was found, or that there is none (a network's mean), and nothing was changed.

    With features A (P, N), curvatures c and the prior precision P_0,

        H = A diag(c) A^T + beta P_0,   coefficients = H^-1 A (c y),   S' = beta H^-1 (of the coupled functions).

    The latter holds for objectives that are linear in svar with slope -c / 2 (SVGP, VFITC and, nearly, gamma-Robust).
    Products are in the model's precision, sums over chunks and the solve in float64.
    """
    if not model.family.mean_parameters:
        return False
    keep_freed_memory()
    family, factor = model.family, model.factorise()
    basis = family.mean_basis(model.kernel)
    precision = basis.precision.double()
    coefficients = torch.cat([*family.mean_parameters])
    H, target = torch.zeros_like(precision), torch.zeros_like(precision[0])
    for part in data.chunks(CHUNK):
        with evaluating(model):
            h = model.embed(part.x)
        A = basis.features(h)
        q = family.spread(factor, model.kernel, h)._replace(mean=coefficients @ A)
        c = curvature(objective, q, part, model.noise)
        H += lower_of_product(A, A.T, scale=c).double()
        target += (A @ (c * part.y)).double()
    group.add([H, target])
    H = H.tril() + H.tril(-1).T + beta * precision
    root = factor_of(H)
    if root is None:
        return False
    sizes = [len(parameter) for parameter in family.mean_parameters]
    found = [*torch.cholesky_solve(target[:, None], root)[:, 0].split(sizes)]
    parameters = [*family.mean_parameters]
    if covariance and beta > 0:
        assert isinstance(family.S, Dense)
        M = len(family.variance_points)
        S_root = _inverse_root(H[:M, :M] / beta)
        if S_root is None:
            return False
        parameters, found = [*parameters, family.S.L], [*found, S_root]
    if not all(bool(torch.isfinite(value).all()) for value in found):
        return False
    for parameter, value in zip(parameters, found, strict=True):
        parameter.copy_(value)
    return True


@torch.no_grad()
def solve_variance(
    model: ParametricGP, rows: Data, *, beta: float, within: tuple[float, float] = (0.0, math.inf)
) -> float | None:
    """Bring a diagonal S' = diag(s^2) and the noise to where PPGPR's objective (Eqn regpred2) of these rows is best for
    the mean as it is; the objective per row. None, and nothing changed, where the squares of the residuals r have a
    mean that is not `within` these bounds.

    With v_i = sigma_obs^2 + ktilde_i + sum_j A_ji^2 s_j^2, the objective's slope in s_j^2 is half of

        (sum_i A_ji^2 r_i^2 / v_i^2 + beta / s_j^2) - (sum_i A_ji^2 / v_i + beta),

    and each step multiplies s_j^2 by the first bracket over the second, as non-negative factorisations under the
    Itakura-Saito divergence do; so also the noise, whose A^2 is 1 and which has no beta.
    """
    family, S = model.family, model.family.S
    assert isinstance(S, Diagonal)
    kernel, factor, Z = family.variance_kernel(model.kernel), model.factorise(), family.variance_points
    mean = family.mean_function(factor, model.kernel)
    square = (rows.y - torch.cat([mean(x) for x in rows.x.split(CHUNK)])).square()
    weights = torch.ones_like(square) if rows.weights is None else rows.weights
    level = float(weights @ square / weights.sum())
    if not within[0] <= level <= within[1]:
        return None
    A2, ktilde = rows.x.new_empty(len(Z), rows.size), torch.empty_like(rows.y)
    for start in range(0, rows.size, CHUNK):
        part = slice(start, start + CHUNK)
        x = rows.x[part]
        A2[:, part] = whiten(factor.W, kernel_matrix(kernel, Z, x)).square_()
        ktilde[part] = (prior_variance(kernel, x) - A2[:, part].sum(0)).clamp_min(0)
    noise = max(SHARE_AT_START * level, 2 * NOISE_FLOOR)
    s2 = torch.full_like(S.s, SHARE_AT_START * level / max(float(A2.sum(0).mean()), level))
    for _ in range(VARIANCE_STEPS):
        v = noise + ktilde + s2 @ A2
        more, less = weights * square / v.square(), weights / v
        s2 *= (A2 @ more + beta / s2) / (A2 @ less + beta).clamp_min(LEAST_S2)
        s2.clamp_min_(LEAST_S2)
        noise = max(noise * float(more.sum() / less.sum()), 2 * NOISE_FLOOR)
    S.s.copy_(s2.sqrt())
    model.likelihood.start(noise)
    v = noise + ktilde + s2 @ A2
    terms = -0.5 * (math.log(2 * math.pi) + v.log() + square / v)
    return float((weights @ terms - beta * family.kl(factor)) / weights.sum())


def factor_of(H: Tensor) -> Tensor | None:
    """The lower factor of H with the smallest ridge that gives one."""
    for ridge in RIDGES:
        raised = H.clone()
        raised.diagonal().mul_(1 + ridge)
        root, info = torch.linalg.cholesky_ex(raised)
        if int(info) == 0:
            return root
    return None


def _inverse_root(H: Tensor) -> Tensor | None:
    """A lower L with L L^T = H^-1."""
    root = factor_of(H)
    return None if root is None else factor_of(torch.cholesky_inverse(root))


def curvature(objective: Objective, q: Moments, data: Data, noise: Tensor) -> Tensor:
    """c (b,) with d term_i / d mean_i = c_i (y_i - mean_i) at the moments q of these rows, times the rows' weights."""
    residual = data.y - q.mean
    residual = torch.where(residual.abs() < SMALLEST_RESIDUAL, SMALLEST_RESIDUAL, residual)
    mean = q.mean.detach().clone()
    with torch.enable_grad():
        mean.requires_grad_()
        terms = objective(q._replace(mean=mean), mean.detach() + residual, noise)
        (slope,) = torch.autograd.grad(terms.sum(), mean)
    found = slope / residual
    return found if data.weights is None else found * data.weights
