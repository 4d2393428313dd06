"""Forms of the whitened covariance S' of q(u') (last appendix of the paper), and one that is none: `LogLinear`.

A covariance answers two questions: `moments(...)` of a batch, with the part A_i^T S' A_i of the function variance
(Eqn fvar), and `kl()`, its share of the regulariser. `factor()` is a square root L with L L^T = S'.

Of order a the regulariser is Rényi's divergence in place of the KL, which it is for a -> 1: with T = a I + (1 - a) S'

    D_a(N(m', S') || N(0, I)) = a/2 m'^T T^-1 m' + log|T| / (2 (1 - a)) - log|S'| / 2,

infinite unless T is positive definite (for a > 1: unless S' < a / (a - 1)). `renyi(a)` is what is left for m' = 0, and
`precision(a)` is a T^-1.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from paragp.gp.linalg import dense_form, dense_moments, moments, rooted_moments, unwhiten, whiten
from paragp.gp.moments import Moments

INITIAL_LEVEL = 0.1  # of noise that depends on the row, as a variance in standardised units
LEADING = 256  # inducing points, at most, that tell a row among the others from one far from all
LARGEST_POWER = 64.0  # of the share that is unknown: beyond, it is zero but far from all inducing points
LARGEST_LOG = 20.0  # of it: beyond, the exponential may overflow
WITHIN = 0.999  # of the limit a / (a - 1) that a divergence of order a > 1 sets to S'
SHRINK = 0.98  # of L, until S' is within it
INITIAL_SCALE = 1.0  # assumed: S' starts at the prior's I, as in GPyTorch, where the paper's runs were made


class Covariance(nn.Module, ABC):
    """What gives svar, the part of the variance that is learned: of most rows a parametric S' = L L^T (`Rooted`)."""

    is_noise: bool = False  # whether svar is noise that depends on the row, and no uncertainty of the function

    @abstractmethod
    def joint(self, A: Tensor) -> Tensor:
        """The covariance that goes with svar, over the rows of a batch in whitened features A (M, n); (n, n)."""

    def form(self, W: Tensor) -> Tensor | None:
        """What `moments` needs beside W = Lam^-1, the same for all batches."""
        return None

    def rest(self, R: Tensor, ktilde: Tensor) -> Tensor:
        """What the prior leaves between rows, R = K - A^T A (n, n), with the diagonal `ktilde` of `moments`."""
        return R

    @abstractmethod
    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        """Mean K_bM w (zero without w), ktilde and svar of a batch; E = form(W). Variances are never negative."""

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(N(0, S') || N(0, I)), a scalar."""

    @abstractmethod
    def renyi(self, order: float) -> Tensor:
        """Rényi's divergence of that order, not 1, of N(0, S') from N(0, I), a scalar."""

    @abstractmethod
    def precision(self, order: float) -> Tensor:
        """a T^-1 of order a, (M, M): what Rényi's divergence gives the mean for a prior precision."""

    def confine(self, order: float) -> None:
        """Shrink S', in place, to where the divergence of that order above one is finite."""


class Rooted(Covariance, ABC):
    """A parametric S' = L L^T of size M x M."""

    @abstractmethod
    def factor(self) -> Tensor:
        """A square root L of S', shape (M, M)."""

    def joint(self, A: Tensor) -> Tensor:
        rooted = self.factor().T @ A
        return rooted.T @ rooted


class Zero(Rooted):
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

    def renyi(self, order: float) -> Tensor:
        return self.zero

    def precision(self, order: float) -> Tensor:
        return torch.eye(self.M).to(self.zero)


class Diagonal(Rooted):
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

    def renyi(self, order: float) -> Tensor:
        excess = (1 - order) * (self.s.square() - 1)  # T - I
        if not bool((excess > -1).all()):
            return self.s.square().sum() * torch.inf
        return excess.log1p().sum() / (2 * (1 - order)) - _log_abs(self.s).sum()

    def precision(self, order: float) -> Tensor:
        return (order / (order + (1 - order) * self.s.square())).diag()

    @torch.no_grad()
    def confine(self, order: float) -> None:
        most = math.sqrt(WITHIN * order / (order - 1))
        self.s.clamp_(-most, most)


class Dense(Rooted):
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

    def renyi(self, order: float) -> Tensor:
        root, info = torch.linalg.cholesky_ex(self._tilted(order))
        if int(info):
            return self.L.square().sum() * torch.inf
        tilt = root.diagonal().log().sum() / (1 - order)
        return tilt.to(self.L) - _log_abs(self.L.diagonal()).sum()

    def precision(self, order: float) -> Tensor:
        return (order * torch.linalg.inv(self._tilted(order))).to(self.L)

    @torch.no_grad()
    def confine(self, order: float) -> None:
        spare = (1 - WITHIN) * order * torch.eye(len(self.L)).to(self.L)
        if not bool(self.L.isfinite().all()):
            return  # training has diverged, and will find out
        while int(torch.linalg.cholesky_ex(self._tilted(order) - spare)[1]):
            self.L.mul_(SHRINK)

    def _tilted(self, order: float) -> Tensor:
        """T = a I + (1 - a) S', in float64: near order one its logarithm is divided by next to nothing."""
        L = self.factor().double()
        return order * torch.eye(len(L)).to(L) + (1 - order) * L @ L.T


class LogLinear(Covariance):
    """No S' but noise that depends on the row: svar_i = exp(a^T A_i + b), with a standard normal prior on a.

    Its logarithm is linear in the whitened features, so that variances of any size are equally near, where a sum of
    squares reaches small ones only by cancelling; far from the inducing points it is exp(b).

    >>> LogLinear(2).kl()
    tensor(0., grad_fn=<MulBackward0>)
    """

    is_noise = True

    def __init__(self, M: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(M))  # (M,)
        self.b = nn.Parameter(torch.tensor(math.log(INITIAL_LEVEL)))

    def level(self, A: Tensor) -> Tensor:
        """exp(a^T A + b) for features A (M, b), shape (b,)."""
        return (self.a @ A + self.b).clamp(max=LARGEST_LOG).exp()

    def joint(self, A: Tensor) -> Tensor:
        return self.level(A).diag()

    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        A = whiten(W, K_Mb)
        mean = K_Mb.new_zeros(K_Mb.shape[1]) if w is None else w @ K_Mb
        return Moments(mean, (k_diag - A.square().sum(0)).clamp_min(0), self.level(A))

    def kl(self) -> Tensor:
        return 0.5 * self.a.square().sum()

    def renyi(self, order: float) -> Tensor:
        return self.kl()  # a is a point: what the prior says of it knows no order

    def precision(self, order: float) -> Tensor:
        return torch.eye(len(self.a)).to(self.a)


class LogPower(LogLinear):
    """As `LogLinear`, with a power p of what the first m inducing points leave unknown as the function's variance:

        ktilde_i = k_ii u_i^p,   u_i = 1 - |A_i|^2 / k_ii   (of these m).

    p = 1 is the process given its values at the points. A larger one keeps it out of the way among them, where the
    noise is learned, and leaves the prior's variance far from all. Few points tell far from near, and then the noise,
    k(x_i, Z) (Lam^-T a) + b, is all that the others are for: O(M + m^2) a row in place of O(M^2).
    """

    power: Tensor
    leading: Tensor  # m

    def __init__(self, M: int) -> None:
        super().__init__(M)
        self.register_buffer("power", torch.tensor(LARGEST_POWER))
        self.register_buffer("leading", torch.tensor(min(M, LEADING)))
        self.register_load_state_dict_pre_hook(_all_unless_said)

    def share(self, W: Tensor, K_Mb: Tensor, k_diag: Tensor) -> Tensor:
        """u (b,)."""
        m = int(self.leading)
        return unknown(whiten(W[:m, :m], K_Mb[:m]), k_diag)

    def form(self, W: Tensor) -> Tensor:
        """Lam^-T a; without a gradient in float64, as these weights cancel where points lie close."""
        return unwhiten(W, self.a) if torch.is_grad_enabled() else self.a.double() @ W.double()

    def moments(self, W: Tensor, E: Tensor | None, K_Mb: Tensor, k_diag: Tensor, w: Tensor | None) -> Moments:
        assert E is not None
        mean = K_Mb.new_zeros(K_Mb.shape[1]) if w is None else w @ K_Mb
        level = (E @ K_Mb.to(E) + self.b).clamp(max=LARGEST_LOG).exp().to(K_Mb)
        return Moments(mean, k_diag * self.share(W, K_Mb, k_diag) ** self.power, level)

    def rest(self, R: Tensor, ktilde: Tensor) -> Tensor:
        scale = (ktilde / R.diagonal().clamp_min(torch.finfo(R.dtype).tiny)).sqrt()
        return scale[:, None] * R * scale


def _all_unless_said(S: "LogPower", state: dict[str, Any], prefix: str, *_: Any) -> None:
    """States of before there were leading points are of all of them."""
    state.setdefault(f"{prefix}leading", torch.full_like(S.leading, len(S.a)))


def unknown(A: Tensor, k_diag: Tensor) -> Tensor:
    """The share of the prior's variance that is left at rows of whitened features A (M, b); (b,), from zero to one."""
    return (1 - A.square().sum(0) / k_diag.clamp_min(torch.finfo(k_diag.dtype).tiny)).clamp(0, 1)


def _log_abs(scale: Tensor) -> Tensor:
    """log |scale|, finite at zero: S' depends on the square alone, so a sign change means nothing."""
    return scale.abs().clamp_min(torch.finfo(scale.dtype).tiny).log()
