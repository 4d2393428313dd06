"""Kernels by name, and the two evaluations the rest of the library needs of any GPyTorch kernel.

`covariance(kernel, x, z)` and `prior_variance(kernel, x)` are the only places where a kernel is called.
A scaled Matérn or RBF takes a direct path with a hand-written backward; every other kernel, sums and
products included, goes through GPyTorch.
"""

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
from torch import Tensor

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
    """A kernel on d inputs: a GPyTorch kernel as it is, or a scaled kernel by its name.

    Named kernels have one lengthscale per input and a scale sigma_k^2 of one.

    >>> make_kernel("matern52", 3).base_kernel.lengthscale.shape
    torch.Size([1, 3])
    """
    if isinstance(kernel, Kernel):
        return kernel
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
        return kernel(x, z).to_dense()
    centre = z.detach().mean(0)  # |x|^2 + |z|^2 - 2 x'z loses digits far from the origin
    z_scaled = (z - centre) / parts.lengthscale
    x_scaled = z_scaled if x is z else (x - centre) / parts.lengthscale
    return parts.scale * _Stationary.apply(x_scaled, z_scaled, parts.profile, x is z)


def prior_variance(kernel: Kernel, x: Tensor) -> Tensor:
    """k(x_i, x_i), shape (n,)."""
    parts = _stationary_parts(kernel)
    return kernel(x, diag=True) if parts is None else parts.scale.expand(len(x))


# --- stationary kernels: k(x, z) = scale * profile(r^2), r^2 = |(x - z) / lengthscale|^2 ---

Profile = Callable[[Tensor], tuple[Tensor, Tensor]]


def _rbf(r2: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-r^2 / 2) and its derivative in r^2."""
    k = torch.exp(-0.5 * r2)
    return k, -0.5 * k


def _matern12(r2: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-r) and its derivative in r^2, which is infinite at r = 0: there, by symmetry, 0 stands for it."""
    r = r2.sqrt()
    k = torch.exp(-r)
    return k, torch.where(r > COINCIDENT, -0.5 * k / r, torch.zeros_like(r))


def _matern32(r2: Tensor) -> tuple[Tensor, Tensor]:
    """(1 + a) exp(-a), a = sqrt(3) r, and its derivative in r^2, -3/2 exp(-a)."""
    a = (3 * r2).sqrt()
    e = torch.exp(-a)
    return (1 + a) * e, -1.5 * e


def _matern52(r2: Tensor) -> tuple[Tensor, Tensor]:
    """(1 + a + a^2 / 3) exp(-a), a = sqrt(5) r, and its derivative in r^2, -5/6 (1 + a) exp(-a)."""
    a = (5 * r2).sqrt()
    e = torch.exp(-a)
    return (1 + a + a.square() / 3) * e, -5 / 6 * (1 + a) * e


PROFILES: dict[tuple[type[Kernel], float | None], Profile] = {
    (RBFKernel, None): _rbf,
    (MaternKernel, 0.5): _matern12,
    (MaternKernel, 1.5): _matern32,
    (MaternKernel, 2.5): _matern52,
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


def _squared_distance(x: Tensor, z: Tensor) -> Tensor:
    """|x_i - z_j|^2 = |x_i|^2 + |z_j|^2 - 2 x_i^T z_j, shape (n, m).

    Call it in float64 whatever the model's precision: among near points far from the centre (|x| of a hundred
    lengthscales) the difference has lost all its digits in float32, and K_MM is then not even positive.
    """
    return torch.addmm(z.square().sum(1), x, z.T, alpha=-2).add_(x.square().sum(1)[:, None]).clamp_(min=0)


class _Stationary(torch.autograd.Function):
    """profile(|x_i - z_j|^2) for scaled inputs x (n, d) and z (m, d).

    Backward: with E = g * dk/dr^2 kept from the forward pass and r^2_ij = |x_i - z_j|^2,

        g_x = 2 (rowsum(E) * x - E z),    g_z = 2 (colsum(E) * z - E^T x).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor, profile: Profile, symmetric: bool) -> Tensor:
        r2 = _squared_distance(x.double(), z.double()).to(x.dtype)
        if symmetric:
            r2.fill_diagonal_(0)
        k, slope = profile(r2)
        ctx.save_for_backward(x, z, slope)
        return k

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, z, slope = ctx.saved_tensors
        E = g * slope  # (n, m)
        g_x = 2 * (E.sum(1)[:, None] * x - E @ z)
        g_z = 2 * (E.sum(0)[:, None] * z - E.T @ x)
        return g_x, g_z, None, None
