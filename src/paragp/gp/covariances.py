"""Forms of the whitened covariance S' of q(u') (last appendix of the paper).

A covariance answers two questions: `moments(...)` of a batch, with the part A_i^T S' A_i of the function variance
(Eqn fvar), and `kl()`, its share of the regulariser. `factor()` is a square root L with L L^T = S'.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from paragp.gp.linalg import dense_form, dense_moments, moments, rooted_moments
from paragp.gp.moments import Moments

INITIAL_SCALE = 1.0  # assumed: S' starts at the prior's I, as in GPyTorch, where the paper's runs were made


class Covariance(nn.Module, ABC):
    """A parametric S' = L L^T of size M x M."""

    @abstractmethod
    def factor(self) -> Tensor:
        """A square root L of S', shape (M, M)."""

    def form(self, W: Tensor) -> Tensor | None:
        """What `moments` needs beside W = Lam^-1, the same for all batches."""
        return None

    @abstractmethod
    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        """Mean K_bM w (zero without w), ktilde and svar of a batch; E = form(W). Variances are never negative."""

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

    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        return moments(W, K_Mb, k_diag, w=w)

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

    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        return moments(W, K_Mb, k_diag, w=w, s=self.s)

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

    def form(self, W: Tensor) -> Tensor | None:
        """W^T (S' - I) for training, where it saves products; None for prediction, where squares are more accurate."""
        return dense_form(W, self.factor()) if torch.is_grad_enabled() else None

    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        if E is not None:
            return dense_moments(W, E, K_Mb, k_diag, w=w)
        return rooted_moments(W, self.factor(), K_Mb, k_diag, w=w)

    def kl(self) -> Tensor:
        L = self.factor()
        return 0.5 * (L.square().sum() - len(L)) - _log_abs(L.diagonal()).sum()


def _log_abs(scale: Tensor) -> Tensor:
    """log |scale|, finite at zero: S' depends on the square alone, so a sign change means nothing."""
    return scale.abs().clamp_min(torch.finfo(scale.dtype).tiny).log()
