"""Factorising K_MM: one jitter policy, one helpful error, and the whitened projection of a batch."""

import warnings
from itertools import pairwise
from typing import Any, NamedTuple

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
    mean: Tensor  # (b,) = A^T m', zero without m'
    diagonal: Tensor  # (b,) = A_i^T diag(s^2) A_i, zero without s


def cholesky(K: Tensor, *, jitter: float | None = None, name: str = "kernel matrix") -> Tensor:
    """The lower factor Lam of K + jitter * scale * I, with jitter grown tenfold up to 0.1 where it must be.

    `jitter` None means 1e-4 in float32 and 1e-6 in float64. The scale is the mean of K's diagonal. Growing
    gives one `JitterWarning`; a matrix beyond help gives a `NotPositiveDefiniteError` saying what to try.

    >>> cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]), jitter=0.0)
    tensor([[2., 0.],
            [1., 2.]])
    """
    return _factor(K, jitter, name)[0]


def _factor(K: Tensor, jitter: float | None, name: str) -> tuple[Tensor, float]:
    """The factor, and the jitter it took."""
    steps = [JITTER[K.dtype] if jitter is None else jitter]
    scale = K.diagonal().mean()
    while True:
        added = steps[-1] * scale
        shifted = K.clone()
        shifted.diagonal().add_(added)
        Lam, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0 and bool(torch.isfinite(Lam.diagonal()).all()):
            break
        following = steps[-1] * JITTER_GROWTH or JITTER[K.dtype]
        if following > JITTER_LIMIT * (1 + 1e-9) or not bool(torch.isfinite(K).all()):
            raise NotPositiveDefiniteError(_hopeless(K, name, steps))
        steps.append(following)
    if len(steps) > 1:
        warnings.warn(
            f"The {name} ({len(K)} x {len(K)}, {K.dtype}) is not positive definite with the usual jitter: "
            f"tried {', '.join(f'{s:.0e}' for s in steps)} of its scale and added the last to its diagonal. Points "
            "that nearly coincide or very long lengthscales do this; fewer inducing points or float64 help.",
            JitterWarning,
            stacklevel=3,
        )
    return Lam, steps[-1]


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


def inverse_cholesky(K: Tensor, *, jitter: float | None = None, name: str = "kernel matrix") -> Tensor:
    """W = Lam^-1 for the factor Lam of K, with the jitter policy of `cholesky`; shape (M, M), lower triangular.

    W is made for `whiten`, which carries its gradient in a cheaper form (see `_InverseCholesky`); nothing else may be
    differentiated through it.
    """
    return _InverseCholesky.apply(K, jitter, name)


def whiten(W: Tensor, K: Tensor) -> Tensor:
    """A = W K = Lam^-1 K for K (M, b), differentiable in both."""
    return _Whiten.apply(W, K)


def unwhitened_weights(K: Tensor, m: Tensor, *, jitter: float | None = None, name: str = "kernel matrix") -> Tensor:
    """alpha = Lam^-T m for the factor Lam of K and m (M,): K_bM alpha is the whitened mean A^T m."""
    return _UnwhitenedWeights.apply(K, m, jitter, name)


def project(W: Tensor, K_Mb: Tensor, k_diag: Tensor, *, m: Tensor | None = None, s: Tensor | None = None) -> Projection:
    """The whitened projection of a batch and its sums over inducing points; variances are never negative."""
    A = whiten(W, K_Mb)  # (M, b)
    ones = torch.ones_like(W[0])
    mean, norms = _Sums.apply(A, m, torch.stack([ones, 0 * ones if s is None else s.square()]))
    return Projection(A, (k_diag - norms[0]).clamp_min(0), mean, norms[1])


# With Phi (lower triangle, halved diagonal) the factor of K moves by dLam = Lam Phi(W dK W^T), W = Lam^-1, so that
# dW = -Phi(W dK W^T) W. All three functions below rest on this; `_pull_back` is its transpose.


class _InverseCholesky(torch.autograd.Function):
    """K -> W = Lam^-1, Lam Lam^T = K + jitter.

    For A = W K_Mb with cotangent g_A,

        <g_A, dW K_Mb> = -<g_A A^T, Phi(W dK W^T)> = -<W^T Phi(g_A A^T) W, dK>.

    So `_Whiten` hands back P = Phi(g_A A^T), the lower half of one M x M x b product, instead of W's own cotangent
    g_A K_Mb^T. Contributions of several batches add up, and this backward makes of their sum -W^T P W.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, jitter: float | None, name: str) -> Tensor:
        Lam, ctx.jitter = _factor(K, jitter, name)
        W = triangular_inverse(Lam)
        ctx.save_for_backward(W)
        return W

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, P: Tensor) -> tuple[Tensor, None, None]:
        (W,) = ctx.saved_tensors
        return _pull_back(W, lower_matmul(P, W, lower=True), ctx.jitter), None, None


class _Whiten(torch.autograd.Function):
    """(W, K) -> A = W K. Backward: g_K = W^T g_A and, for W, P = Phi(g_A A^T) (see `_InverseCholesky`)."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, K: Tensor) -> Tensor:
        A = lower_matmul(W, K)
        ctx.save_for_backward(W, A)
        return A

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_A: Tensor) -> tuple[Tensor | None, Tensor | None]:
        W, A = ctx.saved_tensors
        P = None
        if ctx.needs_input_grad[0]:
            P = lower_of_product(g_A, A.T)
            P.diagonal().mul_(0.5)  # Phi
        return P, lower_transposed_matmul(W, g_A) if ctx.needs_input_grad[1] else None


class _UnwhitenedWeights(torch.autograd.Function):
    """(K, m) -> alpha = Lam^-T m, Lam Lam^T = K + jitter.

    With cotangent g and g_m = W g: <g, dW^T m> = -<m g_m^T, Phi(W dK W^T)>, so that K receives
    -W^T Phi(m g_m^T) W. The rows of Phi(u v^T) W are running sums, u_i (sum_{j <= i} v_j W_j - v_i W_i / 2), so that
    this first of the two products costs M^2.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, m: Tensor, jitter: float | None, name: str) -> Tensor:
        Lam, ctx.jitter = _factor(K, jitter, name)
        ctx.save_for_backward(Lam, m)
        return torch.linalg.solve_triangular(Lam.T, m[:, None], upper=True)[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        Lam, m = ctx.saved_tensors
        W = triangular_inverse(Lam)
        g_m = W @ g
        rows = g_m[:, None] * W
        Phi_W = rows.cumsum(0).sub_(rows, alpha=0.5).mul_(m[:, None])
        return _pull_back(W, Phi_W, ctx.jitter), g_m, None, None


def _pull_back(W: Tensor, Phi_W: Tensor, jitter: float) -> Tensor:
    """K's gradient -W^T Phi W, and what flows through the jitter, which follows K's scale.

    K is symmetric, so that only the symmetric part of its gradient matters; what comes back is not made symmetric.
    """
    g_K = lower_transposed_matmul(W, Phi_W).neg_()
    g_K.diagonal().add_(jitter / len(W) * g_K.diagonal().sum())
    return g_K


class _Sums(torch.autograd.Function):
    """(A, v, U) -> v^T A and U A^2 (of the entries) for A (M, b), v (M,) or None and U (r, M); shapes (b,) and (r, b).

    Backward: g_A = 2 (U^T g_U) * A + v g_v^T, built in place in one M x b matrix.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, v: Tensor | None, U: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(A, v, U)
        return A.new_zeros(A.shape[1]) if v is None else v @ A, U @ A.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_v: Tensor, g_U: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        A, v, U = ctx.saved_tensors
        g_A = (U.T @ (2 * g_U)).mul_(A)
        if v is not None:
            g_A.addr_(v, g_v)
        return (
            g_A,
            A @ g_v if ctx.needs_input_grad[1] else None,
            g_U @ A.square().T if ctx.needs_input_grad[2] else None,
        )


class LowerTransposedMatmul(torch.autograd.Function):
    """(L, X) -> L^T X for a lower triangular L. Backward: g_X = L g and the lower triangle of g_L = X g^T."""

    @staticmethod
    def forward(ctx: Any, L: Tensor, X: Tensor) -> Tensor:
        ctx.save_for_backward(L, X)
        return lower_transposed_matmul(L, X)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        L, X = ctx.saved_tensors
        return lower_of_product(X, g.T), lower_matmul(L, g)


def keep_freed_memory() -> None:
    """Let the C library keep large freed blocks for the next allocation instead of giving them back at once.

    A step allocates and frees the same few matrices over and over; getting each as fresh pages costs a tenth of its
    time. glibc raises its thresholds to the largest block it has seen freed (up to 32 MB), so one such block does it;
    elsewhere this does nothing.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


# --- products with triangles, by blocks of rows: what is known to be zero is not multiplied ---

BLOCKS = 4


def lower_matmul(L: Tensor, X: Tensor, *, lower: bool = False) -> Tensor:
    """L X for a lower triangular L (M, M) and X (M, b); with `lower`, X (M, M) is lower triangular too."""
    out = X.new_zeros(len(L), X.shape[1]) if lower else X.new_empty(len(L), X.shape[1])
    for start, end in _blocks(len(L)):
        columns = slice(end if lower else None)
        torch.mm(L[start:end, :end], X[:end, columns], out=out[start:end, columns])
    return out


def lower_transposed_matmul(L: Tensor, X: Tensor) -> Tensor:
    """L^T X for a lower triangular L (M, M) and X (M, b)."""
    out = X.new_empty(len(L), X.shape[1])
    for start, end in _blocks(len(L)):
        torch.mm(L[start:, start:end].T, X[start:], out=out[start:end])
    return out


def lower_of_product(X: Tensor, Y: Tensor) -> Tensor:
    """The lower triangle of X Y for X (M, b) and Y (b, M), zero above the diagonal."""
    out = X.new_zeros(len(X), len(X))
    for start, end in _blocks(len(X)):
        torch.mm(X[start:end], Y[:, :end], out=out[start:end, :end])
        out[start:end, start:end].tril_()
    return out


def triangular_inverse(L: Tensor, out: Tensor | None = None) -> Tensor:
    """L^-1 for a lower triangular L, by halves: [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]."""
    out = torch.zeros_like(L) if out is None else out
    if len(L) <= 128:
        eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
        return out.copy_(torch.linalg.solve_triangular(L, eye, upper=False))
    half = len(L) // 2
    A_inverse = triangular_inverse(L[:half, :half], out[:half, :half])
    C_inverse = triangular_inverse(L[half:, half:], out[half:, half:])
    torch.mm(C_inverse, L[half:, :half] @ A_inverse, out=out[half:, :half]).neg_()
    return out


def _blocks(M: int) -> list[tuple[int, int]]:
    edges = [i * M // BLOCKS for i in range(BLOCKS + 1)]
    return [(start, end) for start, end in pairwise(edges) if end > start]
