"""ParametricGP: features -> kernel -> family, plus observation noise."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn
from torch.nn.functional import softplus

from paragp.data.rows import check_finite, check_inputs
from paragp.gp.families import Family
from paragp.gp.features import evaluating
from paragp.gp.kernels import prior_deviation
from paragp.gp.linalg import keep_freed_memory
from paragp.gp.moments import Moments
from paragp.predictive import PredictiveDistribution
from paragp.shape import NORMAL, Shape

INITIAL_NOISE = 0.5  # assumed: sigma_obs^2 starts at half the variance of a standardised target
NOISE_FLOOR = 1e-4  # assumed, GPyTorch's default: a deviation of .01 in standardised units
PARTS = 3  # at most, of the shape of y's distribution
CHUNK = 2000  # rows predicted at once: what is allocated does not grow with the number of rows


class ParametricGP(nn.Module):
    """A Gaussian process regressor with parametric predictive distributions (Eqn preddist2).

    `model(x)` gives the moments of the latent function at x (b, d) and the regulariser: what Algorithm 1 is
    about. `predict(x)` gives the distribution of y. `features` is any module that maps x to the kernel's
    inputs; the inducing points live there.

    >>> from paragp.gp.methods import METHODS
    >>> model = METHODS["ppgpr-mfd"].model("matern52", Z=torch.randn(5, 2))
    >>> moments, kl = model(torch.randn(7, 2))
    >>> moments.mean.shape, kl.shape
    (torch.Size([7]), torch.Size([]))
    >>> len(model.predict(torch.randn(7, 2)).std)
    7
    """

    def __init__(
        self,
        kernel: Kernel,
        family: Family,
        *,
        noise: float = INITIAL_NOISE,
        noise_floor: float = NOISE_FLOOR,
        features: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.family = family
        self.features = nn.Identity() if features is None else features
        self.likelihood = Noise(noise, floor=noise_floor)
        self.to(family.Z)

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
        """The prior deviation sigma_k of the latent function (over the inducing points, if it varies)."""
        return prior_deviation(self.family.variance_kernel(self.kernel), self.family.Z)

    @property
    def networks(self) -> list[nn.Module]:
        """The modules that may be anyone's: before the kernel, and for the mean."""
        before = [] if isinstance(self.features, nn.Identity) else [self.features]
        return [*before, *self.family.networks]

    @property
    def noise_by_row(self) -> bool:
        """Whether there is noise that depends on the row, beside the constant `noise`."""
        return self.family.S.is_noise

    def confine(self) -> None:
        """After a step, go back to where the regulariser is finite."""
        self.family.confine()

    def factorise(self) -> Any:
        """What a step, or a fitted model, computes once for all batches."""
        return self.family.factorise(self.kernel)

    def embed(self, x: Tensor) -> Tensor:
        """The features of x (b, d), checked to be what the kernel takes; shape (b, p)."""
        h = self.features(x)
        check_inputs(h, self.family.Z.shape[1], self.family.Z.dtype)
        return h

    def forward(self, x: Tensor) -> tuple[Moments, Tensor]:
        """The moments at x (b, d) and the regulariser KL(q(u) || p(u)), a scalar."""
        factor = self.factorise()
        return self.family.moments(factor, self.kernel, self.embed(x)), self.family.kl(factor)

    @torch.no_grad()
    def predict(self, x: Tensor, *, factor: Any = None, chunk: int = CHUNK) -> PredictiveDistribution:
        """p(y | x) = N(y | mean, sigma_f(x)^2 + sigma_obs^2) (Eqn preddist2), in chunks of rows.

        With another `shape` it is the distribution of the same mean and variance.
        Pass `factor=model.factorise()`, made under `torch.no_grad()`, to share the factorisation between calls.
        """
        factor = self.factorise() if factor is None else factor
        embedded = self._embedded(x, chunk)
        parts = (self.family.moments(factor, self.kernel, h) for h in embedded)
        return predictive(parts, self.noise, len(x), svar_is_noise=self.noise_by_row, shape=self.shape)

    @torch.no_grad()
    def predict_covariance(self, x: Tensor, *, factor: Any = None) -> np.ndarray:
        """The covariance of y over all rows of x: the function's, plus noise on the diagonal; shape (n, n).

        It is the covariance itself whatever the shape, not a Student-t's scale matrix.
        """
        factor = self.factorise() if factor is None else factor
        h = torch.cat(list(self._embedded(x, CHUNK)))
        return with_noise(self.family.function_covariance(factor, self.kernel, h), self.noise)

    @torch.no_grad()
    def predict_mean(self, x: Tensor, *, factor: Any = None, chunk: int = CHUNK) -> np.ndarray:
        """The mean alone (Eqn meanfunc), in O(M) a row instead of O(M^2); shape (n,)."""
        mean = self.family.mean_function(self.factorise() if factor is None else factor, self.kernel)
        return torch.cat([mean(h) for h in self._embedded(x, chunk)]).double().numpy(force=True)

    def _embedded(self, x: Tensor, chunk: int) -> Iterator[Tensor]:
        """The features of x in chunks; while they are taken, all modules are in eval mode."""
        check_finite(x, "x")
        keep_freed_memory()
        with evaluating(self):
            for rows in x.split(chunk):
                yield self.embed(rows)


class Noise(nn.Module):
    """The variance sigma_obs^2 of the observation noise: softplus(raw) + floor; and the shape of y's distribution.

    `tails` is 1 / dof of a Student-t, which is 0 for the normal and always finite; `parts` are those of a `Shape`.

    >>> Noise(0.25)().item(), str(Noise(0.25).shape)
    (0.25, 'normal')
    """

    tails: Tensor  # a scalar in [0, 1/2)
    parts: Tensor  # (PARTS, 3): weight, mean and deviation; those without weight do not count

    def __init__(self, variance: float = INITIAL_NOISE, *, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        if not variance > floor >= 0:
            raise ValueError(f"The noise variance must be above its floor of {floor}, got {variance}.")
        self.floor = floor
        self.raw = nn.Parameter(torch.empty(()))
        self.start(variance)
        for name, value in _normal().items():
            self.register_buffer(name, value)
        self.register_load_state_dict_pre_hook(_normal_unless_said)

    def start(self, variance: float) -> None:
        """Set the variance."""
        above = variance - self.floor
        nn.init.constant_(self.raw, above + math.log(-math.expm1(-above)))  # softplus, inverted

    @property
    def shape(self) -> Shape:
        """Of y's distribution."""
        tails = float(self.tails)
        return Shape(1 / tails if tails else math.inf, tuple(map(tuple, self.parts.tolist())))

    def forward(self) -> Tensor:
        return softplus(self.raw) + self.floor


def _normal_unless_said(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    """States of before there were shapes (of checkpoints, say) are of normal distributions."""
    for name, value in _normal().items():
        state.setdefault(f"{prefix}{name}", value)


def _normal() -> dict[str, Tensor]:
    """The normal distribution's buffers of `Noise`."""
    parts = torch.zeros(PARTS, 3)
    parts[:, 2] = 1
    parts[0, 0] = 1
    return {"tails": torch.zeros(()), "parts": parts}


def predictive(
    parts: Iterable[Moments], noise: Tensor, n: int, *, svar_is_noise: bool = False, shape: Shape = NORMAL
) -> PredictiveDistribution:
    """The distribution of y (Eqn preddist2) from the moments of consecutive chunks of n rows."""
    mean, function_var, noise_var = np.empty(n), np.empty(n), np.full(n, float(noise))
    start = 0
    for q in parts:  # written into place, so that nothing small is left between the large blocks that are freed
        rows = slice(start, start + len(q.mean))
        mean[rows] = q.mean.numpy(force=True)
        function_var[rows] = (q.ktilde if svar_is_noise else q.fvar).numpy(force=True)
        if svar_is_noise:
            noise_var[rows] += q.svar.numpy(force=True)
        start = rows.stop
    return PredictiveDistribution(mean, function_var, noise_var, shape)


def with_noise(function_covariance: Tensor, noise: Tensor) -> np.ndarray:
    """The covariance of y from that of the latent function, (n, n), symmetric to the bit."""
    found = function_covariance.double().numpy(force=True)
    return (found + found.T) / 2 + float(noise) * np.eye(len(found))
