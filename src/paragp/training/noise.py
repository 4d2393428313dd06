"""The noise of two stages: log-linear in the kernel's features, and the shape of what it leaves.

`Head` fits both to residuals by maximum likelihood: `fit` to those of a mean that has not seen their rows, `fit_shape`
to those of validation rows.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.optimize import minimize
from torch import Tensor

from paragp.data.rows import Data
from paragp.gp.covariances import LARGEST_LOG, LARGEST_POWER, LogPower
from paragp.gp.kernels import covariance, prior_variance
from paragp.gp.linalg import NotPositiveDefiniteError, whiten
from paragp.gp.model import PARTS, Noise, ParametricGP
from paragp.gp.products import lower_of_product
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.ridge import CHUNK
from paragp.training.solves import factor_of

SAME = 1e-5  # of a row's size: one that lies as near to an inducing point is that point
SMALLEST_TAILS, SOME_TAILS, LARGEST_TAILS = 1e-3, 0.2, 0.45  # 1 / dof: at most, a deviation is three times the scale
UNSEEN = 6.0  # deviations, that one row more is off to either side: a few hundred rows without it do not rule it out
LEAST_DEVIATION = 0.25  # of a part of the shape, as one more row has it: parts do not shrink to spikes
SHAPE_UNKNOWNS = 3 * PARTS - 1  # of a mixture with mean 0 and variance 1, with its level and tails
SMALLEST_UNKNOWN = 1e-30  # with a logarithm
ABOVE_FLOOR = 1.001  # times the noise's floor: softplus, inverted, must not end at it
STEPS = 100  # of L-BFGS
CURVED_ROWS = 10_000  # at most, that the curvature of the noise's fit is taken from


class Inputs(NamedTuple):
    """What the noise of some rows depends on."""

    A: Tensor  # (M, n), the whitened features
    k: Tensor  # (n,), the prior's variance
    log_u: Tensor  # (n,), of the share of it that the inducing points leave unknown


class Unknowns(NamedTuple):
    """What a fit of the noise finds, as L-BFGS sees it."""

    a: Array  # (M,)
    b: float
    log_power: float
    tails: float
    parts: Array  # (3 PARTS,) of a mixture, or none: logarithms of weights, means, logarithms of deviations


class Head:
    """The noise of `LogPower`, by maximum likelihood of residuals given a normal prior on its weights a."""

    def __init__(
        self, model: ParametricGP, kernel: Kernel, rows: Data, residuals: Tensor, held_out: Tensor | None = None
    ) -> None:
        """`held_out` (n, d) are rows that `predict` is for."""
        self.model, self.kernel, family = model, kernel, model.family
        assert isinstance(family.S, LogPower)
        self.S = family.S
        self.W = family.whitener(kernel, family.variance_points)
        self.seen = self.inputs(rows.x, own=True)
        self.held_out = None if held_out is None else self.inputs(held_out)
        self.residuals, self.floor = residuals.double(), model.likelihood.floor
        self.weights = torch.ones_like(self.residuals) if rows.weights is None else rows.weights.double()
        self.total = float(self.weights.sum())
        level = float(self.residuals.square() @ self.weights) / self.total
        self.M, self.penalty = len(family.variance_points), 1.0
        self.at = Unknowns(np.zeros(self.M), math.log(max(level, self.floor)), 0.0, 0.0, np.empty(0))
        step = math.ceil(rows.size / CURVED_ROWS)
        A = self.seen.A[:, ::step].double()  # in single precision, rounding could exceed the smallest penalty
        self.curvature = 0.5 * step * lower_of_product(A, A.T, scale=self.weights[::step]).cpu()

    def inputs(self, x: Tensor, own: bool = False) -> Inputs:
        """What the noise depends on at x (n, d). Of `own` rows, which the model has seen, those that are inducing
        points themselves count as what the other points leave unknown of them: new rows are never points."""
        Z, kernel, m = self.model.family.variance_points, self.kernel, int(self.S.leading)
        features, shares = [], []
        k = prior_variance(kernel, x)
        for part, k_diag in zip(x.split(CHUNK), k.split(CHUNK), strict=True):
            K = covariance(kernel, Z, part)
            A = whiten(self.W, K)
            u = self.S.share(self.W, K, k_diag)
            if own:
                nearest = torch.cdist(part, Z[:m]).argmin(1)
                same = ((part - Z[nearest]).abs() <= SAME * (1 + part.abs())).all(1)
                left_out = 1 / (self.W[:m, :m].square().sum(0)[nearest] * k_diag)
                u = torch.where(same, left_out.clamp_max(1), u)
            features.append(A)
            shares.append(u)
        return Inputs(torch.cat(features, 1), k.double(), torch.cat(shares).double().clamp_min(SMALLEST_UNKNOWN).log())

    def fit(self, penalty: float, tails: bool = False, mixture: bool = False) -> float:
        """Set the model's noise, and its tails or none; the log likelihood per row of the residuals.

        A `mixture` sets out from thirds of the residuals, as the fit of before scales them.

        L-BFGS sees z = R^T a, with R R^T the curvature of the loss in a where all of a row's variance is its noise: in
        z all directions are about equally steep, and tens of steps do where in a hundreds would.
        """
        R = factor_of((self.curvature + penalty * torch.eye(len(self.curvature))) / self.total)
        if R is None:
            raise NotPositiveDefiniteError("The kernel cannot tell these rows apart. Take fewer inducing points.")

        def solved(root: Tensor, values: Array, *, upper: bool) -> Array:
            found = torch.linalg.solve_triangular(root, torch.from_numpy(values)[:, None], upper=upper)
            return found[:, 0].numpy()

        def loss(at: Array) -> tuple[float, Array]:
            value, gradient = self._loss(np.concatenate([solved(R.T, at[:M], upper=True), at[M:]]), penalty)
            return value, np.concatenate([solved(R, gradient[:M], upper=False), gradient[M:]])

        M = self.M
        scalars = [self.at.b, self.at.log_power, (self.at.tails or SOME_TAILS) if tails else 0.0]
        parts = self._thirds(self.residuals / self._deviations(self.seen)) if mixture else np.empty(0)
        start = np.concatenate([R.T.numpy() @ self.at.a, scalars, parts])
        bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(start)
        bounds[M + 1 : M + 3] = [
            (0.0, math.log(LARGEST_POWER)),
            (SMALLEST_TAILS, LARGEST_TAILS) if tails else (0.0, 0.0),
        ]
        found = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS, "maxcor": 20}
        )
        b, log_power, tails_found = found.x[M : M + 3].tolist()
        self.at = Unknowns(solved(R.T, found.x[:M], upper=True), b, log_power, tails_found, found.x[M + 3 :])
        self.write()
        return -float(found.fun)

    def write(self) -> None:
        """Make the fit the model's."""
        self.model.family.variance_kernel(self.model.kernel).load_state_dict(self.kernel.state_dict())
        self.S.a.copy_(torch.from_numpy(self.at.a))
        self.S.b.fill_(self.at.b)
        self.S.power.fill_(math.exp(self.at.log_power))
        likelihood = self.model.likelihood
        likelihood.tails.fill_(self.at.tails)
        likelihood.parts.copy_(parts_of(torch.from_numpy(self.at.parts)))
        likelihood.start(float(_floor(torch.tensor(self.at.tails), self.floor)))

    @staticmethod
    def _thirds(z: Tensor) -> Array:
        """Where a mixture starts: each part at one of as many equal shares of residuals z in their deviations."""
        middles = np.quantile(z.numpy(force=True), (np.arange(PARTS) + 0.5) / PARTS)
        return np.concatenate([np.zeros(PARTS), middles, np.log(np.gradient(middles).clip(min=0.05))])

    def _deviations(self, inputs: Inputs) -> Tensor:
        """What the fit says of rows, noise and function together; (n,)."""
        return torch.stack(self._variances(inputs)).sum(0).sqrt()

    def _variances(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        a, scalars = torch.from_numpy(self.at.a), torch.tensor(self.at[1:4], dtype=torch.float64)
        return _variances(inputs, (a.to(inputs.A) @ inputs.A).double(), scalars, self.floor)

    def objective(self) -> float:
        """The log likelihood per row of the residuals."""
        at = self.at
        var = self._deviations(self.seen).square()
        terms = log_density(self.residuals, var, torch.tensor(at.tails), parts_of(torch.from_numpy(at.parts)))
        return float(self.weights @ terms) / self.total

    @torch.enable_grad()
    def _loss(self, at: Array, penalty: float) -> tuple[float, Array]:
        """Minus the log posterior per row, and its gradient."""
        a, others = torch.from_numpy(at[: self.M]), torch.from_numpy(at[self.M :]).requires_grad_()
        A = self.seen.A
        linear = (a.to(A) @ A).double().requires_grad_()
        fit = self._log_posterior(self.seen, linear, others, self.residuals, self.weights) / self.total
        g_linear, g_others = torch.autograd.grad(-fit, (linear, others))
        g_a = (A @ g_linear.to(A)).double().cpu() + (penalty / self.total) * a
        loss = -float(fit.detach()) + penalty / (2 * self.total) * float(a @ a)
        return loss, np.concatenate([g_a.numpy(force=True), g_others.numpy(force=True)])

    def _log_posterior(
        self, inputs: Inputs, linear: Tensor, others: Tensor, residuals: Tensor, weights: Tensor
    ) -> Tensor:
        """Of residuals, summed, given what is linear in the features and the others: b, log_power, tails, parts."""
        parts, tails = parts_of(others[3:]), others[2]
        noise, function = _variances(inputs, linear, others[:3], self.floor)
        fit = weights @ log_density(residuals, noise + function, tails, parts)
        if float(tails.detach()):
            far = torch.tensor([-UNSEEN, UNSEEN], dtype=torch.float64).to(weights)
            fit = fit + log_density(far, torch.ones_like(far), tails, parts).mean()
        return fit + (_prior(parts) if len(others) > 3 else 0.0)

    def fit_shape(self, residuals: Tensor, weights: Tensor) -> float:
        """Set level, tails and mixture by the rows held out, whose residuals these are: the mean has not seen them.

        What noise and function depend on stays. Returns the log likelihood per row of the others' residuals.
        """
        at, held_out, total = self.at, self.held_out, float(weights.sum())
        assert held_out is not None
        linear = (torch.from_numpy(at.a).to(held_out.A) @ held_out.A).double()
        parts = at.parts if len(at.parts) else self._thirds(residuals / self._deviations(held_out))

        @torch.enable_grad()
        def loss(others: Array) -> tuple[float, Array]:
            x = torch.from_numpy(others).requires_grad_()
            fit = self._log_posterior(held_out, linear, x, residuals, weights) / total
            (gradient,) = torch.autograd.grad(-fit, x)
            return -float(fit.detach()), gradient.numpy()

        start = np.concatenate([[at.b, at.log_power, at.tails or SOME_TAILS], parts])
        bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(start)
        bounds[1:3] = [(at.log_power, at.log_power), (SMALLEST_TAILS, LARGEST_TAILS)]
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS}).x
        self.at = Unknowns(at.a, float(found[0]), at.log_power, float(found[2]), found[3:])
        self.write()
        return self.objective()

    def predict(self, mean: Tensor) -> PredictiveDistribution:
        """What the model says of the rows held out, with that mean; without a factorisation of the mean's points."""
        assert self.held_out is not None
        noise, function = self._variances(self.held_out)
        return PredictiveDistribution(
            mean.numpy(force=True), function.numpy(force=True), noise.numpy(force=True), self.model.shape
        )


def _variances(inputs: Inputs, linear: Tensor, scalars: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The noise and the function's variance, (n,) each, as `LogPower` and the likelihood have them."""
    b, log_power, tails = scalars
    noise = (linear + b).clamp(max=LARGEST_LOG).exp() + _floor(tails, floor)
    return noise, inputs.k * (log_power.exp() * inputs.log_u).exp()


def _floor(tails: Tensor, floor: float) -> Tensor:
    """The least variance: a scale at the noise's floor, whatever the tails."""
    return ABOVE_FLOOR * floor / (1 - 2 * tails)


def log_density(residuals: Tensor, var: Tensor, tails: Tensor, parts: Tensor) -> Tensor:
    """Of residuals, normal or with the parts of a shape with Student's tails, and with that variance; (n,)."""
    if not float(tails.detach()):
        return -0.5 * (math.log(2 * math.pi) + var.log() + residuals.square() / var)
    dof = 1 / tails
    weights, means, deviations = parts.T
    scales = deviations * (1 - 2 * tails).sqrt()
    constant = torch.lgamma((dof + 1) / 2) - torch.lgamma(dof / 2) - 0.5 * (math.pi * dof).log()
    z = residuals / var.sqrt()
    each = [
        (weight / scale).log() - (dof + 1) / 2 * torch.log1p(((z - mean) / scale).square() * tails)
        for weight, mean, scale in zip(weights, means, scales, strict=True)
        if float(weight.detach())
    ]
    return constant - 0.5 * var.log() + torch.stack(each).logsumexp(0)


def parts_of(unknowns: Tensor) -> Tensor:
    """Weights, means and deviations, (PARTS, 3), of mean 0 and variance 1; one part alone of no unknowns."""
    if not len(unknowns):
        return Noise().parts.to(unknowns)
    log_weights, means, log_deviations = unknowns.split(PARTS)
    weights, deviations = log_weights.softmax(0), log_deviations.exp()
    means = means - weights @ means
    size = (weights @ (deviations.square() + means.square())).sqrt()
    return torch.stack([weights, means / size, deviations / size], 1)


def _prior(parts: Tensor) -> Tensor:
    """A log density of a mixture's parts, which says as much as one row of each of them would."""
    weights, _, deviations = parts.T
    return (weights.log() - deviations.log() - 0.5 * LEAST_DEVIATION**2 / deviations.square()).sum()
