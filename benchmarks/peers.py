"""Every method as a GPyTorch user would write it: its strategy, its objective, its defaults, float32."""

from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import torch
from gpytorch.mlls import GammaRobustVariationalELBO, PredictiveLogLikelihood, VariationalELBO
from gpytorch.variational import (
    BatchDecoupledVariationalStrategy,
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor


def coupled(model: gpytorch.models.ApproximateGP, Z: Tensor, distribution: type) -> object:
    return VariationalStrategy(model, Z, distribution(len(Z)), learn_inducing_locations=True)


def decoupled(model: gpytorch.models.ApproximateGP, Z: Tensor, distribution: type) -> object:
    return BatchDecoupledVariationalStrategy(model, Z, distribution(len(Z)), learn_inducing_locations=True)


def orthogonal(model: gpytorch.models.ApproximateGP, Z: Tensor, distribution: type) -> object:
    base = VariationalStrategy(model, Z, distribution(len(Z)), learn_inducing_locations=True)
    return OrthogonallyDecoupledVariationalStrategy(base, Z.clone(), DeltaVariationalDistribution(len(Z)))


@dataclass(frozen=True)
class Peer:
    strategy: Callable
    distribution: type
    objective: type
    note: str = ""


PEERS = {
    "map": Peer(coupled, DeltaVariationalDistribution, VariationalELBO),
    "svgp": Peer(coupled, CholeskyVariationalDistribution, VariationalELBO),
    "gamma-robust": Peer(coupled, CholeskyVariationalDistribution, GammaRobustVariationalELBO),
    "od-svgp": Peer(orthogonal, CholeskyVariationalDistribution, VariationalELBO),
    "vfitc": Peer(coupled, CholeskyVariationalDistribution, VariationalELBO, "GPyTorch has no VFITC; this is its SVGP"),
    "ppgpr-delta": Peer(coupled, DeltaVariationalDistribution, PredictiveLogLikelihood),
    "ppgpr-mf": Peer(coupled, MeanFieldVariationalDistribution, PredictiveLogLikelihood),
    "ppgpr-chol": Peer(coupled, CholeskyVariationalDistribution, PredictiveLogLikelihood),
    "ppgpr-mfd": Peer(decoupled, MeanFieldVariationalDistribution, PredictiveLogLikelihood),
}


class PeerGP(gpytorch.models.ApproximateGP):
    """A zero-mean Matérn 5/2 GP with one lengthscale per input."""

    def __init__(self, peer: Peer, Z: Tensor) -> None:
        super().__init__(peer.strategy(self, Z.clone(), peer.distribution))
        batch = torch.Size([1]) if peer.strategy is decoupled else torch.Size()
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=Z.shape[1], batch_shape=batch)
        base.lengthscale = Z.shape[1] ** 0.5
        self.covar_module = gpytorch.kernels.ScaleKernel(base, batch_shape=batch)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
