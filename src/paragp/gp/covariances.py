"""Forms of the whitened covariance S' of q(u') (last appendix of the paper).

A covariance answers two questions: `variance(batch)`, the part A_i^T S' A_i of the function variance (Eqn fvar),
and `kl()`, its share of the regulariser. `factor()` is a square root L with L L^T = S'.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from paragp.gp.linalg import LowerTransposedMatmul, Projection

INITIAL_SCALE = 1.0  # assumed: S' starts at the prior's I, as in GPyTorch, where the paper's runs were made


class Covariance(nn.Module, ABC):
    """A parametric S' = L L^T of size M x M."""

    @abstractmethod
    def factor(self) -> Tensor:
        """A square root L of S', shape (M, M)."""

    def diagonal_root(self) -> Tensor | None:
        """The square root s of a diagonal S' = diag(s^2), shape (M,); None for other forms."""
        return None

    @abstractmethod
    def variance(self, batch: Projection) -> Tensor:
        """A_i^T S' A_i for the columns of A (M, b), a sum of squares and never negative; shape (b,)."""

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(N(0, S') || N(0, I)), a scalar."""


class Zero(Covariance):
    """S' = 0: q(u) is a point (MAP and PPGPR-delta). Its divergent share of the KL is dropped."""

    zero: Tensor

    def __init__(self, M: int) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(()), persistent=False)  # carries dtype and device
        self.M = M

    def factor(self) -> Tensor:
        return self.zero.new_zeros(self.M, self.M)

    def variance(self, batch: Projection) -> Tensor:
        return torch.zeros_like(batch.ktilde)

    def kl(self) -> Tensor:
        return self.zero


class Diagonal(Covariance):
    """S' = diag(s^2): the mean-field form (PPGPR-MF and PPGPR-MFD).

    >>> Diagonal(2).kl()
    tensor(0., grad_fn=<SubBackward0>)
    """

    def __init__(self, M: int) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.full((M,), INITIAL_SCALE))  # (M,)

    def factor(self) -> Tensor:
        return self.s.diag()

    def diagonal_root(self) -> Tensor:
        return self.s

    def variance(self, batch: Projection) -> Tensor:
        return batch.diagonal

    def kl(self) -> Tensor:
        return 0.5 * (self.s.square().sum() - len(self.s)) - _log_abs(self.s).sum()


class Dense(Covariance):
    """S' = L L^T with a lower triangular L (SVGP, OD-SVGP, VFITC, gamma-Robust, PPGPR-Chol).

    >>> Dense(2).kl()
    tensor(0., grad_fn=<SubBackward0>)
    """

    def __init__(self, M: int) -> None:
        super().__init__()
        self.L = nn.Parameter(INITIAL_SCALE * torch.eye(M))  # (M, M); what stands above the diagonal is unused

    def factor(self) -> Tensor:
        return self.L.tril()

    def variance(self, batch: Projection) -> Tensor:
        return LowerTransposedMatmul.apply(self.factor(), batch.A).square().sum(0)

    def kl(self) -> Tensor:
        L = self.factor()
        return 0.5 * (L.square().sum() - len(L)) - _log_abs(L.diagonal()).sum()


def _log_abs(scale: Tensor) -> Tensor:
    """log |scale|, finite at zero: S' depends on the square alone, so a sign change means nothing."""
    return scale.abs().clamp_min(torch.finfo(scale.dtype).tiny).log()
