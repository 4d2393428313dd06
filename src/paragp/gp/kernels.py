"""Kernels by name, and the two evaluations the rest of the library needs of any GPyTorch kernel.

`covariance(kernel, x, z)` and `prior_variance(kernel, x)` are the only places where a kernel is called.
A scaled Matérn, RBF or rational quadratic takes a direct path with a hand-written backward; every other kernel, sums
and products included, goes through GPyTorch.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
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

from paragp.gp.products import product

COINCIDENT = 1e-5  # distance in lengthscales below which Matérn 1/2 has no gradient: its slope would be all rounding
BLOCK_ENTRIES = 500_000  # of a kernel matrix, evaluated together: they stay in the processor's cache
ROUNDING = 4e-6  # error of a squared distance, in squared lengthscales, above which it is computed in float64
LOG2_E = math.log2(math.e)
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
KERNELS["auto"] = KERNELS["matern52"]  # unless training chooses among several


def make_kernel(kernel: str | Kernel, d: int) -> Kernel:
    """A kernel on d inputs: a copy of a GPyTorch kernel, or a scaled kernel by its name.

    Named kernels have one lengthscale per input and a scale sigma_k^2 of one.

    >>> make_kernel("matern52", 3).base_kernel.lengthscale.shape
    torch.Size([1, 3])
    """
    if isinstance(kernel, Kernel):
        return _settled(copy.deepcopy(kernel), d)  # a model owns what it trains
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, or a gpytorch.kernels.Kernel; got {kernel!r}.")
    scaled = ScaleKernel(KERNELS[kernel](d))
    scaled.outputscale = torch.tensor(1.0)
    return scaled


@torch.no_grad()
def _settled(kernel: Kernel, d: int) -> Kernel:
    """The kernel after a first call: some draw what they are made of only then (RFFKernel), and must not draw again.

    Always the same: what is drawn belongs to the kernel, as its form does, and not to a training's randomness.
    """
    x = torch.zeros(1, d).to(next(kernel.parameters(), torch.empty(0)))
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        kernel(x, x).to_dense()
    return kernel


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
    return _Stationary.apply(*parts.scaled(x, z), parts.scale.log(), parts.exponent, parts.profile, x is z)


def covariance_matvec(kernel: Kernel, x: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
    """k(x, z) alpha for weights alpha (m,), summed in their precision; shape (n,)."""
    parts = _stationary_parts(kernel)
    if parts is None:
        return (covariance(kernel, x, z).to(alpha) @ alpha).to(x)
    return _StationaryMatvec.apply(*parts.scaled(x, z), parts.scale.log(), parts.exponent, alpha, parts.profile)


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


def lengthscales(kernel: Kernel, d: int) -> np.ndarray | None:
    """One lengthscale per input, shape (d,); None for a kernel that does not have one set of them."""
    base = kernel.base_kernel if isinstance(kernel, ScaleKernel) else kernel
    if not base.has_lengthscale or any(k.active_dims is not None or k.batch_shape for k in (kernel, base)):
        return None
    return np.broadcast_to(base.lengthscale.detach().double().numpy(force=True).reshape(-1), (d,))


def evened(kernel: Kernel, d: int) -> Kernel | None:
    """A copy whose lengthscales are where they start, the same for all inputs; None for a kernel made otherwise."""
    if _stationary_parts(kernel) is None or lengthscales(kernel, d) is None:
        return None
    even, start = copy.deepcopy(kernel), initial_lengthscale(d)
    if not even.base_kernel.raw_lengthscale_constraint.check(torch.tensor(start)):
        return None
    even.base_kernel.lengthscale = start
    return even


def _in_float64(kernel: Kernel, evaluate: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """A GPyTorch kernel evaluated in float64 and rounded: its distances lose their digits as ours would."""
    if all(t.dtype == torch.float64 for t in (*kernel.parameters(), *kernel.buffers(), *inputs)):
        return evaluate(kernel, *inputs)

    class Evaluation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # Its values are swapped, which other threads that predict must not see; one trains alone.
            self.kernel = kernel if torch.is_grad_enabled() else copy.deepcopy(kernel)

        def forward(self, *wide: Tensor) -> Tensor:
            return evaluate(self.kernel, *wide)

    wide_values = {
        f"kernel.{name}": value.double() if value.is_floating_point() else value
        for name, value in (*kernel.named_parameters(), *kernel.named_buffers())
    }
    wide = functional_call(Evaluation(), wide_values, tuple(t.double() for t in inputs))
    return wide.to(inputs[0].dtype)


# --- stationary kernels: k(x, z) = scale * profile(a^2), a^2 = factor * |(x - z) / lengthscale|^2 ---


class Profile(NamedTuple):
    """A stationary kernel as a function of the scaled squared distance a^2.

    `evaluate(a2, log_scale, exponent, k, steep)` overwrites a2, fills k, and fills steep, if there is one, so that
    slope * steep = dk / d(a^2). The exponent, which log k is linear in, is the rational quadratic's alone.
    """

    evaluate: Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor | None], None]
    factor: float  # a^2 = factor * r^2, over the exponent if there is one
    slope: float
    smooth: bool = True  # at a = 0; where it is not, an error of 1e-6 in a^2 is one of 1e-3 in k


def _falling(log_scale: Tensor, a: Tensor, *, out: Tensor, rate: float = 1.0) -> Tensor:
    """exp(log_scale - rate * a), as a power of two.

    The logarithm's base rides along in the sum. Where torch leaves exp to a library that is slow on processors of other
    makers than its own, exp2 takes a quarter of the time, and elsewhere hardly more.
    """
    return torch.add(log_scale * LOG2_E, a, alpha=-rate * LOG2_E, out=out).exp2_()


def _rbf(a2: Tensor, log_scale: Tensor, exponent: Tensor | None, k: Tensor, steep: Tensor | None) -> None:
    """k = exp(-a^2), a^2 = r^2 / 2; dk / d(a^2) = -k."""
    _falling(log_scale, a2, out=k)
    if steep is not None:
        steep.copy_(k)


def _matern12(a2: Tensor, log_scale: Tensor, exponent: Tensor | None, k: Tensor, steep: Tensor | None) -> None:
    """k = exp(-a), a = r; dk / d(a^2) = -k / (2 a), infinite at a = 0: there, by symmetry, 0 stands for it."""
    a = a2.sqrt_()
    _falling(log_scale, a, out=k)
    if steep is not None:
        torch.div(k, a, out=steep).masked_fill_(a < COINCIDENT, 0)


def _matern32(a2: Tensor, log_scale: Tensor, exponent: Tensor | None, k: Tensor, steep: Tensor | None) -> None:
    """k = (1 + a) exp(-a), a = sqrt(3) r; dk / d(a^2) = -exp(-a) / 2."""
    a = a2.sqrt_()
    e = _falling(log_scale, a, out=k if steep is None else steep)
    torch.addcmul(e, a, e, out=k)


def _matern52(a2: Tensor, log_scale: Tensor, exponent: Tensor | None, k: Tensor, steep: Tensor | None) -> None:
    """k = (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r; dk / d(a^2) = -(1 + a) exp(-a) / 6."""
    if steep is None:
        a = torch.sqrt(a2, out=k)
        polynomial = torch.add(a, a2, alpha=1 / 3, out=a2)
        e = _falling(log_scale, a, out=k)
        torch.addcmul(e, polynomial, e, out=k)
        return
    a = a2.sqrt_()
    e = _falling(log_scale, a, out=torch.empty_like(a))
    torch.addcmul(e, a, e, out=steep)  # (1 + a) exp(-a)
    torch.addcmul(steep, a.square_(), e, value=1 / 3, out=k)


def _rq(a2: Tensor, log_scale: Tensor, exponent: Tensor | None, k: Tensor, steep: Tensor | None) -> None:
    """k = (1 + a^2)^-exponent, a^2 = r^2 / (2 exponent); dk / d(a^2) = -exponent k / (1 + a^2)."""
    assert exponent is not None
    _falling(log_scale, torch.log1p(a2, out=k), rate=float(exponent), out=k)
    if steep is not None:
        torch.div(k, a2.add_(1), out=steep).mul_(exponent)


PROFILES: dict[tuple[type[Kernel], float | None], Profile] = {
    (RBFKernel, None): Profile(_rbf, 1 / 2, -1.0),
    (RQKernel, None): Profile(_rq, 1 / 2, -1.0),
    (MaternKernel, 0.5): Profile(_matern12, 1.0, -1 / 2, smooth=False),
    (MaternKernel, 1.5): Profile(_matern32, 3.0, -1 / 2),
    (MaternKernel, 2.5): Profile(_matern52, 5.0, -1 / 6),
}


class _StationaryParts(NamedTuple):
    profile: Profile
    lengthscale: Tensor  # (1, d) or (1, 1)
    scale: Tensor  # ()
    exponent: Tensor | None  # (), alpha of a rational quadratic

    def scaled(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs whose squared distance is a^2, centred: |x|^2 + |z|^2 - 2 x^T z loses digits far from the origin.

        The centre is, in each input, the mean that is nearer to zero: a row that is far out must not move the others.
        """
        of_x, of_z = x.detach().mean(0), z.detach().mean(0)
        centre = torch.where(of_x.abs() < of_z.abs(), of_x, of_z)
        unit = math.sqrt(self.profile.factor) / self.lengthscale
        if self.exponent is not None:
            unit = unit / self.exponent.sqrt()
        z_scaled = (z - centre) * unit
        return z_scaled if x is z else (x - centre) * unit, z_scaled


def _stationary_parts(kernel: Kernel) -> _StationaryParts | None:
    """The parts of a plain scaled Matérn, RBF or rational quadratic kernel; None for anything more elaborate."""
    if type(kernel) is not ScaleKernel:
        return None
    base = kernel.base_kernel
    profile = PROFILES.get((type(base), getattr(base, "nu", None)))
    if profile is None or any(k.active_dims is not None or k.batch_shape for k in (kernel, base)):
        return None
    exponent = base.alpha.reshape(()) if isinstance(base, RQKernel) else None
    return _StationaryParts(profile, base.lengthscale, kernel.outputscale, exponent)


def _evaluate(
    x: Tensor,
    z: Tensor,
    log_scale: Tensor,
    exponent: Tensor | None,
    profile: Profile,
    symmetric: bool,
    steep_too: bool,
) -> tuple[Tensor, Tensor | None]:
    """k and, if wanted, `steep` for scaled inputs x (n, d) and z (m, d), by blocks of rows that stay in cache;
    shapes (n, m)."""
    left, right = _distance_factors(x, z, profile)
    k = x.new_empty(len(x), len(z))
    steep = torch.empty_like(k) if steep_too else None
    for rows in _row_blocks(len(x), len(z)):
        a2 = _squared_distances(left[rows], right, x.dtype)
        if symmetric:
            a2.diagonal(offset=rows.start).zero_()
        profile.evaluate(a2, log_scale, exponent, k[rows], None if steep is None else steep[rows])
    return k, steep


def _distance_factors(x: Tensor, z: Tensor, profile: Profile) -> tuple[Tensor, Tensor]:
    """[x, |x|^2, 1] (n, d + 2) and [-2 z, 1, |z|^2]^T (d + 2, m), whose product is |x_i - z_j|^2.

    They are in float64 unless all points are near the centre: among near points far from it (|x| of a hundred
    lengthscales) float32 loses every digit, and K_MM is then not even positive.
    """
    x2, z2 = (t.double().square().sum(1, keepdim=True) for t in (x, z))
    rounding = torch.finfo(x.dtype).eps * float(x2.max() + z2.max())
    precision = x.dtype if profile.smooth and rounding < ROUNDING else torch.float64
    left = torch.cat([x, x2, torch.ones_like(x2)], 1).to(precision)
    return left, torch.cat([-2 * z, torch.ones_like(z2), z2], 1).to(precision).T


def _squared_distances(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    return product(left, right).to(dtype).clamp_(min=0)


def _row_blocks(n: int, m: int) -> list[slice]:
    """The rows of an (n, m) matrix in blocks that stay in cache."""
    size = max(1, BLOCK_ENTRIES // m)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class _Stationary(torch.autograd.Function):
    """k(x_i, z_j) for scaled inputs x (n, d) and z (m, d).

    Backward: with E = g * dk / d(a^2), whose costly part is kept from the forward pass, and a^2 = |x_i - z_j|^2,

        g_x = 2 (rowsum(E) * x - E z),    g_z = 2 (colsum(E) * z - E^T x),    g_log_scale = sum(g * k);

    the row sums ride along in the products as a column of ones. For an exponent it is sum(g * dk / d exponent) at a^2,
    with log k linear in it: dk / d exponent = k (log k - log_scale) / exponent.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        z: Tensor,
        log_scale: Tensor,
        exponent: Tensor | None,
        profile: Profile,
        symmetric: bool,
    ) -> Tensor:
        k, steep = _evaluate(x, z, log_scale, exponent, profile, symmetric, any(ctx.needs_input_grad))
        ctx.save_for_backward(x, z, log_scale, exponent, k, steep)
        ctx.slope = profile.slope
        return k

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None, None, None]:
        x, z, log_scale, exponent, k, steep = ctx.saved_tensors
        x_one, z_one = _with_ones(x), _with_ones(z)
        E_z, E_x, g_log_scale = torch.empty_like(x_one), torch.zeros_like(z_one), torch.zeros_like(g[0, 0])
        for rows in _row_blocks(*g.shape):
            E = g[rows] * steep[rows]
            product(E, z_one, out=E_z[rows])
            E_x.addmm_(E.T, x_one[rows])
            g_log_scale += torch.dot(g[rows].reshape(-1), k[rows].reshape(-1))
        g_exponent = None if exponent is None else (g * _by_exponent(k, log_scale, exponent)).sum()
        return 2 * ctx.slope * _moved(x, E_z), 2 * ctx.slope * _moved(z, E_x), g_log_scale, g_exponent, None, None


class _StationaryMatvec(torch.autograd.Function):
    """sum_j k(x_i, z_j) alpha_j for scaled inputs x (n, d), z (m, d) and weights alpha (m,); shape (n,).

    Here g_K = g alpha^T, so E = diag(g) dk/d(a^2) diag(alpha) and no (n, m) matrix but those of the forward pass is
    needed: the weights go onto the thin factors of the products.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor, log_scale: Tensor, exponent: Tensor | None, alpha: Tensor, profile: Profile
    ) -> Tensor:
        if not any(ctx.needs_input_grad):
            return _matvec(x, z, log_scale, exponent, alpha, profile)
        k, steep = _evaluate(x, z, log_scale, exponent, profile, False, True)
        out = k @ alpha
        ctx.save_for_backward(x, z, log_scale, exponent, alpha, k, steep, out)
        ctx.slope = profile.slope
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None, Tensor, None]:
        x, z, log_scale, exponent, alpha, k, steep, out = ctx.saved_tensors
        g_x = None
        if ctx.needs_input_grad[0]:
            g_x = 2 * ctx.slope * _moved(x, g[:, None] * product(steep, alpha[:, None] * _with_ones(z)))
        g_z = 2 * ctx.slope * _moved(z, alpha[:, None] * (steep.T @ (g[:, None] * _with_ones(x))))
        g_exponent = None if exponent is None else g @ (_by_exponent(k, log_scale, exponent) @ alpha)
        return g_x, g_z, g @ out, g_exponent, g @ k, None


def _by_exponent(k: Tensor, log_scale: Tensor, exponent: Tensor) -> Tensor:
    """dk / d exponent where a^2 stays."""
    return k * (k.clamp_min(torch.finfo(k.dtype).tiny).log() - log_scale) / exponent


def _matvec(
    x: Tensor, z: Tensor, log_scale: Tensor, exponent: Tensor | None, alpha: Tensor, profile: Profile
) -> Tensor:
    """The same where no gradient is wanted, and no matrix kept: each block is used while it is in cache."""
    left, right = _distance_factors(x, z, profile)
    blocks, out = _row_blocks(len(x), len(z)), torch.empty_like(x[:, 0])
    k = x.new_empty(blocks[0].stop, len(z))
    for rows in blocks:
        n = rows.stop - rows.start
        profile.evaluate(_squared_distances(left[rows], right, x.dtype), log_scale, exponent, k[:n], None)
        out[rows] = k[:n].to(alpha) @ alpha
    return out


def _with_ones(z: Tensor) -> Tensor:
    return torch.cat([z, z.new_ones(len(z), 1)], 1)


def _moved(x: Tensor, product: Tensor) -> Tensor:
    """rowsum(E) * x - E z, from x (n, d) and the product E [z, 1] (n, d + 1)."""
    return product[:, -1:] * x - product[:, :-1]
