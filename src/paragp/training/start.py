"""Where training starts: a kernel that suits the data, and inducing points spread in that kernel's units."""

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.data.rows import Data
from paragp.gp.exact import maximise
from paragp.gp.kernels import covariance, kernel_name, lengthscales
from paragp.gp.linalg import NotPositiveDefiniteError, log_density
from paragp.gp.model import INITIAL_NOISE, Noise

LARGEST_STRETCH = (
    1e3  # of an input's units against the shortest lengthscale's: beyond, it does not matter to a distance
)


def fit_kernel(kernel: Kernel, data: Data, *, rows: int, iterations: int, generator: torch.Generator) -> float:
    """Set a kernel's parameters by the marginal likelihood of a sample of rows (Eqn marg), and return the noise.

    The rows' exact GP sees at most `rows` of them, and a row of weight w with a w-th of the noise. Where it cannot be
    factorised at all the kernel stays as it is.
    """
    if data.weights is not None:
        data = data.take(data.weights > 0)
    sample = data.take(torch.randperm(len(data.y), generator=generator)[:rows].to(data.y.device))
    share = torch.ones_like(sample.y) if sample.weights is None else 1 / sample.weights
    start = nn.ModuleDict({"kernel": kernel, "noise": Noise(INITIAL_NOISE)}).to(sample.x)

    def log_marginal() -> Tensor:
        K = covariance(kernel, sample.x, sample.x)
        return log_density(K + torch.diag(start["noise"]() * share), sample.y, name=f"K_NN of {kernel_name(kernel)}")

    try:
        maximise(start, log_marginal, iterations)
    except NotPositiveDefiniteError:
        return INITIAL_NOISE
    return float(start["noise"]().detach())


def stretch(kernel: Kernel, d: int) -> Tensor | None:
    """The inputs' units (d,) in which the kernel sees all of them alike; None for a kernel without lengthscales."""
    found = lengthscales(kernel, d)
    if found is None:
        return None
    relative = torch.from_numpy(found / found.min())
    return relative.clamp(max=LARGEST_STRETCH)
