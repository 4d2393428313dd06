"""The registry: every scalable method of the paper is a row."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.gp.covariances import Covariance, Dense, Diagonal, Zero
from paragp.gp.families import Coupled, Decoupled, Family, NeuralMean, OrthogonallyDecoupled, TwoSets
from paragp.gp.kernels import make_kernel
from paragp.gp.model import ParametricGP
from paragp.gp.objectives import Objective, gamma_robust, ppgpr, svgp, vfitc

# The paper's validation grids. The first value is what a single fit without a search takes.
VI_BETA = (1.0, 0.5, 0.3, 0.1)
PP_BETA = (0.05, 0.01, 0.2, 1.0)
GAMMAS = (1.03, 1.01, 1.05, 1.07)


@dataclass(frozen=True)
class Method:
    """A family, a covariance and an objective, with the settings that are searched on validation rows.

    >>> METHODS["ppgpr-mf"].label, METHODS["ppgpr-mf"].beta
    ('PPGPR-MF', (0.05, 0.01, 0.2, 1.0))
    """

    label: str
    family: type[Family]
    covariance: type[Covariance]
    objective: Objective
    beta: tuple[float, ...] = (1.0,)
    gamma: tuple[float, ...] = ()

    @property
    def solved_covariance(self) -> bool:
        """Whether S' has a closed form given all else: dense, and an objective linear in svar."""
        return self.covariance is Dense and self.objective in (svgp, vfitc, gamma_robust)

    @property
    def two_sets(self) -> bool:
        """Whether mean and variance have inducing points of their own."""
        return issubclass(self.family, TwoSets)

    @property
    def takes_mean(self) -> bool:
        """Whether a network can take the place of the mean's inducing points."""
        return self.family is Decoupled

    def model(
        self,
        kernel: str | Kernel,
        Z: Tensor,
        Z_variance: Tensor | None = None,
        *,
        mean: nn.Module | None = None,
        **options: Any,
    ) -> ParametricGP:
        """A model at its starting point. Z (M, d) are the inducing points (of the mean, if there are two sets),
        Z_variance those of the variance; with a network for the `mean`, Z are the variance's. `options` go to
        `ParametricGP`; with `features` the points live behind them."""
        family: Family
        if mean is None:
            family = self.family(Z, self.covariance, Z_variance)
        elif self.takes_mean and Z_variance is None:
            family = NeuralMean(mean, Z, self.covariance)
        else:
            raise ValueError(f"{self.label} with a network's mean: only PPGPR-MFD takes one, and one set of points Z.")
        return ParametricGP(make_kernel(kernel, Z.shape[1]), family, **options)

    def objective_for(self, gamma: float | None = None) -> Objective:
        """The objective with gamma fixed, where the method has one."""
        if not self.gamma:
            if gamma is not None:
                raise ValueError(f"{self.label} has no gamma; leave it out.")
            return self.objective
        return partial(self.objective, gamma=self.gamma[0] if gamma is None else gamma)


# fmt: off
METHODS: dict[str, Method] = {
    #                      label         family                 covariance objective     searched on validation
    "map":          Method("MAP",        Coupled,               Zero,      svgp),
    "svgp":         Method("SVGP",       Coupled,               Dense,     svgp,         beta=VI_BETA),
    "gamma-robust": Method("γ-Robust",   Coupled,               Dense,     gamma_robust, gamma=GAMMAS),
    "od-svgp":      Method("OD-SVGP",    OrthogonallyDecoupled, Dense,     svgp,         beta=VI_BETA),
    "vfitc":        Method("VFITC",      Coupled,               Dense,     vfitc,        beta=VI_BETA),
    "ppgpr-delta":  Method("PPGPR-δ",    Coupled,               Zero,      ppgpr,        beta=PP_BETA),
    "ppgpr-mf":     Method("PPGPR-MF",   Coupled,               Diagonal,  ppgpr,        beta=PP_BETA),
    "ppgpr-chol":   Method("PPGPR-Chol", Coupled,               Dense,     ppgpr,        beta=PP_BETA),
    "ppgpr-mfd":    Method("PPGPR-MFD",  Decoupled,             Diagonal,  ppgpr,        beta=PP_BETA),
}
# fmt: on
