"""What several tests need: small models with random parameters for the whole registry, and a full disk."""

import resource
from contextlib import contextmanager

import torch

from paragp.data.rows import Data
from paragp.gp.covariances import LogPower
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP

STATIONARY = ("matern12", "matern32", "matern52", "rbf", "rq")
float64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = float64) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=float64).to(dtype)


def random_model(
    name: str,
    *,
    M: int = 5,
    d: int = 2,
    kernel: str = "matern52",
    seed: int = 0,
    dtype: torch.dtype = float64,
    features: torch.nn.Module | None = None,
) -> ParametricGP:
    """A model whose every parameter is away from its starting point; two sets of points differ in size."""
    method = METHODS[name]
    Z_variance = randn(M + 1, d, seed=seed + 1) if method.two_sets else None
    model = method.model(kernel, randn(M, d, seed=seed), Z_variance, noise=0.2, features=features)
    noise = generator(seed + 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise, dtype=float64))
        if isinstance(model.family.S, LogPower):
            model.family.S.power.fill_(1.7)
            model.family.S.leading.fill_(max(1, M - 2))
    return model.to(dtype)


def random_data(N: int = 12, d: int = 2, *, seed: int = 10, dtype: torch.dtype = float64) -> Data:
    x = randn(N, d, seed=seed, dtype=dtype)
    return Data(x, torch.sin(2 * x[:, 0]) + 0.1 * randn(N, seed=seed + 1, dtype=dtype))


@contextmanager
def full_disk(limit: int = 1000):
    """Files end after so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
