"""Families: how inducing points make a mean function and a variance function.

A family owns inducing points, m' and S'. Its work falls in two: `factorise(kernel)` does what no data point
enters (K_MM and its Cholesky factor), once per step or once per model at prediction; `moments(factor, kernel,
h)` does what each batch needs. `kl(factor)` is the regulariser, |m'|^2 / 2 + KL(N(0, S') || N(0, I)) wherever
inducing points make the mean, since whitening makes the prior of u' standard normal; with another `order` than one it
is Rényi's divergence (`covariances`).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.gp.covariances import Covariance
from paragp.gp.kernels import covariance, covariance_matvec, kernel_name, prior_variance
from paragp.gp.linalg import JITTER, inverse_cholesky, unwhiten, unwhitened_weights, whiten
from paragp.gp.moments import Moments
from paragp.gp.products import lower_matmul


class MeanBasis(NamedTuple):
    """The functions whose combination is the mean: mean(h) = features(h)^T c, with prior precision P of c."""

    features: Callable[[Tensor], Tensor]  # h (b, d) -> (P, b)
    precision: Tensor  # (P, P)


class Family(nn.Module, ABC):
    """A parametric mean function and variance function of the features h."""

    jitter: float | None = None  # of the kernel's scale, on K_MM; None: by the precision (`linalg.JITTER`)
    order: float = 1.0  # of the regulariser; 1: the KL
    Z: nn.Parameter  # (M, d), the inducing points of the mean
    S: Covariance
    m: nn.Parameter  # (M,), whitened: m' = Lam^-1 m

    @abstractmethod
    def factorise(self, kernel: Kernel) -> Any:
        """Everything that depends on the kernel and the inducing points alone."""

    @abstractmethod
    def moments(self, factor: Any, kernel: Kernel, h: Tensor) -> Moments:
        """The moments at h (b, d)."""

    def spread(self, factor: Any, kernel: Kernel, h: Tensor) -> Moments:
        """The moments at h (b, d) but for the mean, which is zero."""
        kernel = self.variance_kernel(kernel)
        K_Mb, k_diag = covariance(kernel, self.variance_points, h), prior_variance(kernel, h)
        return self.S.moments(factor.W, factor.E, K_Mb, k_diag, None)

    def function_covariance(self, factor: Any, kernel: Kernel, h: Tensor) -> Tensor:
        """The covariance over all rows of h (n, d) that goes with ktilde + svar, without a gradient; shape (n, n)."""
        ktilde = self.moments(factor, kernel, h).ktilde
        kernel = self.variance_kernel(kernel)
        A = factor.W @ covariance(kernel, self.variance_points, h)  # (M, n)
        return self.S.rest(covariance(kernel, h, h) - A.T @ A, ktilde) + self.S.joint(A)

    @property
    def variance_points(self) -> Tensor:
        """The inducing points of the variance, (M, d)."""
        return self.Z

    def variance_kernel(self, kernel: Kernel) -> Kernel:
        """The kernel of the variance, for that of the mean."""
        return kernel

    @abstractmethod
    def mean_function(self, factor: Any, kernel: Kernel) -> Callable[[Tensor], Tensor]:
        """The mean (b,) of h (b, d) without the variance: O(M) a row."""

    @property
    def networks(self) -> list[nn.Module]:
        """What the family holds of modules that may be anyone's."""
        return []

    @property
    def mean_parameters(self) -> list[nn.Parameter]:
        """The coefficients of the mean where it is linear in them, and thus can be solved for."""
        return [self.m]

    def mean_basis(self, kernel: Kernel) -> MeanBasis:
        """What the coefficients multiply, without a gradient: A = Lam^-1 k(Z, h), whose prior is standard normal."""
        return MeanBasis(self._whitened(kernel, self.Z), self._prior_precision())

    def _prior_precision(self) -> Tensor:
        """Of m', (M, M): the identity, unless the regulariser ties m' to S'."""
        return torch.eye(len(self.m)).to(self.m) if self.order == 1 else self.S.precision(self.order)

    def _whitened(self, kernel: Kernel, Z: Tensor) -> Callable[[Tensor], Tensor]:
        W = self.whitener(kernel, Z)
        return lambda h: lower_matmul(W, covariance(kernel, Z, h))

    def kl(self, factor: Any) -> Tensor:
        """The regulariser |m'|^2 / 2 + KL(N(0, S') || N(0, I)), or Rényi's divergence, a scalar."""
        if self.order == 1:
            return 0.5 * self.m.square().sum() + self.S.kl()
        return 0.5 * self.m @ self._prior_precision() @ self.m + self._spread()

    def confine(self) -> None:
        """Shrink S', in place, to where the regulariser is finite: of an order above one it has a limit."""
        if self.order > 1:
            self.S.confine(self.order)

    def _spread(self) -> Tensor:
        """The regulariser's share of S'."""
        return self.S.kl() if self.order == 1 else self.S.renyi(self.order)

    def whitener(self, kernel: Kernel, Z: Tensor) -> Tensor:
        """W = Lam^-1 with Lam Lam^T = k(Z, Z) + jitter, shape (M, M)."""
        K_MM, jitter = self._precise(covariance(kernel, Z, Z))
        return inverse_cholesky(K_MM, jitter=jitter, name=f"K_MM of {kernel_name(kernel)}").to(Z.dtype)

    def _precise(self, K: Tensor) -> tuple[Tensor, float | None]:
        """A kernel matrix to be factorised, and its jitter; where no gradient is taken, in float64 with the jitter of
        its own precision: points that lie close have large weights, which cancel and leave few digits."""
        if torch.is_grad_enabled():
            return K, self.jitter
        return K.double(), JITTER[K.dtype] if self.jitter is None else self.jitter


class Coupled(Family):
    """One set of inducing points for mean and variance (Eqn meanfunc, Eqn fvar).

    >>> from paragp.gp.covariances import Dense
    >>> from paragp.gp.kernels import make_kernel
    >>> family, kernel = Coupled(torch.zeros(1, 2), Dense), make_kernel("rbf", 2)
    >>> family.moments(family.factorise(kernel), kernel, torch.zeros(3, 2)).mean.shape
    torch.Size([3])
    """

    class Factor(NamedTuple):
        W: Tensor  # (M, M) = Lam^-1
        E: Tensor | None  # what S' makes of W
        w: Tensor  # (M,) = W^T m'

    def __init__(self, Z: Tensor, covariance: type[Covariance], Z_variance: Tensor | None = None) -> None:
        super().__init__()
        if Z_variance is not None:
            raise ValueError(
                "This family uses the same inducing points for mean and variance. Leave Z_variance out, "
                "or choose a decoupled method."
            )
        self.Z = _inducing_points(Z)  # (M, d)
        self.m = nn.Parameter(Z.new_zeros(len(Z)))
        self.S = covariance(len(Z)).to(Z)

    def factorise(self, kernel: Kernel) -> Factor:
        W = self.whitener(kernel, self.Z)
        return self.Factor(W, self.S.form(W), unwhiten(W, self.m))

    def moments(self, factor: Factor, kernel: Kernel, h: Tensor) -> Moments:
        return self.S.moments(factor.W, factor.E, covariance(kernel, self.Z, h), prior_variance(kernel, h), factor.w)

    def mean_function(self, factor: Factor, kernel: Kernel) -> Callable[[Tensor], Tensor]:
        return lambda h: covariance_matvec(kernel, h, self.Z, factor.w)


class TwoSets(Family, ABC):
    """Inducing points Z of the mean and Z_variance of the variance; the latter start at Z unless given.

    Two different k-means sets are the better start (`training.inducing.starting_points`).
    """

    def __init__(self, Z: Tensor, covariance: type[Covariance], Z_variance: Tensor | None = None) -> None:
        super().__init__()
        self.Z = _inducing_points(Z)  # (M_mu, d)
        self.Z_variance = _inducing_points(Z if Z_variance is None else Z_variance)  # (M_sigma, d)
        if self.Z.shape[1] != self.Z_variance.shape[1] or self.Z.dtype != self.Z_variance.dtype:
            raise ValueError(
                f"Both sets of inducing points must agree in inputs and precision, got Z {tuple(self.Z.shape)} in "
                f"{self.Z.dtype} and Z_variance {tuple(self.Z_variance.shape)} in {self.Z_variance.dtype}."
            )
        self.S = covariance(len(self.Z_variance)).to(Z)

    @property
    def variance_points(self) -> Tensor:
        return self.Z_variance


class Decoupled(TwoSets):
    """Separate inducing points for mean (Eqn mfdmean) and variance (Eqn mfdvar), one kernel: PPGPR-MFD.

    The mean needs no solve against the batch: A^T m' = K_bM alpha with alpha = Lam^-T m'.
    """

    class Factor(NamedTuple):
        alpha: Tensor  # (M_mu,)
        W: Tensor  # (M_sigma, M_sigma) = Lam^-1 of the variance's points
        E: Tensor | None  # what S' makes of W

    def __init__(self, Z: Tensor, covariance: type[Covariance], Z_variance: Tensor | None = None) -> None:
        super().__init__(Z, covariance, Z_variance)
        self.m = nn.Parameter(Z.new_zeros(len(Z)))  # (M_mu,)

    def factorise(self, kernel: Kernel) -> Factor:
        W = self.whitener(self.variance_kernel(kernel), self.Z_variance)
        if not torch.is_grad_enabled() and not bool(self.m.any()):
            return self.Factor(torch.zeros_like(self.m), W, self.S.form(W))  # a mean of zero needs no factor
        K_mu, jitter = self._precise(covariance(kernel, self.Z, self.Z))
        alpha = unwhitened_weights(K_mu, self.m.to(K_mu), jitter=jitter, name=f"K_mu of {kernel_name(kernel)}")
        return self.Factor(alpha, W, self.S.form(W))

    def moments(self, factor: Factor, kernel: Kernel, h: Tensor) -> Moments:
        q = self.spread(factor, kernel, h)
        return q._replace(mean=covariance_matvec(kernel, h, self.Z, factor.alpha))

    def mean_function(self, factor: Factor, kernel: Kernel) -> Callable[[Tensor], Tensor]:
        return lambda h: covariance_matvec(kernel, h, self.Z, factor.alpha)

    def _prior_precision(self) -> Tensor:
        return torch.eye(len(self.m)).to(self.m)  # S' belongs to other points


class TwoKernels(Decoupled):
    """As `Decoupled` with a kernel of its own for the variance, of the same kind, as the paper's appendix suggests."""

    own_kernel: Kernel

    def take_kernel(self, kernel: Kernel) -> None:
        """Start with a copy of the mean's kernel."""
        self.own_kernel = copy.deepcopy(kernel)

    def variance_kernel(self, kernel: Kernel) -> Kernel:
        return self.own_kernel


class NeuralMean(Family):
    """A network for the mean, inducing points for the variance alone (Eqn mfdvar), as the paper's discussion suggests.

    The network takes features h (b, d) to (b,) or (b, 1). It has no prior: the regulariser is that of S'.
    """

    class Factor(NamedTuple):
        W: Tensor  # (M, M) = Lam^-1
        E: Tensor | None  # what S' makes of W

    def __init__(self, mean: nn.Module, Z: Tensor, covariance: type[Covariance]) -> None:
        super().__init__()
        self.mean = mean
        self.Z = _inducing_points(Z)  # (M, d), of the variance
        self.S = covariance(len(Z)).to(Z)

    def factorise(self, kernel: Kernel) -> Factor:
        W = self.whitener(kernel, self.Z)
        return self.Factor(W, self.S.form(W))

    def moments(self, factor: Factor, kernel: Kernel, h: Tensor) -> Moments:
        return self.spread(factor, kernel, h)._replace(mean=self._mean(h))

    def _mean(self, h: Tensor) -> Tensor:
        found: Tensor = self.mean(h)
        return found.reshape(len(h))

    def mean_function(self, factor: Factor, kernel: Kernel) -> Callable[[Tensor], Tensor]:
        return self._mean

    @property
    def networks(self) -> list[nn.Module]:
        return [self.mean]

    @property
    def mean_parameters(self) -> list[nn.Parameter]:
        return []

    def kl(self, factor: Factor) -> Tensor:
        return self._spread()


class OrthogonallyDecoupled(TwoSets):
    """A coupled family plus mean functions orthogonal to it (Salimbeni et al. 2018): OD-SVGP.

    With Z_variance the coupled points (there: beta) and Z the extra mean points (there: gamma) with weights
    a, the extra basis comes from the prior conditional, not from q(u) as in GPyTorch's strategy:

        mean = A^T m' + (k_gamma(x) - B^T A)^T a,    B = Lam^-1 k(Z_variance, Z)
        KL   = |m'|^2 / 2 + KL(N(0, S') || N(0, I)) + (a^T K_gamma a - |B a|^2) / 2

    Only B a = Lam^-1 (k(Z_variance, Z) a) is ever needed, so the extra points cost no M x b solve. As in the
    original work a is not whitened. Where the two sets coincide the extra basis vanishes and the method is SVGP:
    start them at different points.
    """

    class Factor(NamedTuple):
        W: Tensor  # (M_beta, M_beta) = Lam^-1
        E: Tensor | None  # what S' makes of W
        w: Tensor  # (M_beta,) = W^T (m' - B a)
        norm: Tensor  # () = a^T K_gamma a - |B a|^2

    def __init__(self, Z: Tensor, covariance: type[Covariance], Z_variance: Tensor | None = None) -> None:
        super().__init__(Z, covariance, Z_variance)
        self.m = nn.Parameter(Z.new_zeros(len(self.Z_variance)))  # (M_beta,)
        self.a = nn.Parameter(Z.new_zeros(len(Z)))  # (M_gamma,)

    def factorise(self, kernel: Kernel) -> Factor:
        W = self.whitener(kernel, self.Z_variance)
        Ba = whiten(W, covariance_matvec(kernel, self.Z_variance, self.Z, self.a)[:, None])[:, 0]
        norm = self.a @ covariance_matvec(kernel, self.Z, self.Z, self.a) - Ba.square().sum()
        return self.Factor(W, self.S.form(W), unwhiten(W, self.m - Ba), norm)

    def moments(self, factor: Factor, kernel: Kernel, h: Tensor) -> Moments:
        K_Mb, k_diag = covariance(kernel, self.Z_variance, h), prior_variance(kernel, h)
        q = self.S.moments(factor.W, factor.E, K_Mb, k_diag, factor.w)
        return q._replace(mean=q.mean + covariance_matvec(kernel, h, self.Z, self.a))

    def mean_function(self, factor: Factor, kernel: Kernel) -> Callable[[Tensor], Tensor]:
        points, weights = torch.cat([self.Z_variance, self.Z]), torch.cat([factor.w, self.a])
        return lambda h: covariance_matvec(kernel, h, points, weights)

    @property
    def mean_parameters(self) -> list[nn.Parameter]:
        return [self.m, self.a]

    def mean_basis(self, kernel: Kernel) -> MeanBasis:
        """A for m', and for a the extra functions k_gamma(h) - B^T A with precision K_gamma - B^T B."""
        whitened = self._whitened(kernel, self.Z_variance)
        B = whitened(self.Z)  # (M_beta, M_gamma)

        def features(h: Tensor) -> Tensor:
            A = whitened(h)
            return torch.cat([A, covariance(kernel, self.Z, h) - B.T @ A])

        extra = covariance(kernel, self.Z, self.Z) - B.T @ B
        return MeanBasis(features, torch.block_diag(self._prior_precision(), self.order * extra))

    def kl(self, factor: Factor) -> Tensor:
        """The extra functions move the mean and no covariance: of order a their share is a times that of the KL."""
        return super().kl(factor) + 0.5 * self.order * factor.norm


def _inducing_points(Z: Tensor) -> nn.Parameter:
    if Z.ndim != 2 or 0 in Z.shape or not Z.is_floating_point() or not bool(torch.isfinite(Z).all()):
        raise ValueError(
            "Inducing points must be a finite floating-point tensor of shape (M, d) with M and d at least 1, got "
            f"{Z.dtype} of shape {tuple(Z.shape)}{'' if torch.isfinite(Z).all() else ' with NaN or infinite entries'}."
        )
    return nn.Parameter(Z.detach().clone())
