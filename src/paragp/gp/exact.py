"""The full-batch baselines: the exact GP and FITC. Both predict as the rest of the library does.

`fit_exact` factorises the N x N kernel matrix while that is affordable and solves with preconditioned
conjugate gradients beyond, never holding more than a block of its rows (Wang et al. 2019).
`fit_fitc` maximises FITC's marginal likelihood in O(N M^2) and returns a `ParametricGP`.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.linear_cg import linear_cg
from linear_operator.utils.warnings import NumericalWarning
from scipy.optimize import minimize
from torch import Tensor, nn

from paragp.gp.covariances import Dense
from paragp.gp.families import Coupled
from paragp.gp.kernels import covariance, kernel_name, make_kernel, prior_variance
from paragp.gp.linalg import Projection, cholesky, project, unwhiten, whiten
from paragp.gp.model import CHUNK, Noise, ParametricGP, predictive
from paragp.gp.moments import Moments
from paragp.predictive import PredictiveDistribution

LEARN_BY_CHOLESKY = 6_000  # rows: above, a gradient of the N x N factorisation takes too long to be repeated
CONDITION_BY_CHOLESKY = 32_000  # rows: above, the factor itself (4 GB in float32) is too large to keep
CG_TOLERANCE = 1e-4  # mean relative residual of a solve
CG_ITERATIONS = 1_000
CG_BLOCK = 2_048  # rows of the kernel matrix that exist at one time
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

    X: Tensor
    y: Tensor

    def __init__(self, kernel: Kernel, X: Tensor, y: Tensor, *, noise: float = 0.1, solver: str | None = None) -> None:
        super().__init__()
        self.kernel = kernel
        self.likelihood = Noise(noise)
        self.register_buffer("X", X)
        self.register_buffer("y", y)
        if solver not in (None, "cholesky", "cg"):
            raise ValueError(f"solver must be 'cholesky', 'cg' or None (by the number of rows), got {solver!r}.")
        self.solver = solver or ("cholesky" if len(X) <= CONDITION_BY_CHOLESKY else "cg")
        self.to(X)

    @property
    def noise(self) -> Tensor:
        """The observation noise sigma_obs^2, a scalar."""
        return self.likelihood()

    @property
    def kernel_scale(self) -> float:
        """The prior deviation sigma_k of the latent function."""
        with torch.no_grad():
            return float(prior_variance(self.kernel, self.X[:CHUNK]).mean().sqrt())

    def log_marginal(self) -> Tensor:
        """log p(y | X) = log N(y | 0, K_NN + sigma_obs^2 I) (Eqn marg), a scalar."""
        L = self._cholesky()
        N = len(self.y)
        return -0.5 * (whiten(L, self.y).square().sum() + N * math.log(2 * math.pi)) - L.diagonal().log().sum()

    @torch.no_grad()
    def factorise(self) -> Factor:
        """What all predictions share: the weights of the mean and, with Cholesky, the factor."""
        if self.solver == "cholesky":
            L = self._cholesky()
            return self.Factor(unwhiten(L, whiten(L, self.y)), L)
        return self.Factor(self.solve(self.y[:, None])[:, 0], None)

    @torch.no_grad()
    def predict(self, x: Tensor, *, factor: Factor | None = None, chunk: int = 512) -> PredictiveDistribution:
        """The exact posterior predictive distribution at x (n, d), in chunks of rows."""
        factor = self.factorise() if factor is None else factor
        return predictive((self._moments(rows, factor) for rows in x.split(chunk)), self.noise)

    def _moments(self, x: Tensor, factor: Factor) -> Moments:
        K_Nb = covariance(self.kernel, self.X, x)  # (N, b)
        explained = (K_Nb * self.solve(K_Nb) if factor.L is None else whiten(factor.L, K_Nb).square()).sum(0)
        fvar = (prior_variance(self.kernel, x) - explained).clamp_min(0)
        return Moments(K_Nb.T @ factor.alpha, fvar, torch.zeros_like(fvar))

    def _cholesky(self) -> Tensor:
        K = covariance(self.kernel, self.X, self.X)
        noise = self.noise * torch.eye(len(K), dtype=K.dtype, device=K.device)
        return cholesky(K + noise, jitter=0.0, name=f"K_NN + noise of {kernel_name(self.kernel)}")

    # Conjugate gradients: the kernel matrix is only ever multiplied, block by block of its rows.

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """(K + sigma_obs^2 I)^-1 rhs for rhs (N, k), with a `ConvergenceWarning` if it did not converge."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # reported below, in this library's terms
            solution = linear_cg(
                self._multiply,
                rhs,
                tolerance=CG_TOLERANCE,
                max_iter=CG_ITERATIONS,
                max_tridiag_iter=0,
                eps=1e-20,
                preconditioner=self._preconditioner(),
            )
        residual = float(((self._multiply(solution) - rhs).norm(dim=0) / rhs.norm(dim=0).clamp_min(1e-20)).mean())
        if not residual <= 10 * CG_TOLERANCE:
            warnings.warn(
                f"Conjugate gradients stopped with a mean relative residual of {residual:.1e} (wanted "
                f"{CG_TOLERANCE:.0e}) after at most {CG_ITERATIONS} iterations. More noise or float64 help.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return solution

    def add_log_marginal_gradient(self, probes: Tensor) -> None:
        """Add the gradient of log p(y | X) to the parameters' `.grad`, by conjugate gradients.

        With K^ = K + sigma_obs^2 I, alpha = K^-1 y and probes z with E[z z^T] = I (N, p),

            d log p = 1/2 alpha^T dK^ alpha - 1/2 E_z[(K^-1 z)^T dK^ z].
        """
        solved = self.solve(torch.cat([self.y[:, None], probes], 1))
        left = torch.cat([solved[:, :1], -solved[:, 1:] / probes.shape[1]], 1) / 2  # (N, 1 + p)
        right = torch.cat([solved[:, :1], probes], 1)
        for i in range(0, len(self.X), CG_BLOCK):
            rows = slice(i, i + CG_BLOCK)
            (left[rows] * (covariance(self.kernel, self.X[rows], self.X) @ right)).sum().backward()
        (self.noise * (left * right).sum()).backward()

    def _multiply(self, V: Tensor) -> Tensor:
        """(K + sigma_obs^2 I) V."""
        blocks = self.X.split(CG_BLOCK)
        return torch.cat([covariance(self.kernel, rows, self.X) @ V for rows in blocks]) + self.noise * V

    def _preconditioner(self) -> Callable[[Tensor], Tensor]:
        """V -> (P P^T + sigma_obs^2 I)^-1 V with the pivoted Cholesky factor P (N, r) of K, by Woodbury."""
        P = pivoted_cholesky(self.kernel, self.X, PRECONDITIONER_RANK)
        inner = cholesky(P.T @ P + self.noise * torch.eye(P.shape[1]).to(P), jitter=0.0, name="preconditioner")
        return lambda V: (V - P @ torch.cholesky_solve(P.T @ V, inner)) / self.noise


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

    Up to `learn_rows` rows: L-BFGS on the Cholesky factorisation. Beyond, as in Wang et al. 2019: the same on
    a random subset of that size, then `cg_steps` steps of Adam on all rows by conjugate gradients
    (`cg_steps=0` keeps what the subset taught).
    """
    kernel = make_kernel(kernel, X.shape[1])
    subset = torch.randperm(len(X), generator=generator)[:learn_rows] if len(X) > learn_rows else slice(None)
    small = ExactGP(kernel, X[subset], y[subset], noise=noise, solver="cholesky")
    maximise(small, small.log_marginal, iterations, progress)
    gp = ExactGP(kernel, X, y, noise=noise)
    gp.likelihood = small.likelihood
    optimizer = torch.optim.Adam(gp.parameters(), lr=cg_rate, maximize=True)
    for _ in range(cg_steps if len(X) > learn_rows else 0):
        optimizer.zero_grad()
        probes = torch.randn(len(X), PROBES, generator=generator, dtype=X.dtype)
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
    scaled = A / var.sqrt()
    eye = torch.eye(len(A), dtype=A.dtype, device=A.device)
    R = cholesky(eye + scaled @ scaled.T, jitter=0.0, name="precision of q(u)")
    m = torch.cholesky_solve((A @ (y / var))[:, None], R)[:, 0]
    return Posterior(m, cholesky(torch.cholesky_solve(eye, R), jitter=0.0, name="covariance of q(u)"))


def fitc_log_marginal(projection: Projection, y: Tensor, noise: Tensor) -> Tensor:
    """log N(y | 0, A^T A + diag(ktilde) + sigma_obs^2 I) (Eqn fitcmarg) in O(N M^2), a scalar.

    With D = ktilde + sigma_obs^2, the matrix determinant lemma and Woodbury on R R^T = I + A D^-1 A^T.
    """
    var = projection.ktilde + noise  # (N,)
    scaled = projection.A / var.sqrt()  # (M, N)
    eye = torch.eye(len(scaled), dtype=y.dtype, device=y.device)
    R = cholesky(eye + scaled @ scaled.T, jitter=0.0, name="I + A D^-1 A^T of FITC")
    fitted = whiten(R, projection.A @ (y / var))  # (M,)
    quadratic = (y.square() / var).sum() - fitted.square().sum()
    log_det = var.log().sum() + 2 * R.diagonal().log().sum()
    return -0.5 * (quadratic + log_det + len(y) * math.log(2 * math.pi))


def fit_fitc(
    kernel: str | Kernel,
    X: Tensor,
    y: Tensor,
    Z: Tensor,
    *,
    iterations: int = 200,
    progress: Progress | None = None,
    **options: Any,
) -> ParametricGP:
    """FITC (Eqn fitcmarg): kernel, noise and inducing points by L-BFGS on all rows, X (N, d), y (N,).

    The result is a coupled model at FITC's posterior, which is the optimal q(u) of VFITC (Eqn vfitcelbo).
    """
    model = ParametricGP(make_kernel(kernel, X.shape[1]), Coupled(Z, Dense), **options)

    def projection() -> Projection:
        Lam = model.factorise().Lam
        return project(Lam, covariance(model.kernel, model.family.Z, X), prior_variance(model.kernel, X))

    def log_marginal() -> Tensor:
        return fitc_log_marginal(projection(), y, model.noise)

    q_parameters = [model.family.m, *model.family.S.parameters()]  # solved for, not searched
    for parameter in q_parameters:
        parameter.requires_grad_(False)
    maximise(model, log_marginal, iterations, progress)
    with torch.no_grad():
        A, ktilde = projection()
        q = optimal_q(A, y, ktilde + model.noise)
        for parameter, value in zip(q_parameters, q, strict=True):
            parameter.copy_(value).requires_grad_(True)
    return model


# --- both ---


def maximise(module: nn.Module, value: Callable[[], Tensor], iterations: int, progress: Progress | None = None) -> None:
    """Maximise `value()` over the module's trainable parameters with L-BFGS (SciPy's)."""
    if iterations < 1:  # SciPy would take one step all the same
        return
    parameters = [p for p in module.parameters() if p.requires_grad]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nn.utils.vector_to_parameters(torch.from_numpy(flat).to(parameters[0]), parameters)
        negative = -value()
        gradient = torch.autograd.grad(negative, parameters, allow_unused=True)
        flat_gradient = [
            (torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(parameters, gradient, strict=True)
        ]
        return float(negative.detach()), torch.cat(flat_gradient).double().cpu().numpy()

    start = nn.utils.parameters_to_vector(parameters).detach().double().cpu().numpy()
    callback = None if progress is None else lambda _: progress()
    result = minimize(loss, start, jac=True, method="L-BFGS-B", callback=callback, options={"maxiter": iterations})
    nn.utils.vector_to_parameters(torch.from_numpy(result.x).to(parameters[0]), parameters)
    for parameter in parameters:
        parameter.data = parameter.data.clone()  # of its own, no longer a view of the flat vector
