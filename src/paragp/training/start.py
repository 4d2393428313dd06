"""Where training starts: a kernel that suits the data, and inducing points spread in that kernel's units."""

import copy
import math
import warnings
from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from paragp.data.rows import Data
from paragp.gp.exact import ExactGP, maximise
from paragp.gp.kernels import lengthscales
from paragp.gp.linalg import NotPositiveDefiniteError
from paragp.gp.model import INITIAL_NOISE

LARGEST_STRETCH = 1e3  # of an input's units against the most relevant one's: beyond, it adds nothing to a distance
# Deviations of the prior on the logarithms of positive parameters around where they start. A kernel that suits the mean
# of a sample may be far too smooth for the variance of all rows, and a long lengthscale takes long to become short.
NEAR, FAR, NOISE_DEVIATION = 0.5, 1.0, 2.0


def choose_kernel(
    kernels: Sequence[Kernel], data: Data, *, rows: int, iterations: int, generator: torch.Generator, deviation: float
) -> tuple[Kernel, float]:
    """Fit each kernel to a sample of rows by its marginal likelihood (Eqn marg); the likeliest, and its noise.

    The exact GP of at most `rows` rows, in float64, with a prior of that `deviation` that keeps the logarithm of every
    positive parameter in reach of where it starts (an input that a sample shows to be irrelevant has no largest
    lengthscale otherwise). A weight of w means w copies of a row. Where there is no factor at all a kernel stays as it
    is.
    """
    if data.weights is not None:
        data = data.take(data.weights > 0)
    sample = data.take(torch.randperm(len(data.y), generator=generator)[:rows].to(data.y.device))
    found = [_fit(kernel, sample, iterations, deviation) for kernel in kernels]
    chosen = max(range(len(kernels)), key=lambda i: found[i][1])
    return kernels[chosen], found[chosen][0]


def _fit(kernel: Kernel, sample: Data, iterations: int, deviation: float) -> tuple[float, float]:
    """Fit a kernel, in place; the noise, and the logarithm of the posterior density."""
    weights = None if sample.weights is None else sample.weights.double()
    found = ExactGP(copy.deepcopy(kernel), sample.x.double(), sample.y.double(), weights=weights, noise=INITIAL_NOISE)
    first = _logarithms(found).detach()
    deviations = torch.full_like(first, deviation)
    deviations[-1] = NOISE_DEVIATION

    def log_posterior() -> Tensor:
        return found.log_marginal() - 0.5 * ((_logarithms(found) - first) / deviations).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trial point with little noise needs jitter; the next one will not
        try:
            maximise(found, log_posterior, iterations)
            reached = float(log_posterior().detach())
        except NotPositiveDefiniteError:
            return INITIAL_NOISE, -math.inf
    kernel.load_state_dict(found.kernel.state_dict())
    return float(found.noise.detach()), reached


def _logarithms(gp: ExactGP) -> Tensor:
    """Of the kernel's positive parameters, and last of the noise; one vector."""
    values = [
        constraint.transform(parameter).reshape(-1)
        for _, parameter, constraint in gp.kernel.named_parameters_and_constraints()
        if constraint is not None
    ]
    return torch.cat([*values, gp.noise.reshape(1)]).clamp_min(1e-30).log()


def stretch(kernel: Kernel, d: int) -> Tensor | None:
    """The inputs' units (d,) in which the kernel sees all of them alike; None for a kernel without lengthscales."""
    found = lengthscales(kernel, d)
    return None if found is None else torch.from_numpy(found / found.min()).clamp(max=LARGEST_STRETCH)
