"""Kernels by name, and the two evaluations the rest of the library needs of any GPyTorch kernel.

`covariance(kernel, x, z)` and `prior_variance(kernel, x)` are the only places where a kernel is called.
A scaled Matérn or RBF takes a direct path with a hand-written backward; every other kernel, sums and
products included, goes through GPyTorch.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor, nn
from torch.func import functional_call

COINCIDENT = 1e-5  # distance in lengthscales below which Matérn 1/2 has no gradient: its slope would be all rounding
LENGTHSCALE_FLOOR = 1e-4  # in standardised inputs nothing varies faster, and softplus cannot underflow to zero


def initial_lengthscale(d: int) -> float:
    """Where every lengthscale starts: sqrt(d), whose square is half the mean squared distance of two rows.

    Assumed: the paper does not say. From GPyTorch's 0.69 wide tables start with K_MM = I and no gradient.
    """
    return math.sqrt(d)


def _linear(d: int) -> Kernel:
    kernel = LinearKernel(ard_num_dims=d)  # its ARD variances are inverse squared lengthscales
    kernel.variance = torch.full((1, d), initial_lengthscale(d) ** -2)
    return kernel


def _with_lengthscales(kind: Callable[..., Kernel], d: int) -> Kernel:
    kernel = kind(ard_num_dims=d, lengthscale_constraint=GreaterThan(LENGTHSCALE_FLOOR))
    kernel.lengthscale = torch.full((1, d), initial_lengthscale(d))
    return kernel


KERNELS: dict[str, Callable[[int], Kernel]] = {
    "matern12": partial(_with_lengthscales, partial(MaternKernel, nu=0.5)),
    "matern32": partial(_with_lengthscales, partial(MaternKernel, nu=1.5)),
    "matern52": partial(_with_lengthscales, partial(MaternKernel, nu=2.5)),
    "rbf": partial(_with_lengthscales, RBFKernel),
    "rq": partial(_with_lengthscales, RQKernel),
    "periodic": partial(_with_lengthscales, PeriodicKernel),
    "linear": _linear,
}


def make_kernel(kernel: str | Kernel, d: int) -> Kernel:
    """A kernel on d inputs: a copy of a GPyTorch kernel, or a scaled kernel by its name.

    Named kernels have one lengthscale per input and a scale sigma_k^2 of one.

    >>> make_kernel("matern52", 3).base_kernel.lengthscale.shape
    torch.Size([1, 3])
    """
    if isinstance(kernel, Kernel):
        return copy.deepcopy(kernel)  # a model owns what it trains
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, or a gpytorch.kernels.Kernel; got {kernel!r}.")
    scaled = ScaleKernel(KERNELS[kernel](d))
    scaled.outputscale = torch.tensor(1.0)
    return scaled


def kernel_name(kernel: Kernel) -> str:
    """A kernel in words for messages: `ScaleKernel(MaternKernel)`, sums and products spelled out.

    >>> kernel_name(make_kernel("rbf", 2) + LinearKernel())
    'ScaleKernel(RBFKernel) + LinearKernel'
    """
    if isinstance(kernel, ScaleKernel):
        return f"ScaleKernel({kernel_name(kernel.base_kernel)})"
    if hasattr(kernel, "kernels"):
        joint = " + " if "Additive" in type(kernel).__name__ else " * "
        return joint.join(kernel_name(part) for part in kernel.kernels)
    return type(kernel).__name__


def covariance(kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
    """k(x, z) as a dense matrix, shape (n, m). Pass the same tensor twice for a symmetric matrix.

    >>> x = torch.tensor([[0.0], [1.0]])
    >>> covariance(make_kernel("rbf", 1), x, x).detach()
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """
    parts = _stationary_parts(kernel)
    if parts is None:
        return _in_float64(kernel, lambda k, a, b: k(a, b).to_dense(), x, z)
    centre = z.detach().mean(0)  # |x|^2 + |z|^2 - 2 x'z loses digits far from the origin
    unit = math.sqrt(parts.profile.factor) / parts.lengthscale
    z_scaled = (z - centre) * unit
    x_scaled = z_scaled if x is z else (x - centre) * unit
    return _Stationary.apply(x_scaled, z_scaled, parts.scale.log(), parts.profile, x is z)


def prior_variance(kernel: Kernel, x: Tensor) -> Tensor:
    """k(x_i, x_i), shape (n,)."""
    parts = _stationary_parts(kernel)
    if parts is None:
        return _in_float64(kernel, lambda k, a: k(a, diag=True), x)
    return parts.scale.expand(len(x))


def prior_deviation(kernel: Kernel, x: Tensor) -> float:
    """sigma_k: the root of the mean prior variance over the rows of x."""
    with torch.no_grad():
        return float(prior_variance(kernel, x).mean().sqrt())


def _in_float64(kernel: Kernel, evaluate: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """A GPyTorch kernel evaluated in float64 and rounded: its distances lose their digits as ours would."""

    class Evaluation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, *wide: Tensor) -> Tensor:
            return evaluate(self.kernel, *wide)

    wide_parameters = {f"kernel.{name}": p.double() for name, p in kernel.named_parameters()}
    wide = functional_call(Evaluation(), wide_parameters, tuple(t.double() for t in inputs))
    return wide.to(inputs[0].dtype)


# --- stationary kernels: k(x, z) = scale * profile(a^2), a^2 = factor * |(x - z) / lengthscale|^2 ---


class Profile(NamedTuple):
    """A stationary kernel as a function of the scaled squared distance a^2.

    `evaluate(a2, log_scale)` overwrites a2 and gives k and a matrix that times `slope` is dk / d(a^2).
    """

    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    factor: float  # a^2 = factor * r^2
    slope: float


def _rbf(a2: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """k = exp(-a^2), a^2 = r^2 / 2; dk / d(a^2) = -k."""
    k = torch.sub(log_scale, a2, out=a2).exp_()
    return k, k


def _matern12(a2: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """k = exp(-a), a = r; dk / d(a^2) = -k / (2 a), infinite at a = 0: there, by symmetry, 0 stands for it."""
    a = a2.sqrt_()
    k = torch.sub(log_scale, a).exp_()
    return k, torch.div(k, a, out=a).masked_fill_(a > k / COINCIDENT, 0)


def _matern32(a2: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """k = (1 + a) exp(-a), a = sqrt(3) r; dk / d(a^2) = -exp(-a) / 2."""
    a = a2.sqrt_()
    e = torch.sub(log_scale, a).exp_()
    return torch.addcmul(e, a, e, out=a), e


def _matern52(a2: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """k = (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r; dk / d(a^2) = -(1 + a) exp(-a) / 6."""
    a = a2.sqrt_()
    e = torch.sub(log_scale, a).exp_()
    first = torch.addcmul(e, a, e)  # (1 + a) exp(-a)
    return torch.addcmul(first, a.square_(), e, value=1 / 3, out=e), first


PROFILES: dict[tuple[type[Kernel], float | None], Profile] = {
    (RBFKernel, None): Profile(_rbf, 1 / 2, -1.0),
    (MaternKernel, 0.5): Profile(_matern12, 1.0, -1 / 2),
    (MaternKernel, 1.5): Profile(_matern32, 3.0, -1 / 2),
    (MaternKernel, 2.5): Profile(_matern52, 5.0, -1 / 6),
}


class _StationaryParts(NamedTuple):
    profile: Profile
    lengthscale: Tensor  # (1, d) or (1, 1)
    scale: Tensor  # ()


def _stationary_parts(kernel: Kernel) -> _StationaryParts | None:
    """The parts of a plain scaled Matérn or RBF kernel; None for anything more elaborate."""
    if type(kernel) is not ScaleKernel:
        return None
    base = kernel.base_kernel
    profile = PROFILES.get((type(base), getattr(base, "nu", None)))
    if profile is None or any(k.active_dims is not None or k.batch_shape for k in (kernel, base)):
        return None
    return _StationaryParts(profile, base.lengthscale, kernel.outputscale)


class _Stationary(torch.autograd.Function):
    """profile(|x_i - z_j|^2) for scaled inputs x (n, d) and z (m, d).

    Backward: with E = g * dk / d(a^2), whose costly part is kept from the forward pass, and a^2 = |x_i - z_j|^2,

        g_x = 2 (rowsum(E) * x - E z),    g_z = 2 (colsum(E) * z - E^T x),    g_log_scale = sum(g * k);

    the row sums ride along in the products as a column of ones. If x is z, E + E^T does for both.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, log_scale: Tensor, profile: Profile, symmetric: bool) -> Tensor:
        a2 = _squared_distance(x, z)
        if symmetric:
            a2.fill_diagonal_(0)
        k, slope = profile.evaluate(a2, log_scale)
        ctx.save_for_backward(x, z, k, slope)
        ctx.slope, ctx.symmetric = profile.slope, symmetric
        return k

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None, None]:
        x, z, k, slope = ctx.saved_tensors
        E = g * slope  # (n, m)
        g_log_scale = torch.dot(g.reshape(-1), k.view(-1))
        if ctx.symmetric:
            return _pull(E + E.T, x, z, ctx.slope), None, g_log_scale, None, None
        g_x = _pull(E, x, z, ctx.slope) if ctx.needs_input_grad[0] else None
        g_z = _pull(E.T, z, x, ctx.slope) if ctx.needs_input_grad[1] else None
        return g_x, g_z, g_log_scale, None, None


def _pull(E: Tensor, x: Tensor, z: Tensor, slope: float) -> Tensor:
    """2 slope (rowsum(E) * x - E z), shape of x."""
    product = E @ torch.cat([z, z.new_ones(len(z), 1)], 1)  # E z and, last, rowsum(E)
    return (2 * slope) * (product[:, -1:] * x - product[:, :-1])


def _squared_distance(x: Tensor, z: Tensor) -> Tensor:
    """|x_i|^2 + |z_j|^2 - 2 x_i^T z_j, shape (n, m), as one product: [x, |x|^2, 1] [-2 z, 1, |z|^2]^T.

    In float64 whatever the model's precision: among near points far from the centre (|x| of a hundred
    lengthscales) the difference has lost all its digits in float32, and K_MM is then not even positive.
    """
    x_wide, z_wide = x.double(), z.double()
    left = torch.cat([x_wide, x_wide.square().sum(1, keepdim=True), torch.ones_like(x_wide[:, :1])], 1)
    right = torch.cat([-2 * z_wide, torch.ones_like(z_wide[:, :1]), z_wide.square().sum(1, keepdim=True)], 1)
    return (left @ right.T).to(x.dtype).clamp_(min=0)
