"""Training without gradient steps: the mean is solved for accuracy, then the noise is fitted to what it leaves.

An objective that trains mean and variance together buys likelihood with accuracy: where the variance can explain an
error, the mean stops trying. Here each has its own task.

    mean    ridge regression on many inducing points with FITC's weights, 1 / (ktilde_i + sigma_obs^2) (Eqn fitc)
    noise   log-linear in the kernel's features (`LogPower`), fitted to the leave-one-out residuals of that mean: what
            is left of rows that it has seen is too small
    shape   Student's, with tails as light as the residuals, and one row more that is far off, want them; or, where
            validation rows are clearly likelier so, a mixture of a few (`Shape`), which may lean to one side; then
            level and shape as these rows have them
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from paragp.data.rows import Data, Rows
from paragp.gp.covariances import LARGEST_LOG, LARGEST_POWER, LogPower
from paragp.gp.kernels import covariance, evened, prior_variance
from paragp.gp.linalg import NotPositiveDefiniteError, keep_freed_memory, whiten
from paragp.gp.model import PARTS, Noise, ParametricGP
from paragp.gp.products import lower_of_product, product
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.best import Best, Trial, in_errors, scored
from paragp.training.distributed import ALONE, Group
from paragp.training.loop import Epoch
from paragp.training.solves import factor_of

CHUNK = 4000  # rows taken together
KEPT_FEATURES = 1e8  # of validation rows, that are kept while the prior's weight is chosen
NOISE_ROWS = 50_000  # at most, whose residuals the noise is fitted to
PENALTIES = (30.0, 3.0, 0.3, 0.03)  # on the noise's weights, from nearly constant on; 1: a standard normal prior
SAME = 1e-5  # of a row's size: one that lies as near to an inducing point is that point
SMALLEST_TAILS, SOME_TAILS, LARGEST_TAILS = 1e-3, 0.2, 0.45  # 1 / dof: at most, a deviation is three times the scale
UNSEEN = 6.0  # deviations, that one row more is off to either side: a few hundred rows without it do not rule it out
LEAST_DEVIATION = 0.25  # of a part of the shape, as one more row has it: parts do not shrink to spikes
CLEARLY_LIKELIER = 2.0  # standard errors
SHAPE_UNKNOWNS = 3 * PARTS - 1  # of a mixture with mean 0 and variance 1, with its level and tails
MOST_SHIFT = 6.0  # of the logarithm of the noise, by validation rows
SMALLEST_UNKNOWN = 1e-30  # with a logarithm
CLEARLY = 0.01  # of the squared error: less is not worth leverages near one, which leave little of the residuals
STEPS = 100  # of L-BFGS
CURVED_ROWS = 10_000  # at most, that the curvature of the noise's fit is taken from
PROBES = 256  # random vectors that estimate leverages where exact ones would cost more than the solve
EXACT_LEVERAGES = 2e11  # rows times points^2, up to which leverages are exact


def fits() -> int:
    """The most entries that `solve_in_stages` adds to the history."""
    return 2 * len(PENALTIES) + 3  # with two kernels, then a mixture, a level and a shape


@torch.no_grad()
def held_out_error(model: ParametricGP, data: Data, held_out: Data, betas: Sequence[float]) -> float:
    """The mean squared error at rows held out of the mean that is solved for on the others."""
    try:
        _, mean = Ridge(model, data, float(model.noise), ALONE).choose(betas, held_out)
    except NotPositiveDefiniteError:
        return math.inf
    assert mean is not None
    return _squared_error(mean, held_out) / held_out.total


@torch.no_grad()
def solve_in_stages(
    model: ParametricGP,
    data: Rows,
    best: Best,
    betas: Sequence[float],
    group: Group,
    *,
    fresh: bool = True,
    pause: Callable[[], object] = lambda: None,
) -> bool:
    """Set the model's mean, noise and tails; whether the validation NLL became better. `best` keeps the best state.

    `betas` are weights of the mean's prior from the largest on, of which the validation rows choose.
    Without validation rows the first counts, and the noise is normal under the prior. FITC's noise is the likelihood's
    in a `fresh` model; in one that was trained it is what the rows have on average. `pause()` is called between solves.
    """
    keep_freed_memory()
    held_out = best.validation
    best.begin(Trial(betas[0]))
    rows = some(data.sample, NOISE_ROWS)
    noise = float(model.noise if fresh else model.predict(some(rows, CHUNK).x).noise_var.mean())
    ridge = Ridge(model, data, noise, group, keep=True)
    pause()
    mean, there = ridge.choose(betas, held_out)
    group.agree([model.family.m, mean.m])
    pause()
    left = ridge.left_out(mean, rows)
    del ridge
    pause()
    best.current = Trial(mean.beta)
    if held_out is None or there is None:
        best.after(Epoch(0, Head(model, model.kernel, rows, left).fit(1.0), 0.0, 0.0))
        return best.end()
    check = Validation(best, held_out, there, group, pause)
    # Noise may depend on what says nothing of the mean: beside the mean's kernel, one that sees all inputs alike.
    kernels = [kernel for kernel in (model.kernel, evened(model.kernel, rows.x.shape[1])) if kernel is not None]
    leading, least = None, math.inf
    for kernel in kernels:
        head = Head(model, kernel, rows, left, held_out.x)
        nll = fit_noise(head, check)
        if leading is None or nll < least:
            leading, least = head, nll
    assert leading is not None
    check.attempt(leading, lambda: leading.fit(leading.penalty, tails=True, mixture=True))
    check.attempt(leading, lambda: check.level(leading), fitted=1)
    check.attempt(leading, lambda: check.shape(leading), fitted=SHAPE_UNKNOWNS)
    return best.end()


def fit_noise(head: "Head", check: "Validation", *, tails: bool = True) -> float:
    """Fit with ever smaller penalties while that helps: normal noise, then from the best of it on with tails; its NLL.

    Only the latter are kept. Tails that are not needed are light, and the normal, which may look as good on the
    validation rows, has nothing for the row that is unlike them all.
    """
    kept, least = 0, math.inf
    for with_tails in (False, True) if tails else (False,):
        least, at = math.inf, head.at
        for place in range(kept, len(PENALTIES)):
            nll = check.score(head, head.fit(PENALTIES[place], with_tails), keep=with_tails)
            if not nll < least:
                break
            least, at, kept = nll, head.at, place
        head.at, head.penalty = at, PENALTIES[kept]
    return least


def some(rows: Data, most: int) -> Data:
    """At most so many of the rows, spread over all of them: tables are often sorted."""
    return rows if rows.size <= most else rows.take(slice(None, None, math.ceil(rows.size / most)))


class Mean(NamedTuple):
    """A solution for the mean."""

    beta: float
    m: Tensor  # (M,)
    root: Tensor  # (M, M), of H + beta I, in float64


class Ridge:
    """The mean's coefficients as a ridge regression: sums over all rows, then a solve for each weight of the prior."""

    def __init__(self, model: ParametricGP, data: Rows, noise: float, group: Group, *, keep: bool = False) -> None:
        """With `keep`, the features of a table whose leverages are to be estimated stay: they took longest."""
        self.model, self.noise = model, noise
        self.features = model.family.mean_basis(model.kernel).features
        m = model.family.m.detach()
        self.H, self.target = m.new_zeros(len(m), len(m), dtype=torch.float64), m.new_zeros(len(m), dtype=torch.float64)
        costly = data.size * len(m) ** 2 > EXACT_LEVERAGES
        self.rows = data if keep and costly and isinstance(data, Data) and data.size <= NOISE_ROWS else None
        self.kept: list[tuple[Tensor, Tensor]] = []
        for part in data.chunks(CHUNK):
            A, c = self.weighed(part)
            self.H += lower_of_product(A, A.T, scale=c)
            self.target += A @ (c * part.y)
            if self.rows is not None:
                self.kept.append((A, c))
        group.add([self.H, self.target])
        self.H = self.H.tril_().add_(self.H.tril(-1).T)

    def weighed(self, part: Data) -> tuple[Tensor, Tensor]:
        """The features (M, n) of some rows and what they count, FITC's precision times their weights (n,)."""
        A = self.features(part.x)
        ktilde = (prior_variance(self.model.kernel, part.x) - A.square().sum(0)).clamp_min(0)
        c = 1 / (ktilde + self.noise)
        return A, c if part.weights is None else c * part.weights

    def solve(self, beta: float) -> Mean:
        """The optimum for that weight of the prior."""
        self.H.diagonal().add_(beta)
        root = factor_of(self.H)
        self.H.diagonal().sub_(beta)
        if root is None:
            raise NotPositiveDefiniteError("The kernel cannot tell these rows apart. Take fewer inducing points.")
        m = torch.cholesky_solve(self.target[:, None], root)[:, 0]
        return Mean(beta, m.to(self.model.family.m), root)

    def choose(self, betas: Sequence[float], held_out: Data | None) -> tuple[Mean, Tensor | None]:
        """The mean of the first weight of the prior, or of one after it while each brings the validation rows clearly
        nearer; it becomes the model's. And its values there."""
        chosen, there = self.solve(betas[0]), None
        if held_out is not None:
            x, few = held_out.x, held_out.size * len(chosen.m) <= KEPT_FEATURES
            features = [self.features(part) for part in x.split(CHUNK)] if few else None
            there = self.mean(chosen, x, features)
            for beta in betas[1:]:
                tried = self.solve(beta)
                values = self.mean(tried, x, features)
                if not _squared_error(values, held_out) < (1 - CLEARLY) * _squared_error(there, held_out):
                    break
                chosen, there = tried, values
        self.model.family.m.copy_(chosen.m)
        return chosen, there

    def mean(self, mean: Mean, x: Tensor, features: Sequence[Tensor] | None = None) -> Tensor:
        """Its values at x (n, d), whose features may be there already, in chunks; shape (n,)."""
        return torch.cat([mean.m @ A for A in features or map(self.features, x.split(CHUNK))])

    def left_out(self, mean: Mean, rows: Data) -> Tensor:
        """The rows' residuals, each from the mean without its row: r_i / (1 - h_i), h_i its leverage; (n,)."""
        least = math.sqrt(torch.finfo(mean.m.dtype).eps)  # of 1 - h: below, what is left of a row is rounding
        if rows is self.rows:
            return self._probed(mean, rows, least)
        root, found = mean.root.to(mean.m), []
        for part in rows.chunks(CHUNK):
            A, c = self.weighed(part)
            leverage = c * torch.linalg.solve_triangular(root, A, upper=False).square().sum(0)
            found.append((part.y - mean.m @ A) / (1 - leverage).clamp_min(least))
        return torch.cat(found)

    def _probed(self, mean: Mean, rows: Data, least: float) -> Tensor:
        """The same with estimated leverages, from random probes G (n, k) and G' (M, k).

        With F = diag(c)^1/2 A^T, D the diagonal that was added to H (beta, and more where H had no factor) and
        P = I - F (H + D)^-1 F^T, 1 - h_i is P's diagonal, and P = P^2 + F (H + D)^-1 D (H + D)^-1 F^T. So it is the
        mean over probes of (P G)_i^2 + (F (H + D)^-1 D^1/2 G')_i^2: a sum of squares, with the same relative error
        however close to one a leverage is.
        """
        generator, (M, k) = torch.Generator().manual_seed(0), (len(mean.m), PROBES)
        G = torch.randn(rows.size, k, generator=generator).to(mean.m)
        D = (mean.root.square().sum(1) - self.H.diagonal()).clamp_min(mean.beta)
        G_points = torch.randn(M, k, generator=generator).to(D) * D.sqrt()[:, None]
        total = torch.zeros(M, k).to(mean.m)
        parts = list(zip(self.kept, G.split(CHUNK), rows.y.split(CHUNK), strict=True))
        for (A, c), g, _ in parts:
            total += product(A, c.sqrt()[:, None] * g)
        solved = torch.cholesky_solve(torch.cat([total.double(), G_points], 1), mean.root).to(mean.m)
        found = []
        for (A, c), g, y in parts:
            of_rows, of_points = (c.sqrt()[:, None] * product(A.T, solved)).split(k, 1)
            left = ((g - of_rows).square().sum(1) + of_points.square().sum(1)) / k
            found.append((y - mean.m @ A) / left.clamp_min(least))
        return math.sqrt((1 - 2 / k) * (1 - 4 / k)) * torch.cat(found)  # the mean square of 1 / left is too large


def _squared_error(mean: Tensor, rows: Data) -> float:
    """Summed over the rows, each by its weight."""
    square = (mean - rows.y).square()
    return float(square.sum() if rows.weights is None else square @ rows.weights)


class Inputs(NamedTuple):
    """What the noise of some rows depends on."""

    A: Tensor  # (M, n), the whitened features
    k: Tensor  # (n,), the prior's variance
    log_u: Tensor  # (n,), of the share of it that the inducing points leave unknown


class Unknowns(NamedTuple):
    """What a fit of the noise finds, as L-BFGS sees it."""

    a: Array  # (M,)
    b: float
    power: float  # log p
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
        self.M, self.penalty = len(family.variance_points), PENALTIES[0]
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
        scalars = [self.at.b, self.at.power, (self.at.tails or SOME_TAILS) if tails else 0.0]
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
        b, power, tails_found = found.x[M : M + 3].tolist()
        self.at = Unknowns(solved(R.T, found.x[:M], upper=True), b, power, tails_found, found.x[M + 3 :])
        self.write()
        return -float(found.fun)

    def write(self) -> None:
        """Make the fit the model's."""
        self.model.family.variance_kernel(self.model.kernel).load_state_dict(self.kernel.state_dict())
        self.S.a.copy_(torch.from_numpy(self.at.a))
        self.S.b.fill_(self.at.b)
        self.S.power.fill_(math.exp(self.at.power))
        likelihood = self.model.likelihood
        likelihood.tails.fill_(self.at.tails)
        likelihood.parts.copy_(_parts(torch.from_numpy(self.at.parts)))
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
        terms = _log_density(self.residuals, var, torch.tensor(at.tails), _parts(torch.from_numpy(at.parts)))
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
        """Of residuals, summed, given what is linear in the features and the others: b, power, tails, parts."""
        parts, tails = _parts(others[3:]), others[2]
        noise, function = _variances(inputs, linear, others[:3], self.floor)
        fit = weights @ _log_density(residuals, noise + function, tails, parts)
        if float(tails.detach()):
            far = torch.tensor([-UNSEEN, UNSEEN], dtype=torch.float64).to(weights)
            fit = fit + _log_density(far, torch.ones_like(far), tails, parts).mean()
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

        start = np.concatenate([[at.b, at.power, at.tails or SOME_TAILS], parts])
        bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(start)
        bounds[1:3] = [(at.power, at.power), (SMALLEST_TAILS, LARGEST_TAILS)]
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS}).x
        self.at = Unknowns(at.a, float(found[0]), at.power, float(found[2]), found[3:])
        self.write()
        return self.objective()

    def predict(self, mean: Tensor) -> PredictiveDistribution:
        """What the model says of the rows held out, with that mean; without a factorisation of the mean's points."""
        assert self.held_out is not None
        noise, function = self._variances(self.held_out)
        return PredictiveDistribution(
            mean.numpy(force=True), function.numpy(force=True), noise.numpy(force=True), self.model.shape
        )


class Validation:
    """Scores fits on the validation rows, for `best` to choose among them."""

    def __init__(
        self, best: Best, rows: Data, mean: Tensor, group: Group, pause: Callable[[], object] = lambda: None
    ) -> None:
        self.best, self.rows, self.mean, self.group, self.pause = best, rows, mean, group, pause

    def score(self, head: Head, objective: float, *, keep: bool) -> float:
        """The NLL of a fit, of which `best` takes note if it may be kept."""
        self.pause()
        self.group.agree(list(self.best.model.state_dict().values()))
        scores = scored(head.predict(self.mean), self.rows, self.group)
        if keep:
            self.best.after(Epoch(0, objective, 0.0, 0.0, scores))
        return scores["nll"]

    def attempt(self, head: Head, change: Callable[[], float], fitted: int = 0) -> None:
        """Take note of what the `change` of a fit comes to if the rows are clearly likelier so; else undo it.

        Of a change that was fitted to these very rows, with so many unknowns, each of these counts for what it gains by
        chance, as in Akaike's criterion.
        """
        head.write()
        at, before = head.at, self._log_densities(head)
        objective = change()
        gain = self._log_densities(head) - before - fitted / self.rows.total
        enough = self.rows.total > fitted + 1  # for a spread of what is gained
        clearly = torch.tensor(float(enough and in_errors(gain, self.rows) > CLEARLY_LIKELIER))
        self.group.agree([clearly])
        if bool(clearly):
            self.score(head, objective, keep=True)
        else:
            head.at = at

    def level(self, head: Head) -> float:
        """Set the level of the noise by the validation rows: leave-one-out residuals may all be too large, or small."""
        at, weights = head.at, None if self.rows.weights is None else self.rows.weights.numpy(force=True)

        def nll(shift: float) -> float:
            head.at = at._replace(b=at.b + shift)
            return -float(np.average(self._log_densities(head), weights=weights))

        head.at = at._replace(b=at.b + minimize_scalar(nll, bounds=(-MOST_SHIFT, MOST_SHIFT)).x)
        head.write()
        return head.objective()

    def shape(self, head: Head) -> float:
        """Set level, tails and mixture by the validation rows."""
        rows = self.rows
        residuals = (rows.y - self.mean).double()
        weights = torch.ones_like(residuals) if rows.weights is None else rows.weights.double()
        return head.fit_shape(residuals, weights)

    def _log_densities(self, head: Head) -> Array:
        return head.predict(self.mean).logpdf(self.rows.y.double().numpy(force=True))


def _variances(inputs: Inputs, linear: Tensor, scalars: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The noise and the function's variance, (n,) each, as `LogPower` and the likelihood have them."""
    b, power, tails = scalars
    noise = (linear + b).clamp(max=LARGEST_LOG).exp() + _floor(tails, floor)
    return noise, inputs.k * (power.exp() * inputs.log_u).exp()


def _floor(tails: Tensor, floor: float) -> Tensor:
    """The least variance: a scale at the noise's floor, whatever the tails."""
    return 1.001 * floor / (1 - 2 * tails)


def _log_density(residuals: Tensor, var: Tensor, tails: Tensor, parts: Tensor) -> Tensor:
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


def _parts(unknowns: Tensor) -> Tensor:
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
