"""Networks in a model: features before the kernel (deep kernel learning, sec:dkl), or the mean itself.

Any torch module that takes rows (b, d) to features (b, p) will do; `network` makes the usual one from its sizes.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

CHUNK = 10_000  # rows embedded at once
COLLAPSED = 1e-6  # spread of the features, of what a kernel can tell apart
DRAWS = 20  # of a narrow network's weights, until one of its last ReLUs is alive


class CollapsedFeaturesWarning(RuntimeWarning):
    """The network maps all rows to nearly one point, so that the kernel cannot tell them apart."""


def network(
    sizes: Sequence[int], x: Tensor, *, generator: torch.Generator, weights: Tensor | None = None
) -> nn.Sequential:
    """Layers of these sizes with ReLU between them, on the inputs x (n, d); the last size is the kernel's.

    Weights start as in He et al. (2015), and the last layer such that each feature of x (its rows weighted) has mean 0
    and deviation 1: kernels start with lengthscales of that order.

    >>> x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> made = network([8, 2], x, generator=torch.Generator().manual_seed(0))
    >>> made(x).detach().std(0, correction=0).round(decimals=3)
    tensor([1., 1.])
    """
    made = layers(x.shape[1], sizes).to(x)
    for _ in range(DRAWS):
        draw_weights(made, generator)
        h = embedded(made, x)
        if not collapsed(h):
            break
    shares = torch.ones(len(x)).to(x) if weights is None else weights.to(x)
    shares = (shares / shares.sum())[:, None]
    mean = (shares * h).sum(0)
    spread = (shares * (h - mean).square()).sum(0).sqrt()
    spread = torch.where(spread > COLLAPSED, spread, 1.0)
    last = made[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.div_(spread[:, None])
        last.bias.copy_(-mean / spread)
    return made


def layers(d: int, sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers from d inputs through these sizes with ReLU between them, their values yet to be set."""
    widths = pairwise([d, *sizes])
    made = [
        layer for width, size in widths for layer in (nn.utils.skip_init(nn.Linear, width, size), nn.ReLU())
    ]  # the usual values would be drawn from the global generator
    return nn.Sequential(*made[:-1])


@torch.no_grad()
def draw_weights(made: nn.Sequential, generator: torch.Generator) -> None:
    """Set the values of `layers` as He et al. (2015) do for ReLU."""
    for layer in made:
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * (2 / layer.in_features) ** 0.5)
            layer.bias.zero_()


def sizes_of(features: nn.Module) -> list[int] | None:
    """The sizes from which `layers` makes a module of this form; None for other modules."""
    if not isinstance(features, nn.Sequential) or not all(type(part) in (nn.Linear, nn.ReLU) for part in features):
        return None
    sizes = [part.out_features for part in features if isinstance(part, nn.Linear)]
    first = features[0] if len(features) else None
    if not isinstance(first, nn.Linear) or str(layers(first.in_features, sizes)) != str(features):
        return None
    return sizes


@contextmanager
def evaluating(features: nn.Module) -> Iterator[None]:
    """The module as it is at prediction, for a while: no dropout, running statistics."""
    if not features.training:  # switched there and back, it would disturb other threads that predict
        yield
        return
    features.eval()
    try:
        yield
    finally:
        features.train()


@torch.no_grad()
def embedded(features: nn.Module, x: Tensor) -> Tensor:
    """The features of x (n, d) as they are at prediction, in chunks; shape (n, p)."""
    with evaluating(features):
        return torch.cat([features(rows) for rows in x.split(CHUNK)])


def check_module(module: nn.Module, x: Tensor, what: str = "features") -> int:
    """Refuse a module that does not take rows x (n, d) to one row of finite features each; returns their number p.

    `what` it stands for may be "mean", too: that is one number for each row, (n,) or (n, 1). Models are trained and
    predict in either precision, so both are tried.
    """
    name = f"{what} module {type(module).__name__}"
    parameters = list(module.parameters())
    if not parameters:
        raise ValueError(
            f"The {name} has no parameters, so there is nothing to train. Apply it "
            f"{'to the inputs' if what == 'features' else 'and subtract it from the target'} before fitting, or pass a "
            "module with parameters."
        )
    elsewhere = {parameter.device for parameter in parameters} - {x.device, torch.device("cpu")}
    if elsewhere:
        places = ", ".join(sorted(map(str, elsewhere)))
        raise ValueError(
            f"The {name} lives on {places}, and the model is trained on {x.device}. Move it with "
            f'module.to("{x.device}"), or fit with device="{parameters[0].device}".'
        )
    for dtype in (torch.float32, torch.float64):
        rows = x[:2].to(dtype)
        try:
            h = embedded(copy.deepcopy(module).to(rows), rows)
        except Exception as error:  # a module is anyone's code
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"The {name} does not take {x.shape[1]} inputs in {dtype}: {reason} (tensors that are "
                "no parameters must be registered as buffers)."
            ) from error
        if what == "mean" and h.ndim == 1:
            h = h[:, None]
        wanted = "p" if what == "features" else "1"
        if h.ndim != 2 or len(h) != len(rows) or not h.shape[1] or (what == "mean" and h.shape[1] != 1):
            raise ValueError(
                f"The {name} must give ({len(rows)}, {wanted}) for {len(rows)} rows, got {tuple(h.shape)}."
            )
        if h.dtype != dtype:
            raise ValueError(f"The {name} must give {dtype} for {dtype}, got {h.dtype}.")
        if not bool(torch.isfinite(h).all()):
            raise ValueError(
                f"The {name} gives NaN or infinite values for the first rows. Check its weights and "
                "the scale of what it expects: inputs come standardised."
            )
    return h.shape[1]


def collapsed(h: Tensor) -> bool:
    """Whether features h (n, p) are one point, up to what a kernel of unit lengthscales can tell apart."""
    return len(h) > 1 and float(h.std(0).max()) < COLLAPSED * max(1.0, float(h.abs().max()))


def warn_if_collapsed(features: nn.Module, x: Tensor) -> None:
    """Say so where training ended with features that tell no rows apart, though their inputs differ."""
    rows = x[:CHUNK]
    if collapsed(embedded(features, rows)) and not collapsed(rows):
        warnings.warn(
            f"All rows have nearly the same features after training: the network {type(features).__name__} has "
            "collapsed, and the model predicts one distribution for every row. A lower learning rate, wider layers or "
            "standardised inputs to the module help.",
            CollapsedFeaturesWarning,
            stacklevel=2,
        )
