"""The mean of two stages: FITC's ridge regression (Eqn fitc), and what it makes of rows that it has not seen."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paragp.data.rows import Data, Rows
from paragp.gp.kernels import prior_variance
from paragp.gp.linalg import NotPositiveDefiniteError
from paragp.gp.model import ParametricGP
from paragp.gp.products import lower_of_product, product
from paragp.training.distributed import ALONE, Group
from paragp.training.solves import factor_of

CHUNK = 4000  # rows taken together
NOISE_ROWS = 50_000  # at most, whose residuals are wanted: the noise is fitted to them
KEPT_FEATURES = 1e8  # of validation rows, that are kept while the prior's weight is chosen
CLEARLY = 0.01  # of the squared error: less is not worth leverages near one, which leave little of the residuals
PROBES = 256  # random vectors that estimate leverages where exact ones would cost more than the solve
EXACT_LEVERAGES = 2e11  # rows times points^2, up to which leverages are exact


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
                if not squared_error(values, held_out) < (1 - CLEARLY) * squared_error(there, held_out):
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


def squared_error(mean: Tensor, rows: Data) -> float:
    """Summed over the rows, each by its weight."""
    square = (mean - rows.y).square()
    return float(square.sum() if rows.weights is None else square @ rows.weights)


@torch.no_grad()
def held_out_error(model: ParametricGP, data: Data, held_out: Data, betas: Sequence[float]) -> float:
    """The mean squared error at rows held out of the mean that is solved for on the others."""
    try:
        _, mean = Ridge(model, data, float(model.noise), ALONE).choose(betas, held_out)
    except NotPositiveDefiniteError:
        return math.inf
    assert mean is not None
    return squared_error(mean, held_out) / held_out.total
