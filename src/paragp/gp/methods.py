"""The registry: every scalable method is a row. `PAPER` are those of the paper, `BEYOND` its variants."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.gp.covariances import Covariance, Dense, Diagonal, LogLinear, LogPower, Zero
from paragp.gp.families import Coupled, Decoupled, Family, NeuralMean, OrthogonallyDecoupled, TwoKernels, TwoSets
from paragp.gp.kernels import make_kernel
from paragp.gp.model import ParametricGP
from paragp.gp.objectives import (
    Objective,
    bb_alpha,
    bb_alpha_u,
    gamma_robust,
    ppgpr,
    ppgpr_gamma,
    svgp,
    vfitc,
)

# The paper's validation grids. The first value is what a single fit without a search takes.
VI_BETA = (1.0, 0.5, 0.3, 0.1)
PP_BETA = (0.05, 0.01, 0.2, 1.0)
WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01)  # of the prior of two stages' mean; assumed
LEAST_NOISE = 1e-10  # where it is fitted to residuals: a deviation of 1e-5 in standardised units
GAMMAS = (1.03, 1.01, 1.05, 1.07)
BB: dict[str, Any] = {"beta": VI_BETA, "bb_alpha": (0.5, 0.1, 0.9)}  # powers assumed: the paper has none


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
    bb_alpha: tuple[float, ...] = ()
    stages: bool = False  # whether the default training solves for the mean, then for the noise, without gradient steps

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
            takers = ", ".join(row.label for row in METHODS.values() if row.takes_mean)
            raise ValueError(f"{self.label} with a network's mean: these take one, and one set of points Z: {takers}.")
        made = make_kernel(kernel, Z.shape[1])
        if self.stages:
            options.setdefault("noise_floor", LEAST_NOISE)
        if isinstance(family, TwoKernels):
            family.take_kernel(made)
        return ParametricGP(made, family, **options)

    def objective_for(self, *, gamma: float | None = None, bb_alpha: float | None = None) -> Objective:
        """The objective with its gamma or bb_alpha fixed, where it has one."""
        settings: dict[str, float] = {}
        for name, grid, value in (("gamma", self.gamma, gamma), ("alpha", self.bb_alpha, bb_alpha)):
            if not grid and value is not None:
                raise ValueError(f"{self.label} has no {name}; leave it out.")
            if grid:
                settings[name] = grid[0] if value is None else value
        return partial(self.objective, **settings) if settings else self.objective


# fmt: off
PAPER: dict[str, Method] = {
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
BEYOND: dict[str, Method] = {
    #                       label            family                 covariance objective    searched on validation
    "od-vfitc":      Method("OD-VFITC",      OrthogonallyDecoupled, Dense,     vfitc,       beta=VI_BETA),
    "ppgpr-mfd-2k":  Method("PPGPR-MFD-2K",  TwoKernels,            Diagonal,  ppgpr,       beta=PP_BETA),
    "ppgpr-chol-2k": Method("PPGPR-Chol-2K", TwoKernels,            Dense,     ppgpr,       beta=PP_BETA),
    "ppgpr-log":     Method("PPGPR-log",     TwoKernels,            LogLinear, ppgpr,       beta=PP_BETA),
    "two-stage":     Method("Two-stage",     TwoKernels,            LogPower,  ppgpr,       beta=WEIGHTS, stages=True),
    "ppgpr-gamma":   Method("PPGPR-γ",       Decoupled,             Diagonal,  ppgpr_gamma, beta=PP_BETA, gamma=GAMMAS),
    "bb-alpha":      Method("BB-α",          Coupled,               Dense,     bb_alpha,    **BB),
    "bb-alpha-u":    Method("BB-α, q(u)",    Coupled,               Dense,     bb_alpha_u,  **BB),
}
METHODS = PAPER | BEYOND
# fmt: on
