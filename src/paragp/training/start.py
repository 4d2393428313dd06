"""Where training starts: a kernel that suits the data, and inducing points spread in that kernel's units."""

import copy
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from paragp.data.rows import Data
from paragp.gp.exact import ExactGP, maximise
from paragp.gp.kernels import lengthscales
from paragp.gp.linalg import NotPositiveDefiniteError, keep_freed_memory
from paragp.gp.model import INITIAL_NOISE, NOISE_FLOOR
from paragp.training.distributed import ALONE, Group

LARGEST_STRETCH = 1e3  # of an input's units against the most relevant one's: beyond, it adds nothing to a distance
# Deviations of the prior on the logarithms of positive parameters around where they start. A kernel that suits the mean
# of a sample may be far too smooth for the variance of all rows, and a long lengthscale takes long to become short.
NEAR, FAR, NOISE_DEVIATION = 0.5, 1.0, 2.0
# Where training goes on from the kernel, an iteration that gains less than this share of the likelihood is the last.
SETTLED, TO_THE_END = 1e-5, 2e-9
# Of several kernels the chosen one is looked at again: a share of the iterations, and more rows.
LAST_LOOK, MORE_ROWS = 0.3, 2.0


def choose_kernel(
    kernels: Sequence[Kernel],
    data: Data,
    *,
    rows: int,
    iterations: int,
    generator: torch.Generator,
    deviation: float,
    error: Callable[[Kernel, float], float] | None = None,
    group: Group = ALONE,
) -> tuple[Kernel, float]:
    """Fit each kernel to a sample of rows by its marginal likelihood (Eqn marg); the best of them, and its noise.

    The exact GP of about `rows` rows, in float64, with a prior of that `deviation` that keeps the logarithm of every
    positive parameter in reach of where it starts (an input that a sample shows to be irrelevant has no largest
    lengthscale otherwise). A weight of w means w copies of a row. Where there is no factor at all a kernel stays as it
    is. Among several, the best has the least `error(kernel, noise)`; without such a judge it is the likeliest.
    """
    keep_freed_memory()
    if data.weights is not None:
        data = data.take(data.weights > 0)
    several = len(kernels) > 1
    order = torch.randperm(data.size, generator=generator).to(data.y.device)
    data = data.take(order[: round(MORE_ROWS * rows)])
    fits = [_Fit(kernel, deviation, TO_THE_END if several else SETTLED) for kernel in kernels]
    losses = [-fit.improve(data.take(slice(rows)), iterations) for fit in fits]
    if several and error is not None:
        losses = [error(fit.kernel, fit.noise) for fit in fits]
    least = torch.tensor(losses, dtype=torch.float64).nan_to_num(nan=math.inf).argmin()
    group.agree([least])  # rounding may differ, and kernels have parameters of their own
    chosen = fits[int(least)]
    if several:
        chosen.improve(data, round(LAST_LOOK * iterations))
    return chosen.kernel, chosen.noise


class _Fit:
    """A kernel on its way, in place, and the noise that goes with it."""

    def __init__(self, kernel: Kernel, deviation: float, tolerance: float) -> None:
        self.kernel, self.deviation, self.tolerance, self.noise = kernel, deviation, tolerance, INITIAL_NOISE
        self.start: Tensor | None = None  # the logarithms of its parameters and the noise

    def improve(self, sample: Data, iterations: int) -> float:
        """Go on from where it stands; the logarithm of the posterior density that it reaches."""
        weights = None if sample.weights is None else sample.weights.double()
        noise = max(self.noise, 2 * NOISE_FLOOR)  # at the floor itself it could not move
        found = ExactGP(copy.deepcopy(self.kernel), sample.x.double(), sample.y.double(), weights=weights, noise=noise)
        first = self.start = _logarithms(found).detach() if self.start is None else self.start
        deviations = torch.full_like(first, self.deviation)
        deviations[-1] = NOISE_DEVIATION

        def log_posterior() -> Tensor:
            return found.log_marginal() - 0.5 * ((_logarithms(found) - first) / deviations).square().sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trial point with little noise needs jitter; the next one will not
            try:
                maximise(found, log_posterior, iterations, tolerance=self.tolerance)
                reached = float(log_posterior().detach())
            except NotPositiveDefiniteError:
                return -math.inf
        self.kernel.load_state_dict(found.kernel.state_dict())
        self.noise = float(found.noise.detach())
        return reached


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
