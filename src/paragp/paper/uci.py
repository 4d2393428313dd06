"""A run of the comparison on univariate regression tables (Sec. Experiments): from a spec to test scores."""

import math
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_diabetes

from paragp.data.datasets import DATASETS, FLOOR, SHARES, Split, Table, load, split
from paragp.data.rows import Data
from paragp.gp.exact import fit_exact
from paragp.gp.methods import METHODS
from paragp.metrics import floored_scores, noise_fraction
from paragp.paper.protocol import PROFILES, Spec, Work
from paragp.paper.raissi import fit_raissi
from paragp.predictive import PredictiveDistribution
from paragp.training.recipe import RECIPES, Settings
from paragp.training.train import total_epochs, train

SCORES = ("nll", "rmse", "crps", "noise_fraction")
EXACT_STEPS, RAISSI_STEPS = 100, 1000

Tick = Callable[[], object]  # called after each epoch or step


def table(name: str) -> Table:
    """A table by name; "diabetes" comes with scikit-learn."""
    return Table(*load_diabetes(return_X_y=True)) if name == "diabetes" else load(name)


def tensors(part: Table) -> Data:
    return Data(*(torch.from_numpy(values).float() for values in part))


def scores(dist: PredictiveDistribution, y: Any) -> dict[str, float]:
    """In standardised units, deviations floored for all alike; the noise share is of the model as it is."""
    found = floored_scores(dist, y, FLOOR) | {"noise_fraction": noise_fraction(dist)}
    return {name: found[name] for name in SCORES}


def execute(spec: Spec, tick: Tick = lambda: None) -> dict[str, Any]:
    """Train as the spec says and score; nothing in the result depends on when or where."""
    parts = split(table(spec.dataset), spec.split)
    return BY_NAME.get(spec.method, scalable)(spec, parts, tick)


def settings(spec: Spec) -> Settings:
    return Settings(
        METHODS[spec.method], n_inducing=spec.M, beta=spec.beta, gamma=spec.gamma, epochs=spec.epochs,
        batch_size=spec.batch_size, recipe=RECIPES[spec.recipe],
    )  # fmt: skip


def scalable(spec: Spec, parts: Split, tick: Tick) -> dict[str, Any]:
    rows, _, held_out = (tensors(part) for part in parts)
    wanted = settings(spec)
    config = wanted.config(len(rows.y))
    trained = train(wanted, rows, held_out, generator=torch.Generator().manual_seed(0), on_epoch=lambda _: tick())
    return {
        **_scored(trained.model.predict, parts), "beta": trained.beta, "gamma": trained.gamma,
        **({} if trained.bb_alpha is None else {"bb_alpha": trained.bb_alpha}),
        "training": {
            "batch_size": config.batch_size, "epochs": config.epochs, "learning_rate": config.learning_rate,
            "rates": config.rates, "kernel_rows": wanted.recipe.kernel_rows,
        },
        "epochs": len(trained.history), "best_epoch": trained.best_epoch,
        "noise_std": None if trained.model.noise_by_row else float(trained.model.noise.detach()) ** 0.5,
    }  # fmt: skip


def exact(spec: Spec, parts: Split, tick: Tick) -> dict[str, Any]:
    rows, profile = tensors(parts.train), PROFILES[spec.profile]
    generator = torch.Generator().manual_seed(0)
    gp = fit_exact(
        "matern52", rows.x, rows.y, generator=generator, iterations=spec.epochs or EXACT_STEPS,
        learn_rows=profile.exact_rows, cg_steps=profile.exact_cg_steps, progress=tick,
    )  # fmt: skip
    gp.double()  # tens of thousands of rows leave single precision no digits
    factor = gp.factorise()
    return {
        **_scored(lambda x: gp.predict(x.double(), factor=factor), parts),
        "noise_std": float(gp.noise.detach()) ** 0.5, "solver": gp.solver, "distinct_rows": len(gp.X),
        "learned_rows": profile.exact_rows, "cg_steps": profile.exact_cg_steps,
    }  # fmt: skip


def raissi(spec: Spec, parts: Split, tick: Tick) -> dict[str, Any]:
    """Its predictive variance with the noise, and as its authors' code has it, without."""
    rows = tensors(parts.train)
    generator = torch.Generator().manual_seed(0)
    model = fit_raissi(rows, M=spec.M, generator=generator, iterations=spec.epochs or RAISSI_STEPS, progress=tick)
    noise = float(model.noise.detach()) ** 0.5
    without = _scored(model.predict_function, parts)
    return {**_scored(model.predict, parts), "noise_std": noise, "without_noise": without}


def work(spec: Spec) -> Work:
    """What a run takes: for steps of Adam, their number times M^3 + B M^2; for the exact GP, a factor of all rows."""
    rows = DATASETS[spec.dataset].rows * SHARES[0] if spec.dataset in DATASETS else 300.0
    if spec.method in BY_NAME:
        steps = spec.epochs or (EXACT_STEPS if spec.method == "exact" else RAISSI_STEPS)
        learned = min(rows, PROFILES[spec.profile].exact_rows) if spec.method == "exact" else spec.M
        return Work(4 * steps * learned**3 + (rows**3 / 3 if spec.method == "exact" else 0.0))
    wanted, n = settings(spec), round(rows)
    config, epochs = wanted.config(n), total_epochs(wanted, n, searching=True)
    return Work(epochs * math.ceil(n / config.batch_size) * 5 * (spec.M**3 + config.batch_size * spec.M**2), epochs)


Runner = Callable[[Spec, Split, Tick], dict[str, Any]]
BY_NAME: dict[str, Runner] = {"exact": exact, "raissi": raissi}  # not in the registry


def _scored(predict: Callable[[torch.Tensor], PredictiveDistribution], parts: Split) -> dict[str, Any]:
    return {
        name: scores(predict(tensors(part).x), tensors(part).y.double().numpy())
        for name, part in (("scores", parts.test), ("valid", parts.valid))
    }
