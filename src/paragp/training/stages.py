"""Training without gradient steps: the mean is solved for accuracy, then the noise is fitted to what it leaves.

An objective that trains mean and variance together buys likelihood with accuracy: where the variance can explain an
error, the mean stops trying. Here each has its own task.

    mean    ridge regression on many inducing points with FITC's weights, 1 / (ktilde_i + sigma_obs^2) (Eqn fitc)
    noise   log-linear in the kernel's features (`LogPower`), fitted to the leave-one-out residuals of that mean: what
            is left of rows that it has seen is too small
    shape   Student's, with tails as light as the residuals, and one row more that is far off, want them; or, where
            validation rows are clearly likelier so, a mixture of a few (`Shape`), which may lean to one side; then
            level and shape as these rows have them
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from paragp.data.rows import Data, Rows
from paragp.gp.kernels import evened
from paragp.gp.linalg import keep_freed_memory
from paragp.gp.model import ParametricGP
from paragp.predictive import Array
from paragp.training.best import Best, Trial, in_errors, scored
from paragp.training.distributed import Group
from paragp.training.loop import Epoch
from paragp.training.noise import SHAPE_UNKNOWNS, Head
from paragp.training.ridge import CHUNK, NOISE_ROWS, Ridge

PENALTIES = (30.0, 3.0, 0.3, 0.03)  # on the noise's weights, from nearly constant on; 1: a standard normal prior
CLEARLY_LIKELIER = 2.0  # standard errors
MOST_SHIFT = 6.0  # of the logarithm of the noise, by validation rows


def fits() -> int:
    """The most entries that `solve_in_stages` adds to the history."""
    return 2 * len(PENALTIES) + 3  # with two kernels, then a mixture, a level and a shape


@torch.no_grad()
def solve_in_stages(
    model: ParametricGP,
    data: Rows,
    best: Best,
    betas: Sequence[float],
    group: Group,
    *,
    fresh: bool = True,
    pause: Callable[[], object] = lambda: None,
) -> bool:
    """Set the model's mean, noise and tails; whether the validation NLL became better. `best` keeps the best state.

    `betas` are weights of the mean's prior from the largest on, of which the validation rows choose.
    Without validation rows the first counts, and the noise is normal under the prior. FITC's noise is the likelihood's
    in a `fresh` model; in one that was trained it is what the rows have on average. `pause()` is called between solves.
    """
    keep_freed_memory()
    held_out = best.validation
    best.begin(Trial(betas[0]))
    rows = some(data.sample, NOISE_ROWS)
    noise = float(model.noise if fresh else model.predict(some(rows, CHUNK).x).noise_var.mean())
    ridge = Ridge(model, data, noise, group, keep=True)
    pause()
    mean, there = ridge.choose(betas, held_out)
    group.agree([model.family.m, mean.m])
    pause()
    left = ridge.left_out(mean, rows)
    del ridge
    pause()
    best.current = Trial(mean.beta)
    if held_out is None or there is None:
        best.after(Epoch(0, Head(model, model.kernel, rows, left).fit(1.0), 0.0, 0.0))
        return best.end()
    check = Validation(best, held_out, there, group, pause)
    # Noise may depend on what says nothing of the mean: beside the mean's kernel, one that sees all inputs alike.
    kernels = [kernel for kernel in (model.kernel, evened(model.kernel, rows.x.shape[1])) if kernel is not None]
    leading, least = None, math.inf
    for kernel in kernels:
        head = Head(model, kernel, rows, left, held_out.x)
        nll = fit_noise(head, check)
        if leading is None or nll < least:
            leading, least = head, nll
    assert leading is not None
    check.attempt(leading, lambda: leading.fit(leading.penalty, tails=True, mixture=True))
    check.attempt(leading, lambda: check.level(leading), fitted=1)
    check.attempt(leading, lambda: check.shape(leading), fitted=SHAPE_UNKNOWNS)
    return best.end()


def fit_noise(head: Head, check: "Validation", *, tails: bool = True) -> float:
    """Fit with ever smaller penalties while that helps: normal noise, then from the best of it on with tails; its NLL.

    Only the latter are kept. Tails that are not needed are light, and the normal, which may look as good on the
    validation rows, has nothing for the row that is unlike them all.
    """
    kept, least = 0, math.inf
    for with_tails in (False, True) if tails else (False,):
        least, at = math.inf, head.at
        for place in range(kept, len(PENALTIES)):
            nll = check.score(head, head.fit(PENALTIES[place], with_tails), keep=with_tails)
            if not nll < least:
                break
            least, at, kept = nll, head.at, place
        head.at, head.penalty = at, PENALTIES[kept]
    return least


def some(rows: Data, most: int) -> Data:
    """At most so many of the rows, spread over all of them: tables are often sorted."""
    return rows if rows.size <= most else rows.take(slice(None, None, math.ceil(rows.size / most)))


class Validation:
    """Scores fits on the validation rows, for `best` to choose among them."""

    def __init__(
        self, best: Best, rows: Data, mean: Tensor, group: Group, pause: Callable[[], object] = lambda: None
    ) -> None:
        self.best, self.rows, self.mean, self.group, self.pause = best, rows, mean, group, pause

    def score(self, head: Head, objective: float, *, keep: bool) -> float:
        """The NLL of a fit, of which `best` takes note if it may be kept."""
        self.pause()
        self.group.agree(list(self.best.model.state_dict().values()))
        scores = scored(head.predict(self.mean), self.rows, self.group)
        if keep:
            self.best.after(Epoch(0, objective, 0.0, 0.0, scores))
        return scores["nll"]

    def attempt(self, head: Head, change: Callable[[], float], fitted: int = 0) -> None:
        """Take note of what the `change` of a fit comes to if the rows are clearly likelier so; else undo it.

        Of a change that was fitted to these very rows, with so many unknowns, each of these counts for what it gains by
        chance, as in Akaike's criterion.
        """
        head.write()
        at, before = head.at, self._log_densities(head)
        objective = change()
        gain = self._log_densities(head) - before - fitted / self.rows.total
        enough = self.rows.total > fitted + 1  # for a spread of what is gained
        clearly = torch.tensor(float(enough and in_errors(gain, self.rows) > CLEARLY_LIKELIER))
        self.group.agree([clearly])
        if bool(clearly):
            self.score(head, objective, keep=True)
        else:
            head.at = at

    def level(self, head: Head) -> float:
        """Set the level of the noise by the validation rows: leave-one-out residuals may all be too large, or small."""
        at, weights = head.at, None if self.rows.weights is None else self.rows.weights.numpy(force=True)

        def nll(shift: float) -> float:
            head.at = at._replace(b=at.b + shift)
            return -float(np.average(self._log_densities(head), weights=weights))

        head.at = at._replace(b=at.b + minimize_scalar(nll, bounds=(-MOST_SHIFT, MOST_SHIFT)).x)
        head.write()
        return head.objective()

    def shape(self, head: Head) -> float:
        """Set level, tails and mixture by the validation rows."""
        rows = self.rows
        residuals = (rows.y - self.mean).double()
        weights = torch.ones_like(residuals) if rows.weights is None else rows.weights.double()
        return head.fit_shape(residuals, weights)

    def _log_densities(self, head: Head) -> Array:
        return head.predict(self.mean).logpdf(self.rows.y.double().numpy(force=True))
