"""Where training starts: a kernel that suits the data, and inducing points spread in that kernel's units."""

import copy
import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from paragp.data.rows import Data
from paragp.gp.exact import ExactGP, maximise
from paragp.gp.kernels import covariance, lengthscales
from paragp.gp.linalg import NotPositiveDefiniteError
from paragp.gp.model import INITIAL_NOISE

LARGEST_STRETCH = 1e3  # of an input's units against the most relevant one's: beyond, it adds nothing to a distance
# Deviations of the prior on the logarithms of positive parameters around where they start. A kernel that suits the mean
# of a sample may be far too smooth for the variance of all rows, and a long lengthscale takes long to become short.
NEAR, FAR, NOISE_DEVIATION = 0.5, 1.0, 2.0
LONGER = 1.5  # times the rows, for a last fit of the best of several kernels
JUDGED_ROWS = 6000  # that kernels are judged by: what two thirds of them say of the others


def choose_kernel(
    kernels: Sequence[Kernel], data: Data, *, rows: int, iterations: int, generator: torch.Generator, deviation: float
) -> tuple[Kernel, float]:
    """Fit each kernel to a sample of rows by its marginal likelihood (Eqn marg); the best of them, and its noise.

    The exact GP of at most `rows` rows, in float64, with a prior of that `deviation` that keeps the logarithm of every
    positive parameter in reach of where it starts (an input that a sample shows to be irrelevant has no largest
    lengthscale otherwise). A weight of w means w copies of a row. Where there is no factor at all a kernel stays as it
    is. Among several, the best predicts rows from others: more of them than it was fitted to, since what suits few rows
    is too smooth for many; where there are no more, it is the likeliest.
    """
    if data.weights is not None:
        data = data.take(data.weights > 0)
    order = torch.randperm(data.size, generator=generator).to(data.y.device)
    starts = [copy.deepcopy(kernel) for kernel in kernels]
    found = [_fit(kernel, data.take(order[:rows]), iterations, deviation) for kernel in kernels]
    losses = [-evidence for _, evidence in found]
    if len(kernels) > 1 and data.size > 2 * rows:
        last = order[-JUDGED_ROWS:]
        known, judged = (data.take(part) for part in last.tensor_split([2 * len(last) // 3]))
        losses = [_error(kernel, noise, known, judged) for kernel, (noise, _) in zip(kernels, found, strict=True)]
    chosen = min(range(len(kernels)), key=losses.__getitem__)
    if len(kernels) > 1 and data.size > rows:  # it will be used as it is, so it is worth a longer look
        again = starts[chosen]
        longer = _fit(again, data.take(order[: round(LONGER * rows)]), iterations, deviation)
        if math.isfinite(longer[1]):
            found[chosen] = longer
            kernels[chosen].load_state_dict(again.state_dict())
    return kernels[chosen], found[chosen][0]


@torch.no_grad()
def _error(kernel: Kernel, noise: float, known: Data, judged: Data) -> float:
    """The mean squared error of the exact GP of some rows at others, with its noise or a tenth of it."""
    K, across = covariance(kernel, known.x, known.x).double(), covariance(kernel, judged.x, known.x).double()
    copies = torch.ones(known.size).to(K) if known.weights is None else known.weights.double()
    errors = []
    for share in (1.0, 0.1):
        root, info = torch.linalg.cholesky_ex(K + torch.diag(share * noise / copies))
        if int(info):
            continue
        mean = across @ torch.cholesky_solve(known.y.double()[:, None], root)[:, 0]
        errors.append(float(np.average((mean - judged.y).square().numpy(force=True), weights=_copies(judged))))
    return min(errors, default=math.inf)


def _copies(data: Data) -> np.ndarray | None:
    return None if data.weights is None else data.weights.numpy(force=True)


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
