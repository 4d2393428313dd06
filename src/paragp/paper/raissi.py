"""The parametric GP of Raissi, Babaee and Karniadakis (2019), which the paper reports as outperformed.

Inducing points stay where k-means put them. A mini-batch (X, y) does two things that do not serve one objective:

    the kernel and the noise take a step of Adam up log N(y | mu(X), Sigma(X, X) + sigma^2 I), with m and S as they are,
    m and S become those of u given y too:  m + C (Sigma + sigma^2 I)^-1 (y - mu),  S - C (Sigma + sigma^2 I)^-1 C^T,

where mu(x) = k_x^T K_MM^-1 m, Sigma(x, x') = k(x, x') - k_x^T K_MM^-1 k_x' + k_x^T K_MM^-1 S K_MM^-1 k_x', and
C = S K_MM^-1 k_X is the covariance of u with the batch. S shrinks with every batch, however often its rows came before
and whatever the kernel was then: what remains of the uncertainty is far too small.
"""

from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.data.rows import Data, batches
from paragp.gp.kernels import covariance, make_kernel, prior_variance
from paragp.gp.linalg import cholesky
from paragp.gp.model import Noise, predictive
from paragp.gp.moments import Moments
from paragp.predictive import PredictiveDistribution
from paragp.training.inducing import kmeans

BATCH, RATE = 500, 0.01  # assumed: the paper does not say what it ran
NOISE = 0.02  # at the start, near the e^-4 of its authors' code


class RaissiGP(nn.Module):
    """q(u) = N(m, S), not whitened, in float64."""

    m: Tensor
    S: Tensor

    def __init__(self, kernel: str | Kernel, Z: Tensor) -> None:
        super().__init__()
        self.kernel = make_kernel(kernel, Z.shape[1])
        self.likelihood = Noise(NOISE)
        self.double()
        self.Z = Z.double()
        self.register_buffer("m", torch.zeros(len(Z), dtype=torch.float64))
        self.register_buffer("S", covariance(self.kernel, self.Z, self.Z).detach())

    @property
    def noise(self) -> Tensor:
        return self.likelihood()

    def weights(self, x: Tensor) -> Tensor:
        """K_MM^-1 k_x, shape (M, b)."""
        K_Mb = covariance(self.kernel, self.Z, x)
        return torch.cholesky_solve(K_Mb, cholesky(covariance(self.kernel, self.Z, self.Z), name="K_MM"))

    def step(self, batch: Data) -> Tensor:
        """The batch's loss per row, for the kernel and the noise; m and S are conditioned on it."""
        A = self.weights(batch.x)
        C = self.S @ A
        K_bb = covariance(self.kernel, batch.x, batch.x) - covariance(self.kernel, self.Z, batch.x).T @ A + A.T @ C
        L = cholesky(K_bb + self.noise * torch.eye(len(batch.y)).to(K_bb), name="covariance of the batch")
        residual = batch.y - A.T @ self.m
        white = torch.linalg.solve_triangular(L, residual[:, None], upper=False)[:, 0]
        with torch.no_grad():
            gain = torch.linalg.solve_triangular(L, C.T, upper=False)  # (b, M)
            self.m, self.S = self.m + gain.T @ white, self.S - gain.T @ gain
        return (0.5 * white.square().sum() + L.diagonal().log().sum()) / len(batch.y)

    def predict(self, x: Tensor) -> PredictiveDistribution:
        """Of y: with the noise."""
        return self._predict(x, self.noise)

    def predict_function(self, x: Tensor) -> PredictiveDistribution:
        """Of y as its authors' code has it: the noise left out."""
        return self._predict(x, torch.zeros_like(self.noise))

    @torch.no_grad()
    def _predict(self, x: Tensor, noise: Tensor, chunk: int = 1000) -> PredictiveDistribution:
        return predictive((self._moments(rows.double()) for rows in x.split(chunk)), noise, len(x))

    def _moments(self, x: Tensor) -> Moments:
        A = self.weights(x)
        ktilde = prior_variance(self.kernel, x) - (covariance(self.kernel, self.Z, x) * A).sum(0)
        return Moments(A.T @ self.m, ktilde.clamp_min(0), (A * (self.S @ A)).sum(0).clamp_min(1e-12))


def fit_raissi(
    data: Data,
    *,
    M: int,
    iterations: int,
    generator: torch.Generator,
    kernel: str | Kernel = "matern52",
    batch_size: int = BATCH,
    progress: Callable[[], object] | None = None,
) -> RaissiGP:
    """Train on standardised rows, batch after batch."""
    data = Data(data.x.double(), data.y.double())
    model = RaissiGP(kernel, kmeans(data.x, M, generator=generator))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    done = 0
    while done < iterations:
        for batch in batches(data, batch_size, generator):
            optimizer.zero_grad()
            model.step(batch).backward()
            optimizer.step()
            done += 1
            if progress is not None:
                progress()
            if done == iterations:
                break
    return model
