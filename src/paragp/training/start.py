"""Where training starts: a model whose kernel suits the data, its inducing points spread in that kernel's units."""

import copy
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from paragp.data.rows import Data
from paragp.gp.covariances import LogLinear, LogPower
from paragp.gp.exact import ExactGP, maximise
from paragp.gp.features import collapsed, draw_weights, embedded, layers, network
from paragp.gp.kernels import lengthscales, make_kernel
from paragp.gp.linalg import NotPositiveDefiniteError, keep_freed_memory
from paragp.gp.model import INITIAL_NOISE, NOISE_FLOOR, ParametricGP
from paragp.training.distributed import ALONE, Group
from paragp.training.inducing import starting_points
from paragp.training.recipe import Settings
from paragp.training.ridge import held_out_error

LARGEST_STRETCH = 1e3  # of an input's units against the most relevant one's: beyond, it adds nothing to a distance
# Deviations of the prior on the logarithms of positive parameters around where they start. A kernel that suits the mean
# of a sample may be far too smooth for the variance of all rows, and a long lengthscale takes long to become short.
NEAR, FAR, NOISE_DEVIATION = 0.5, 1.0, 2.0
# Where training goes on from the kernel, an iteration that gains less than this share of the likelihood is the last.
SETTLED, TO_THE_END = 1e-5, 2e-9
# Of several kernels the chosen one is looked at again: a share of the iterations, and more rows.
LAST_LOOK, MORE_ROWS = 0.3, 2.0
# Kernels are judged by the error of a mean with up to so many times n_inducing points, of at most so many rows, at a
# share of these
JUDGED_POINTS, JUDGED_ROWS, JUDGED_SHARE, MOST_JUDGED = 2, 50_000, 0.2, 5000


def new_model(
    settings: Settings, data: Data, generator: torch.Generator, rows: int | None = None, group: Group = ALONE
) -> ParametricGP:
    """A model at its starting point for these rows, a sample of so many `rows`."""
    recipe, method, features = settings.recipe, settings.method, _features(settings, data, generator)
    if features is not None:  # the kernel and its points live behind the network, as it is at the start
        data = data._replace(x=embedded(features, data.x))
        if isinstance(settings.features, nn.Module) and collapsed(data.x):
            raise ValueError(
                f"The features module {type(features).__name__} maps all rows to one point, so that no kernel can tell "
                "them apart. Check its weights, or start from others."
            )
    d = data.x.shape[1]
    kernels = [make_kernel(kernel, d).to(data.x) for kernel in settings.kernels]
    kernel, noise = kernels[0], INITIAL_NOISE
    if recipe.kernel_rows:
        kernel, noise = choose_kernel(
            kernels, data, rows=recipe.kernel_rows, iterations=recipe.kernel_iterations, generator=generator,
            deviation=FAR if settings.staged else NEAR, error=_judge(settings, data, generator), group=group,
        )  # fmt: skip
    Z = _points(kernel, data, settings.points(rows or data.size), recipe.kernel_rows > 0, generator)
    noise = max(noise, 2 * NOISE_FLOOR)
    mean = _mean(settings, data, generator)
    model = method.model(kernel, *Z, mean=mean, noise=noise, features=features)
    if isinstance(model.family.S, LogPower):  # a constant start, with the marginal's variance
        model.likelihood.start(min(noise, 0.99))
        nn.init.constant_(model.family.S.b, math.log(1 - min(noise, 0.99)))
    elif isinstance(model.family.S, LogLinear):  # the noise is there
        nn.init.constant_(model.family.S.b, math.log(noise))
        model.likelihood.start(2 * NOISE_FLOOR)
    return model


def _points(
    kernel: Kernel, data: Data, sizes: Sequence[int], scaled: bool, generator: torch.Generator
) -> list[torch.Tensor]:
    """Starting points of these sizes; `scaled`, they are spread in the units of a kernel that suits the rows."""
    found = stretch(kernel, data.x.shape[1]) if scaled else None
    units = torch.ones(()).to(data.x) if found is None else found.to(data.x)
    sets = starting_points(data.x / units, *sizes, generator=generator, weights=data.weights)
    return [points * units for points in sets]


def _judge(settings: Settings, data: Data, generator: torch.Generator) -> Callable[[Kernel, float], float] | None:
    """What tells kernels apart for a solved mean: its error, with fewer points, at rows that it has not seen. They are
    more than the kernels were fitted to: what suits few rows is too smooth for many. None where the rows are few."""
    if not settings.staged or len(settings.kernels) == 1:
        return None
    there = torch.arange(data.size) if data.weights is None else (data.weights > 0).nonzero()[:, 0].cpu()
    if len(there) <= 2 * settings.recipe.kernel_rows:
        return None
    order = there[torch.randperm(len(there), generator=generator)][:JUDGED_ROWS].to(data.y.device)
    held_out = min(MOST_JUDGED, round(JUDGED_SHARE * len(order)))
    judged, known = data.take(order[:held_out]), data.take(order[held_out:])
    points = min(JUDGED_POINTS * settings.n_inducing, settings.points(data.size)[0])
    seed = int(torch.randint(2**31 - 1, (), generator=generator))

    def error(kernel: Kernel, noise: float) -> float:
        Z = _points(kernel, known, [points, 1], True, torch.Generator().manual_seed(seed))
        model = settings.method.model(kernel, *Z, noise=max(noise, 2 * NOISE_FLOOR))
        return held_out_error(model, known, judged, settings.ridges)

    return error


def _features(settings: Settings, data: Data, generator: torch.Generator) -> nn.Module | None:
    """The module before the kernel, a copy of what was passed."""
    if settings.features is None:
        return None
    if isinstance(settings.features, nn.Module):
        return copy.deepcopy(settings.features).to(data.x)
    sizes = [int(size) for size in settings.features]
    return network(sizes, data.x, generator=generator, weights=data.weights)


def _mean(settings: Settings, data: Data, generator: torch.Generator) -> nn.Module | None:
    """The network of the mean, a copy of what was passed; one made from sizes starts at a mean of zero."""
    if settings.mean is None:
        return None
    if isinstance(settings.mean, nn.Module):
        return copy.deepcopy(settings.mean).to(data.x)
    made = layers(data.x.shape[1], [*(int(size) for size in settings.mean), 1]).to(data.x)
    draw_weights(made, generator)
    last = made[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    return made


def choose_kernel(
    kernels: Sequence[Kernel],
    data: Data,
    *,
    rows: int,
    iterations: int,
    generator: torch.Generator,
    deviation: float,
    error: Callable[[Kernel, float], float] | None = None,
    group: Group = ALONE,
) -> tuple[Kernel, float]:
    """Fit each kernel to a sample of rows by its marginal likelihood (Eqn marg); the best of them, and its noise.

    The exact GP of about `rows` rows, in float64, with a prior of that `deviation` that keeps the logarithm of every
    positive parameter in reach of where it starts (an input that a sample shows to be irrelevant has no largest
    lengthscale otherwise). A weight of w means w copies of a row. Where there is no factor at all a kernel stays as it
    is. Among several, the best has the least `error(kernel, noise)`; without such a judge it is the likeliest.
    """
    keep_freed_memory()
    if data.weights is not None:
        data = data.take(data.weights > 0)
    several = len(kernels) > 1
    order = torch.randperm(data.size, generator=generator).to(data.y.device)
    data = data.take(order[: round(MORE_ROWS * rows)])
    fits = [_Fit(kernel, deviation, TO_THE_END if several else SETTLED) for kernel in kernels]
    losses = [-fit.improve(data.take(slice(rows)), iterations) for fit in fits]
    if several and error is not None:
        losses = [error(fit.kernel, fit.noise) for fit in fits]
    least = torch.tensor(losses, dtype=torch.float64).nan_to_num(nan=math.inf).argmin()
    group.agree([least])  # rounding may differ, and kernels have parameters of their own
    chosen = fits[int(least)]
    if several:
        chosen.improve(data, round(LAST_LOOK * iterations))
    return chosen.kernel, chosen.noise


class _Fit:
    """A kernel on its way, in place, and the noise that goes with it."""

    def __init__(self, kernel: Kernel, deviation: float, tolerance: float) -> None:
        self.kernel, self.deviation, self.tolerance, self.noise = kernel, deviation, tolerance, INITIAL_NOISE
        self.start: Tensor | None = None  # the logarithms of its parameters and the noise

    def improve(self, sample: Data, iterations: int) -> float:
        """Go on from where it stands; the logarithm of the posterior density that it reaches."""
        weights = None if sample.weights is None else sample.weights.double()
        noise = max(self.noise, 2 * NOISE_FLOOR)  # at the floor itself it could not move
        found = ExactGP(copy.deepcopy(self.kernel), sample.x.double(), sample.y.double(), weights=weights, noise=noise)
        first = self.start = _logarithms(found).detach() if self.start is None else self.start
        deviations = torch.full_like(first, self.deviation)
        deviations[-1] = NOISE_DEVIATION

        def log_posterior() -> Tensor:
            return found.log_marginal() - 0.5 * ((_logarithms(found) - first) / deviations).square().sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trial point with little noise needs jitter; the next one will not
            try:
                maximise(found, log_posterior, iterations, tolerance=self.tolerance)
                reached = float(log_posterior().detach())
            except NotPositiveDefiniteError:
                return -math.inf
        self.kernel.load_state_dict(found.kernel.state_dict())
        self.noise = float(found.noise.detach())
        return reached


def _logarithms(gp: ExactGP) -> Tensor:
    """Of the kernel's positive parameters, and last of the noise; one vector."""
    values = [
        constraint.transform(parameter).reshape(-1)
        for _, parameter, constraint in gp.kernel.named_parameters_and_constraints()
        if constraint is not None
    ]
    return torch.cat([*values, gp.noise.reshape(1)]).clamp_min(1e-30).log()


def stretch(kernel: Kernel, d: int) -> Tensor | None:
    """The inputs' units (d,) in which the kernel sees all of them alike; None for a kernel without lengthscales."""
    found = lengthscales(kernel, d)
    return None if found is None else torch.from_numpy(found / found.min()).clamp(max=LARGEST_STRETCH)
