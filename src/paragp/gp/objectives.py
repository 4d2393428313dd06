"""The objectives, the paper's and those it names: per-datum terms to be maximised, and the one estimate made of them.

All methods follow the same loop and differ only in these functions (Algorithm gp). An objective maps the
moments of a batch, its targets and the observation noise sigma_obs^2 to one number per datum; `estimate` is
the only place where the batch, the number of data and beta_reg meet.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from paragp.gp.moments import Moments

Objective = Callable[..., Tensor]  # (moments, y, noise, **settings) -> terms


def log_normal(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """log N(y | mean, var), elementwise."""
    return -0.5 * (math.log(2 * math.pi) + var.log() + (y - mean) ** 2 / var)


def svgp(q: Moments, y: Tensor, noise: Tensor) -> Tensor:
    """Per-datum terms of L_svgp (Eqn svgp2); with S' = 0 they are MAP's (Eqn jensenenergy).

    log N(y_i | mean_i, sigma_obs^2) - sigma_f(x_i)^2 / (2 sigma_obs^2)

    >>> q = Moments(*torch.tensor([[0.0], [0.5], [0.25]]))
    >>> svgp(q, y=torch.tensor([1.0]), noise=torch.tensor(1.0))
    tensor([-1.7939])
    """
    return log_normal(y, q.mean, noise) - q.fvar / (2 * noise)


def vfitc(q: Moments, y: Tensor, noise: Tensor) -> Tensor:
    """Per-datum terms of L_vfitc (Eqn vfitcelbo), the ELBO of the FITC model (Eqn fitc).

    log N(y_i | mean_i, ktilde_i + sigma_obs^2) - svar_i / (2 (ktilde_i + sigma_obs^2))

    >>> q = Moments(*torch.tensor([[0.0], [0.5], [0.25]]))
    >>> vfitc(q, y=torch.tensor([1.0]), noise=torch.tensor(1.0))
    tensor([-1.5383])
    """
    var = q.ktilde + noise
    return log_normal(y, q.mean, var) - q.svar / (2 * var)


def ppgpr(q: Moments, y: Tensor, noise: Tensor) -> Tensor:
    """Per-datum terms of L_ppgpr (Eqn regpred2): the log density of the predictive distribution itself.

    log N(y_i | mean_i, sigma_f(x_i)^2 + sigma_obs^2)

    >>> q = Moments(*torch.tensor([[0.0], [0.5], [0.25]]))
    >>> ppgpr(q, y=torch.tensor([1.0]), noise=torch.tensor(1.0))
    tensor([-1.4845])
    """
    return log_normal(y, q.mean, q.fvar + noise)


def gamma_robust(q: Moments, y: Tensor, noise: Tensor, *, gamma: float = 1.03, published_sign: bool = False) -> Tensor:
    """Per-datum terms of gamma-Robust (Eqn gammarobust): the gamma divergence in place of the log score.

    gamma / (gamma - 1) * (E_q(f)[p(y|f)^(gamma-1)] / I^((gamma-1)/gamma) - 1),  I = ∫ p(y|f)^gamma dy

    With p(y|f) = N(y | f, s2) and q(f) = N(mean, fvar) the expectation is closed: p^(gamma-1) is a normal of
    variance s2 / (gamma - 1) up to a factor, and I does not depend on f. The constant makes gamma -> 1 the
    ELBO's terms. The code published by Knoblauch (and GPyTorch's class) multiplies by the power of I where
    the divergence divides; `published_sign=True` gives that variant. The two agree in the limit
    gamma -> 1, where both have the ELBO's gradient.

    >>> q = Moments(*torch.tensor([[0.0], [0.5], [0.25]], dtype=torch.float64))
    >>> y, noise = torch.ones(1, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    >>> bool(torch.isclose(gamma_robust(q, y, noise, gamma=1 + 1e-7), svgp(q, y, noise), rtol=1e-6))
    True
    """
    _check_gamma(gamma)
    power = gamma - 1
    log_2pi_noise = math.log(2 * math.pi) + noise.log()
    var = noise + power * q.fvar
    log_expectation = -0.5 * (
        power * log_2pi_noise + (var / noise).log() + power * (y - q.mean) ** 2 / var
    )  # log E_q(f)[p(y|f)^(gamma-1)]
    log_integral = -0.5 * (power * log_2pi_noise + math.log(gamma))  # log I
    sign = 1 if published_sign else -1
    return gamma / power * torch.expm1(log_expectation + sign * power / gamma * log_integral)


def ppgpr_gamma(q: Moments, y: Tensor, noise: Tensor, *, gamma: float = 1.03) -> Tensor:
    """PPGPR with the gamma divergence in place of the log score, on the predictive density p(y_i) itself.

    gamma / (gamma - 1) * (p(y_i)^(gamma-1) / I_i^((gamma-1)/gamma) - 1),  I_i = ∫ p(y)^gamma dy

    A row that the model finds hardly possible has a term near its least value and no gradient: outliers are given up.
    gamma -> 1 is PPGPR.

    >>> q = Moments(*torch.tensor([[0.0], [0.5], [0.25]], dtype=torch.float64))
    >>> y, noise = torch.ones(1, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    >>> bool(torch.isclose(ppgpr_gamma(q, y, noise, gamma=1 + 1e-7), ppgpr(q, y, noise), rtol=1e-6))
    True
    """
    _check_gamma(gamma)
    power, var = gamma - 1, q.fvar + noise
    log_integral = -0.5 * (power * (math.log(2 * math.pi) + var.log()) + math.log(gamma))  # log I_i
    return gamma / power * torch.expm1(power * (log_normal(y, q.mean, var) - log_integral / gamma))


def bb_alpha(q: Moments, y: Tensor, noise: Tensor, *, alpha: float = 0.5) -> Tensor:
    """Per-datum terms of the BB-alpha energy (Eqn alpha1 at alpha = 1), its expectation over q(f_i).

    log(E_q(f)[p(y_i|f)^alpha]) / alpha
        = -log(2 pi s2) / 2 - log(1 + alpha fvar_i / s2) / (2 alpha) - (y_i - mean_i)^2 / (2 (s2 + alpha fvar_i))

    alpha -> 0 is SVGP, alpha = 1 is PPGPR. The paper's limit of many rows: the regulariser is the KL.

    >>> q = Moments(*torch.tensor([[0.0], [0.5], [0.25]]))
    >>> bb_alpha(q, y=torch.tensor([1.0]), noise=torch.tensor(1.0), alpha=1.0)
    tensor([-1.4845])
    """
    return _bb_alpha(q.mean, q.fvar, y, noise, alpha)


def bb_alpha_u(q: Moments, y: Tensor, noise: Tensor, *, alpha: float = 0.5) -> Tensor:
    """As `bb_alpha` with the expectation over q(u) alone, of p(y_i|u) with variance ktilde_i + sigma_obs^2.

    alpha -> 0 is VFITC, alpha = 1 is PPGPR.
    """
    return _bb_alpha(q.mean, q.svar, y, q.ktilde + noise, alpha)


def _bb_alpha(mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, alpha: float) -> Tensor:
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, got {alpha}.")
    spread = torch.log1p(alpha * var / noise) / (2 * alpha)
    return -0.5 * (math.log(2 * math.pi) + noise.log()) - spread - (y - mean) ** 2 / (2 * (noise + alpha * var))


def _check_gamma(gamma: float) -> None:
    if gamma <= 1:
        raise ValueError(f"gamma must be above 1 (the paper uses 1.01 to 1.07), got {gamma}.")


def estimate(terms: Tensor, kl: Tensor, *, num_data: float, beta: float = 1.0, weights: Tensor | None = None) -> Tensor:
    """Unbiased minibatch estimate of the objective per datum: mean(terms) - beta KL / N (Eqn regpred2).

    The paper prints the data term once as a mean (Eqn regpred) and once as a sum (Eqn regpred2); this
    follows the sum, divided by N. `weights` have mean one over the training set and `num_data` is the total
    weight there, so that a weight of w counts as w copies of the row.

    >>> estimate(torch.tensor([-1.0, -3.0]), torch.tensor(10.0), num_data=100, beta=0.5)
    tensor(-2.0500)
    """
    weighted = terms if weights is None else weights * terms
    return weighted.mean() - beta * kl / num_data
