"""The full-batch baselines: the exact GP and FITC. Both predict as the rest of the library does.

`fit_exact` factorises the N x N kernel matrix while that is affordable and solves with preconditioned
conjugate gradients beyond, never holding more than a block of its rows (Wang et al. 2019).
`fit_fitc` maximises FITC's marginal likelihood in O(N M^2) and returns a `ParametricGP`.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.linear_cg import linear_cg
from linear_operator.utils.warnings import NumericalWarning
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from paragp.data.rows import Data, check_finite, check_inputs, checked
from paragp.gp.covariances import Dense
from paragp.gp.families import Coupled
from paragp.gp.kernels import covariance, kernel_name, make_kernel, prior_deviation, prior_variance
from paragp.gp.linalg import NotPositiveDefiniteError, cholesky, log_density, whiten
from paragp.gp.model import CHUNK, INITIAL_NOISE, Noise, ParametricGP, predictive, with_noise
from paragp.gp.moments import Moments
from paragp.predictive import PredictiveDistribution
from paragp.shape import Shape

LEARN_BY_CHOLESKY = 6_000  # rows: above, a gradient of the N x N factorisation takes too long to be repeated
CONDITION_BY_CHOLESKY = 32_000  # rows: above, the factor itself (4 GB in float32, 8 in float64) is too large to keep
CG_TOLERANCE = 1e-6  # mean relative residual of a solve
CG_ITERATIONS = 1_000
BLOCK = 2_048  # rows of the kernel matrix that are made at one time
PRECONDITIONER_RANK = 100  # Wang et al. 2019
PROBES = 10  # random vectors that estimate a trace

Progress = Callable[[], object]


class ConvergenceWarning(RuntimeWarning):
    """An iterative solve stopped before its tolerance."""


# --- the exact GP ---


class ExactGP(nn.Module):
    """GP regression on all rows (Eqn unireg). Which solver runs is a property, never a silent switch.

    >>> X = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    >>> gp = ExactGP(make_kernel("rbf", 1), X, torch.sin(X[:, 0]), noise=1e-3)
    >>> gp.solver, gp.predict(X).mean.shape
    ('cholesky', (5,))
    """

    class Factor(NamedTuple):
        alpha: Tensor  # (N,) = (K + sigma_obs^2 I)^-1 y
        L: Tensor | None  # (N, N), only with the Cholesky solver
        precondition: Callable[[Tensor], Tensor] | None  # only with conjugate gradients

    X: Tensor  # (n, d), the distinct rows
    y: Tensor  # (n,), the mean target of each
    copies: Tensor  # (n,), how many rows it stands for (their weights' sum)
    spread: Tensor  # the squared deviations of all targets from those means, a scalar

    noise_by_row = False

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        y: Tensor,
        *,
        weights: Tensor | None = None,
        noise: float = 0.1,
        solver: str | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.likelihood = Noise(noise)
        for name, value in zip(("X", "y", "copies", "spread"), merged(X, y, weights), strict=True):
            self.register_buffer(name, value)
        if solver not in (None, "cholesky", "cg"):
            raise ValueError(f"solver must be 'cholesky', 'cg' or None (by the number of rows), got {solver!r}.")
        self.solver = solver or ("cholesky" if len(self.X) <= CONDITION_BY_CHOLESKY else "cg")
        self.to(X)

    @property
    def noise(self) -> Tensor:
        """The observation noise sigma_obs^2, a scalar."""
        return self.likelihood()

    @property
    def shape(self) -> Shape:
        """The predictive distributions' shape."""
        return self.likelihood.shape

    @property
    def kernel_scale(self) -> float:
        """The prior deviation sigma_k of the latent function."""
        return prior_deviation(self.kernel, self.X[:CHUNK])

    def log_marginal(self) -> Tensor:
        """log p(y | X) = log N(y | 0, K_NN + sigma_obs^2 I) (Eqn marg), a scalar."""
        return log_density(self._covariance(), self.y, name=self._name) + self._agreement()

    def _agreement(self) -> Tensor:
        """log p of the targets given their means over equal rows, which is all that K leaves out; a scalar."""
        merged_rows = (self.copies - 1).sum()
        return -0.5 * (
            merged_rows * (2 * math.pi * self.noise).log() + self.copies.log().sum() + self.spread / self.noise
        )

    @torch.no_grad()
    def factorise(self) -> Factor:
        """What all predictions share: the weights of the mean and, with Cholesky, the factor."""
        if self.solver == "cholesky":
            L = self._cholesky()
            return self.Factor(torch.cholesky_solve(self.y[:, None], L)[:, 0], L, None)
        precondition = self._preconditioner()
        return self.Factor(self.solve(self.y[:, None], precondition)[:, 0], None, precondition)

    @torch.no_grad()
    def predict(self, x: Tensor, *, factor: Factor | None = None, chunk: int = 512) -> PredictiveDistribution:
        """The exact posterior predictive distribution at x (n, d), in chunks of rows.

        With another `shape` it is the distribution of the same mean and variance.
        """
        check_inputs(x, self.X.shape[1], self.X.dtype)
        check_finite(x, "x")
        factor = self.factorise() if factor is None else factor
        parts = (self._moments(rows, factor) for rows in x.split(chunk))
        return predictive(parts, self.noise, len(x), shape=self.shape)

    @torch.no_grad()
    def predict_covariance(self, x: Tensor, *, factor: Factor | None = None) -> np.ndarray:
        """The covariance of y over all rows of x (n, d), whatever the shape of its distribution; (n, n)."""
        check_inputs(x, self.X.shape[1], self.X.dtype)
        factor = self.factorise() if factor is None else factor
        K_Nx = covariance(self.kernel, self.X, x)  # (N, n)
        if factor.precondition is not None:
            explained = K_Nx.T @ self.solve(K_Nx, factor.precondition)
        else:
            assert factor.L is not None
            rooted = _forward_solve(factor.L, K_Nx)
            explained = rooted.T @ rooted
        return with_noise(covariance(self.kernel, x, x) - explained, self.noise)

    def _moments(self, x: Tensor, factor: Factor) -> Moments:
        K_Nb = covariance(self.kernel, self.X, x)  # (N, b)
        if factor.precondition is not None:
            explained = (K_Nb * self.solve(K_Nb, factor.precondition)).sum(0)
        else:
            assert factor.L is not None
            explained = _forward_solve(factor.L, K_Nb).square().sum(0)
        fvar = (prior_variance(self.kernel, x) - explained).clamp_min(0)
        return Moments(K_Nb.T @ factor.alpha, fvar, torch.zeros_like(fvar))

    def _cholesky(self) -> Tensor:
        return cholesky(self._covariance(), jitter=0.0, name=self._name)

    def _covariance(self) -> Tensor:
        """K_NN + sigma_obs^2 / copies, shape (N, N)."""
        noise = self.noise / self.copies
        if torch.is_grad_enabled():
            K = covariance(self.kernel, self.X, self.X)
            return K.diagonal_scatter(K.diagonal() + noise)
        K = self.X.new_empty(len(self.X), len(self.X))  # block by block: a second matrix of its size may not fit
        for block, rows in zip(K.split(BLOCK), self.X.split(BLOCK), strict=True):
            block.copy_(covariance(self.kernel, rows, self.X))
        K.diagonal().copy_(prior_variance(self.kernel, self.X) + noise)
        return K

    @property
    def _name(self) -> str:
        return f"K_NN + noise of {kernel_name(self.kernel)}"

    # Conjugate gradients: the kernel matrix is only ever multiplied, block by block of its rows, in float64.

    @torch.no_grad()
    def solve(self, rhs: Tensor, precondition: Callable[[Tensor], Tensor]) -> Tensor:
        """(K + sigma_obs^2 I)^-1 rhs for rhs (N, k), with a `ConvergenceWarning` if a column did not converge."""
        wide = rhs.double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # reported below, in this library's terms
            solution = linear_cg(
                self._multiply,
                wide,
                tolerance=CG_TOLERANCE,
                max_iter=CG_ITERATIONS,
                max_tridiag_iter=0,
                eps=1e-30,
                preconditioner=precondition,
            )
        residual = (self._multiply(solution) - wide).norm(dim=0) / wide.norm(dim=0).clamp_min(1e-30)
        if not float(residual.max()) <= 100 * CG_TOLERANCE:
            warnings.warn(
                f"Conjugate gradients stopped with a relative residual of {float(residual.max()):.1e} (wanted "
                f"{CG_TOLERANCE:.0e}) after at most {CG_ITERATIONS} iterations; means and variances are off by as "
                "much. A larger noise converges sooner.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return solution.to(rhs.dtype)

    def add_log_marginal_gradient(self, probes: Tensor) -> None:
        """Add the gradient of log p(y | X) to the parameters' `.grad`, by conjugate gradients.

        With K^ = K + sigma_obs^2 I, alpha = K^-1 y and probes z with E[z z^T] = I (N, p),

            d log p = 1/2 alpha^T dK^ alpha - 1/2 E_z[(K^-1 z)^T dK^ z].
        """
        solved = self.solve(torch.cat([self.y[:, None], probes], 1), self._preconditioner())
        left = torch.cat([solved[:, :1], -solved[:, 1:] / probes.shape[1]], 1) / 2  # (N, 1 + p)
        right = torch.cat([solved[:, :1], probes], 1)
        for i in range(0, len(self.X), BLOCK):
            rows = slice(i, i + BLOCK)
            (left[rows] * (covariance(self.kernel, self.X[rows], self.X) @ right)).sum().backward()
        (self.noise * (left * right / self.copies[:, None]).sum() + self._agreement()).backward()

    def _multiply(self, V: Tensor) -> Tensor:
        """(K + sigma_obs^2 / copies) V for V (N, k) in float64."""
        blocks = (covariance(self.kernel, rows, self.X).double() @ V for rows in self.X.split(BLOCK))
        return torch.cat(list(blocks)) + (self.noise / self.copies)[:, None] * V

    @torch.no_grad()
    def _preconditioner(self) -> Callable[[Tensor], Tensor]:
        """V -> (P P^T + sigma_obs^2 I)^-1 V with the pivoted Cholesky factor P (N, r) of K, by Woodbury."""
        P, noise = pivoted_cholesky(self.kernel, self.X, PRECONDITIONER_RANK).double(), self.noise.double()
        eye = torch.eye(P.shape[1], dtype=P.dtype, device=P.device)
        inner = cholesky(P.T @ P + noise * eye, jitter=0.0, name="preconditioner")
        return lambda V: (V - P @ torch.cholesky_solve(P.T @ V, inner)) / noise


def merged(X: Tensor, y: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct rows of X, the mean target and the number of rows of each, and what the targets deviate in all.

    A GP cannot tell equal rows from one row that was measured better: one with their mean and noise / copies. A weight
    of w means w copies of a row.

    >>> merged(torch.tensor([[1.0], [0.0], [1.0]]), torch.tensor([2.0, 5.0, 4.0]))
    (tensor([[0.],
            [1.]]), tensor([5., 3.]), tensor([1., 2.]), tensor(2.))
    """
    w = torch.ones_like(y) if weights is None else weights.to(y)
    distinct, where = X.unique(dim=0, return_inverse=True)
    if len(distinct) == len(X):  # as they came
        return X, y, w, y.new_zeros(())
    copies = y.new_zeros(len(distinct)).index_add_(0, where, w)
    mean = y.new_zeros(len(distinct)).index_add_(0, where, w * y) / copies
    return distinct, mean, copies, (w * (y - mean[where]).square()).sum()


@torch.no_grad()
def pivoted_cholesky(kernel: Kernel, X: Tensor, rank: int) -> Tensor:
    """P (N, r) with P P^T close to k(X, X): each step takes the row of largest conditional variance."""
    rest = prior_variance(kernel, X).clone()  # what the rows taken so far leave of the diagonal
    tiny = torch.finfo(X.dtype).eps * rest.max()
    P = X.new_zeros(len(X), min(rank, len(X)))
    for j in range(P.shape[1]):
        i = int(rest.argmax())
        if rest[i] <= tiny:
            return P[:, :j]
        column = covariance(kernel, X, X[i : i + 1])[:, 0] - P[:, :j] @ P[i, :j]
        P[:, j] = column / rest[i].sqrt()
        rest = (rest - P[:, j].square()).clamp_min(0)
        rest[i] = 0
    return P


def fit_exact(
    kernel: str | Kernel,
    X: Tensor,
    y: Tensor,
    *,
    generator: torch.Generator,
    noise: float = 0.1,
    iterations: int = 100,
    learn_rows: int = LEARN_BY_CHOLESKY,
    cg_steps: int = 3,
    cg_rate: float = 0.1,
    progress: Progress | None = None,
) -> ExactGP:
    """An exact GP with kernel and noise learned by the marginal likelihood (Eqn marg), X (N, d), y (N,).

    Up to `learn_rows` distinct rows: L-BFGS on the Cholesky factorisation. Beyond, as in Wang et al. 2019: the same on
    a random subset of that size, then `cg_steps` steps of Adam on all rows by conjugate gradients
    (`cg_steps=0` keeps what the subset taught).
    """
    X, y, _ = checked(Data(X, y))
    kernel = make_kernel(kernel, X.shape[1])
    gp = ExactGP(kernel, X, y, noise=noise)
    large = len(gp.X) > learn_rows
    subset = torch.randperm(len(X), generator=generator)[:learn_rows] if large else slice(None)
    small = ExactGP(kernel, X[subset], y[subset], noise=noise, solver="cholesky")
    maximise(small, small.log_marginal, iterations, progress)
    gp.likelihood = small.likelihood
    optimizer = torch.optim.Adam(gp.parameters(), lr=cg_rate, maximize=True)
    for _ in range(cg_steps if large else 0):
        optimizer.zero_grad()
        probes = torch.randn(len(gp.X), PROBES, generator=generator).to(X)
        gp.add_log_marginal_gradient(probes)
        optimizer.step()
    return gp


# --- FITC ---


class Posterior(NamedTuple):
    """q(u') = N(m, L L^T)."""

    m: Tensor  # (M,)
    L: Tensor  # (M, M), lower triangular


def optimal_q(A: Tensor, y: Tensor, var: Tensor) -> Posterior:
    """The best q(u') for y ~ N(A^T u', diag(var)) and u' ~ N(0, I), with A (M, N) and var (N,).

    S' = (I + A diag(1/var) A^T)^-1,  m' = S' A (y / var).

    With var = sigma_obs^2 it maximises SVGP's ELBO, with var = ktilde + sigma_obs^2 VFITC's (beta_reg = 1).
    """
    R = _precision_factor(A, var)
    m = torch.cholesky_solve((A @ (y / var))[:, None], R)[:, 0]
    S = torch.cholesky_inverse(R)
    return Posterior(m, cholesky(S, jitter=0.0, name="covariance of q(u)"))


def fitc_log_marginal(A: Tensor, var: Tensor, y: Tensor) -> Tensor:
    """log N(y | 0, A^T A + diag(var)), var = ktilde + sigma_obs^2 (Eqn fitcmarg), in O(N M^2); a scalar.

    The matrix determinant lemma and Woodbury on R R^T = I + A diag(1/var) A^T.
    """
    R = _precision_factor(A, var)
    fitted = _forward_solve(R, (A @ (y / var))[:, None])  # (M, 1)
    quadratic = (y.square() / var).sum() - fitted.square().sum()
    log_det = var.log().sum() + 2 * R.diagonal().log().sum()
    return -0.5 * (quadratic + log_det + len(y) * math.log(2 * math.pi))


def _precision_factor(A: Tensor, var: Tensor) -> Tensor:
    """R with R R^T = I + A diag(1/var) A^T, the precision of u' given y; shape (M, M)."""
    scaled = A / var.sqrt()
    eye = torch.eye(len(A), dtype=A.dtype, device=A.device)
    return cholesky(eye + scaled @ scaled.T, jitter=0.0, name="precision of q(u)")


def fit_fitc(
    kernel: str | Kernel,
    X: Tensor,
    y: Tensor,
    Z: Tensor,
    *,
    noise: float = INITIAL_NOISE,
    iterations: int = 200,
    progress: Progress | None = None,
) -> ParametricGP:
    """FITC (Eqn fitcmarg): kernel, noise and inducing points by L-BFGS on all rows, X (N, d), y (N,).

    The result is a coupled model at FITC's posterior, which is the optimal q(u) of VFITC (Eqn vfitcelbo).
    """
    X, y, _ = checked(Data(X, y))
    model = ParametricGP(make_kernel(kernel, X.shape[1]), Coupled(Z, Dense), noise=noise)
    model.embed(X[:1])  # the inducing points must have the rows' inputs and precision

    def projection() -> tuple[Tensor, Tensor]:
        W = model.family.whitener(model.kernel, model.family.Z)
        A = whiten(W, covariance(model.kernel, model.family.Z, X))  # (M, N)
        ktilde = (prior_variance(model.kernel, X) - A.square().sum(0)).clamp_min(0)  # (N,)
        return A, ktilde + model.noise

    def log_marginal() -> Tensor:
        return fitc_log_marginal(*projection(), y)

    q_parameters = [model.family.m, *model.family.S.parameters()]  # solved for, not searched
    for parameter in q_parameters:
        parameter.requires_grad_(False)
    maximise(model, log_marginal, iterations, progress)
    with torch.no_grad():
        A, var = projection()
        q = optimal_q(A, y, var)
        for parameter, value in zip(q_parameters, q, strict=True):
            parameter.copy_(value).requires_grad_(True)
    return model


# --- both ---


def _forward_solve(L: Tensor, rhs: Tensor) -> Tensor:
    """L^-1 rhs for a lower triangular L (n, n) and rhs (n, k)."""
    return torch.linalg.solve_triangular(L, rhs, upper=False)


def maximise(
    module: nn.Module,
    value: Callable[[], Tensor],
    iterations: int,
    progress: Progress | None = None,
    *,
    tolerance: float = 2e-9,
) -> None:
    """Maximise `value()` over the module's trainable parameters with L-BFGS (SciPy's), keeping the best seen, until an
    iteration gains less than that share of the value.

    A trial point without a finite value counts as infinitely bad, so that the line search steps back from it.
    """
    if iterations < 1:  # SciPy would take one step all the same
        return
    parameters = [p for p in module.parameters() if p.requires_grad]
    start = nn.utils.parameters_to_vector(parameters).detach().double().cpu().numpy()
    best = (math.inf, start)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        nn.utils.vector_to_parameters(torch.from_numpy(flat).to(parameters[0]), parameters)
        try:
            negative = -value()
        except NotPositiveDefiniteError:
            if best[0] == math.inf:  # at the very start there is nothing to step back to
                raise
            return math.inf, np.zeros_like(flat)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(negative, parameters)])
        result = float(negative.detach()), gradient.double().cpu().numpy()
        if result[0] < best[0] and np.isfinite(result[1]).all():
            best = (result[0], flat.copy())
        return result

    callback = None if progress is None else lambda _: progress()
    # SciPy's own BLAS would keep all cores spinning between its tiny products, where torch needs them.
    with ThreadpoolController().select(prefix="libscipy_openblas").limit(limits=1):
        options = {"maxiter": iterations, "ftol": tolerance}
        minimize(loss, start, jac=True, method="L-BFGS-B", callback=callback, options=options)
    nn.utils.vector_to_parameters(torch.from_numpy(best[1]).to(parameters[0]), parameters)
    for parameter in parameters:
        parameter.data = parameter.data.clone()  # of its own, no longer a view of the flat vector
