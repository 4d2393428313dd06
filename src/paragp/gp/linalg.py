"""Factorising K_MM: one jitter policy, one helpful error, and the whitened projection of a batch."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

# Jitter is relative to the kernel's scale (the mean of the diagonal) and goes on K_MM alone: on the data's
# diagonal it would inflate small predictive variances.
JITTER = {torch.float32: 1e-4, torch.float64: 1e-6}
JITTER_GROWTH = 10.0
JITTER_LIMIT = 1e-1


class JitterWarning(RuntimeWarning):
    """More than the usual jitter had to be added to a kernel matrix."""


class NotPositiveDefiniteError(ValueError):
    """A kernel matrix that no allowed jitter makes positive definite."""


class Projection(NamedTuple):
    """A batch in whitened coordinates."""

    A: Tensor  # (M, b) = Lam^-1 K_Mb
    ktilde: Tensor  # (b,) = k_ii - |A_i|^2


def cholesky(K: Tensor, *, jitter: float | None = None, name: str = "kernel matrix") -> Tensor:
    """The lower factor Lam of K + jitter * scale * I, with jitter grown tenfold up to 0.1 where it must be.

    `jitter` None means 1e-4 in float32 and 1e-6 in float64. The scale is the mean of K's diagonal. Growing
    gives one `JitterWarning`; a matrix beyond help gives a `NotPositiveDefiniteError` saying what to try.

    >>> cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]), jitter=0.0)
    tensor([[2., 0.],
            [1., 2.]])
    """
    first = JITTER[K.dtype] if jitter is None else jitter
    scale = K.diagonal().mean()
    steps = [first]
    while True:
        added = steps[-1] * scale
        Lam, info = torch.linalg.cholesky_ex(K + added * torch.eye(len(K), dtype=K.dtype, device=K.device))
        if int(info) == 0 and bool(torch.isfinite(Lam.diagonal()).all()):
            break
        following = steps[-1] * JITTER_GROWTH or JITTER[K.dtype]
        if following > JITTER_LIMIT * (1 + 1e-9) or not bool(torch.isfinite(K).all()):
            raise NotPositiveDefiniteError(_hopeless(K, name, steps))
        steps.append(following)
    if len(steps) > 1:
        warnings.warn(
            f"The {name} ({len(K)} x {len(K)}, {K.dtype}) is not positive definite with the usual jitter: "
            f"tried {', '.join(f'{s:.0e}' for s in steps)} of its scale and added {float(added.detach()):.1e} "
            "to its diagonal. Inducing points that nearly coincide or very long lengthscales do this; fewer "
            "inducing points or float64 help.",
            JitterWarning,
            stacklevel=2,
        )
    return Lam


def _hopeless(K: Tensor, name: str, steps: list[float]) -> str:
    """Say why K has no Cholesky factor, in the terms of whoever chose the kernel."""
    head = f"The {name} ({len(K)} x {len(K)}, {K.dtype}) cannot be factorised: "
    if not bool(torch.isfinite(K).all()):
        bad = int((~torch.isfinite(K)).sum())
        return head + (
            f"{bad} of its entries are NaN or infinite. Check the inputs for NaN and the kernel's parameters "
            "for values that overflow; a lower learning rate keeps them in range."
        )
    smallest = float(torch.linalg.eigvalsh(K.detach().double())[0])
    return head + (
        f"its smallest eigenvalue is {smallest:.2e} and jitter from {steps[0]:.0e} to {steps[-1]:.0e} of its "
        "scale did not mend it. Try float64, fewer or distinct inducing points, shorter lengthscales, or "
        "check that the kernel is a valid (positive semi-definite) one."
    )


def whiten(Lam: Tensor, K: Tensor) -> Tensor:
    """Lam^-1 K for K (M, b) or (M,), by forward substitution."""
    if K.ndim == 1:
        return whiten(Lam, K[:, None])[:, 0]
    return torch.linalg.solve_triangular(Lam, K, upper=False)


def unwhiten(Lam: Tensor, v: Tensor) -> Tensor:
    """Lam^-T v for v (M,): the weights alpha with which K_bM alpha is a whitened mean A^T v."""
    return torch.linalg.solve_triangular(Lam.T, v[:, None], upper=True)[:, 0]


def project(Lam: Tensor, K_Mb: Tensor, k_diag: Tensor) -> Projection:
    """The whitened projection of a batch: A = Lam^-1 K_Mb and ktilde = k_ii - |A_i|^2, never negative."""
    A = whiten(Lam, K_Mb)  # (M, b)
    return Projection(A, (k_diag - A.square().sum(0)).clamp_min(0))
