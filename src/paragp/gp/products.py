"""Products of matrices: by the library that is fast on this processor, and without what is known to be zero.

None of these functions has a gradient: they are what the hand-written ones in `linalg` and `kernels` are made of.
"""

import math
import platform
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

WORTH_ONEDNN = 2e6  # multiplications of a product: below, what a call costs counts
RUN = 128  # terms that oneDNN adds up one after the other: of longer sums it rounds off more than MKL does


def product(X: Tensor, Y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """X Y for X (n, k) and Y (k, m), written to `out` if there is one.

    torch multiplies by MKL, which takes older instructions where the processor is not Intel's (docs/speed.md). On AMD's
    the other library that torch brings, oneDNN, does large products in single precision in half the time.

    >>> product(torch.eye(2), torch.ones(2, 1))
    tensor([[1.],
            [1.]])
    """
    large = len(X) * X.shape[1] * Y.shape[1] >= WORTH_ONEDNN
    single = X.dtype == Y.dtype == torch.float32 and X.device.type == "cpu"
    differentiated = torch.is_grad_enabled() and (X.requires_grad or Y.requires_grad)
    if differentiated or not (large and single and onednn_is_faster()):
        return torch.mm(X, Y, out=out)
    runs = math.ceil(X.shape[1] / RUN)
    edges = [i * X.shape[1] // runs for i in range(runs + 1)]
    first, *others = (slice(start, end) for start, end in pairwise(edges))
    found = _by_onednn(X[:, first], Y[first])
    for terms in others:
        found.add_(_by_onednn(X[:, terms], Y[terms]))
    return found if out is None else out.copy_(found)


def _by_onednn(X: Tensor, Y: Tensor) -> Tensor:
    Y = Y if Y.is_contiguous() or Y.T.is_contiguous() else Y.contiguous()  # for a part of a matrix it has no fast way
    found: Tensor = torch.ops.mkldnn._linear_pointwise(X, Y.T, None, "none", [], "")
    return found


@cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor, and torch was built with oneDNN."""
    try:
        name = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        name = platform.processor()
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return there and "AuthenticAMD" in name


# --- by blocks of rows: what is known to be zero is not multiplied, what is used once stays in cache ---

LARGE = 1000  # rows of a triangle, from which on its zeros are worth leaving out of products
BLOCKS = 5


def lower_matmul(L: Tensor, X: Tensor, *, lower: bool = False) -> Tensor:
    """L X for a lower triangular L (M, M) and X (M, b); with `lower`, X (M, M) is lower triangular too."""
    out = X.new_zeros(len(L), X.shape[1]) if lower else X.new_empty(len(L), X.shape[1])
    for start, end in blocks(len(L)):
        columns = slice(end if lower else None)
        product(L[start:end, :end], X[:end, columns], out=out[start:end, columns])
    return out


def lower_transposed_matmul(L: Tensor, X: Tensor) -> Tensor:
    """L^T X for a lower triangular L (M, M) and X (M, b)."""
    out = X.new_empty(len(L), X.shape[1])
    for start, end in blocks(len(L)):
        product(L[start:, start:end].T, X[start:], out=out[start:end])
    return out


def lower_of_product(X: Tensor, Y: Tensor, *, scale: Tensor | None = None, triangular: bool = False) -> Tensor:
    """The lower triangle of X diag(scale) Y for X (M, b) and Y (b, M), zero above; `triangular`: X is lower too."""
    out = X.new_zeros(len(X), len(X))
    for start, end in blocks(len(X)):
        inner = slice(end if triangular else None)
        left = X[start:end, inner] if scale is None else X[start:end, inner] * scale[inner]
        product(left, Y[inner, :end], out=out[start:end, :end])
        out[start:end, start:end].tril_()
    return out


def Phi_of_product(X: Tensor, Y: Tensor) -> Tensor:
    """Phi(X Y): the lower triangle with its diagonal halved."""
    out = lower_of_product(X, Y)
    out.diagonal().mul_(0.5)
    return out


def column_sums(U: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """U (X * Y) with the product of entries, for U (r, M) and X, Y (M, b)."""
    out = X.new_zeros(len(U), X.shape[1])
    for start, end in blocks(len(X)):
        out.addmm_(U[:, start:end], X[start:end] * Y[start:end])
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
    if half < LARGE:
        product(C_inverse, product(L[half:, :half], A_inverse), out=out[half:, :half]).neg_()
    else:  # half of either inverse is zero
        B_A_inverse = lower_transposed_matmul(A_inverse, L[half:, :half].T).T
        out[half:, :half] = lower_matmul(C_inverse, B_A_inverse).neg_()
    return out


def blocks(M: int) -> list[tuple[int, int]]:
    """Where blocks of the rows of an M x M triangle start and end."""
    edges = [i * M // BLOCKS for i in range(BLOCKS + 1)]
    return [(start, end) for start, end in pairwise(edges) if end > start]
