"""Calibrated networks on the durations of trips (sec:dkl, sec:suppdkl): from a spec to scores, a table and a figure.

The paper's trips are private. Green taxis from three boroughs of New York and shared bikes of three cities stand in:
trips/nyc_green_taxi_30f.parquet and trips/bikeshare2016_three_cities.parquet in the folder that PARAGP_DATA names.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.stats import cramervonmises, kstest, norm
from sklearn.datasets import load_diabetes

from paragp.data.datasets import FLOOR, Split, Table, split
from paragp.data.files import read_table
from paragp.gp.methods import METHODS, Method
from paragp.metrics import coverage
from paragp.paper import figures, protocol, tables
from paragp.paper.dropout import SIZES, MCDropoutRegressor
from paragp.paper.protocol import Spec, Work
from paragp.paper.uci import Tick, scores, tensors
from paragp.predictive import Array, PredictiveDistribution
from paragp.training.recipe import RECIPES, Settings
from paragp.training.train import train

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage is counted
Z = np.linspace(-4, 4, 161)  # where the distribution of the z-scores is kept
MILLION = 1_000_000


# --- the trips ---

TAXIS, BIKES = "nyc_green_taxi_30f", "bikeshare2016_three_cities"
BOROUGHS = ("Manhattan", "Queens", "Brooklyn")
BIKE_CITIES = ("NYC", "Chicago", "Washington")
CITIES = {name.lower(): (TAXIS, name) for name in BOROUGHS} | {
    f"{name.lower()}-bikes": (BIKES, name) for name in BIKE_CITIES
}
# Ids; what is known only after the trip; what tells the rows apart that are kept. The rest are inputs.
NO_INPUTS = ("pu_borough", "do_borough", "PULocationID", "DOLocationID", "pickup_datetime", "trip_distance",
             "is_dispatch", "duration_min")  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def city(name: str) -> Table:
    """A city's trips: numbers, and the duration in minutes (of bikes its logarithm); "diabetes" is for a quick look."""
    if name == "diabetes":
        return Table(*load_diabetes(return_X_y=True))
    file, group = CITIES[name]
    place = Path(os.environ.get("PARAGP_DATA", ".")) / "trips" / f"{file}.parquet"
    if not place.exists():
        raise FileNotFoundError(
            f"The trips of {name} are not at {place}. Set PARAGP_DATA to the folder that holds trips/{file}.parquet."
        )
    return _taxis(read_table(place), group) if file == TAXIS else _bikes(read_table(place), group)


def _taxis(rows: pa.Table, borough: str) -> Table:
    """Street hails from a borough, without what is known only after the trip."""
    rows = rows.filter(pc.and_(pc.equal(rows["pu_borough"], borough), pc.equal(rows["is_dispatch"], 0)))
    inputs = [name for name in rows.column_names if name not in NO_INPUTS]
    return Table(np.column_stack([_numbers(rows, name) for name in inputs]), _numbers(rows, "duration_min"))


def _bikes(rows: pa.Table, group: str) -> Table:
    """Trips of a city by month, hour, day of the week and kind of rider; the logarithm tames a heavy tail."""
    rows = rows.filter(pc.equal(rows["city"], group))
    day = np.array([DAYS.index(name) for name in rows["day_of_week"].to_pylist()], dtype=np.float64)
    numbers = [_numbers(rows, name) for name in ("month", "hour", "subscriber")]
    return Table(np.column_stack([*numbers, day]), np.log(_numbers(rows, "duration_min")))


def _numbers(rows: pa.Table, name: str) -> Array:
    return rows[name].to_numpy().astype(np.float64)


# --- the methods ---


@dataclass(frozen=True)
class DeepMethod:
    """A row of the comparison: a method of the registry behind a network, or beside one."""

    label: str
    method: Method | None  # None: MC dropout
    neural_mean: bool = False
    colour: str = "#000000"


PPGPR = replace(METHODS["ppgpr-mfd"], beta=(0.05, 0.2, 0.5, 1.0))  # the paper's grid for networks
DEEP: dict[str, DeepMethod] = {
    "svgp-dkl": DeepMethod("SVGP + DKL", replace(METHODS["svgp"], beta=(1.0,)), colour="#0072b2"),
    "mc-dropout": DeepMethod("MC dropout", None, colour="#009e73"),
    "ppgpr-dkl": DeepMethod("PPGPR + DKL", PPGPR, colour="#d55e00"),
    "ppgpr-neural-mean": DeepMethod("PPGPR, neural mean", PPGPR, neural_mean=True, colour="#7a5195"),
}


@dataclass(frozen=True)
class Profile:
    """How far a comparison goes."""

    cities: tuple[str, ...]
    splits: int
    M: int
    sizes: tuple[int, ...]
    recipe: str
    epochs: int  # of the GPs
    dropout_epochs: int


PROFILES = {
    "smoke": Profile(("diabetes",), 1, 20, (16, 8), "auto", epochs=5, dropout_epochs=5),
    "lite": Profile(tuple(CITIES), 1, 1024, SIZES, "auto", epochs=15, dropout_epochs=30),
    "full": Profile(tuple(CITIES), 1, 1024, SIZES, "adam", epochs=200, dropout_epochs=200),  # the paper's
}


def specs(profile: str, cities: Iterable[str], methods: Iterable[str], splits: Iterable[int]) -> list[Spec]:
    chosen = PROFILES[profile]
    return [
        Spec(profile, name, method, k, chosen.M, chosen.recipe, None,
             chosen.epochs if DEEP[method].method else chosen.dropout_epochs)
        for name in cities for k in splits for method in methods
    ]  # fmt: skip


def work(spec: Spec) -> Work:
    """What a run takes, as far as it is known before: its epochs, each over one of a few like cities."""
    return Work(float(spec.epochs or 1), None)


def execute(spec: Spec, tick: Tick = lambda: None) -> dict[str, Any]:
    """Train as the spec says and score; the seconds of a prediction are under "timing"."""
    parts, row, sizes = split(city(spec.dataset), spec.split), DEEP[spec.method], PROFILES[spec.profile].sizes
    start = time.perf_counter()
    predict, found = _dropout(spec, sizes, parts, tick) if row.method is None else _gp(spec, row, sizes, parts, tick)
    trained, test = time.perf_counter() - start, parts.test.x
    predict(test[:1000])  # warm
    start = time.perf_counter()
    dist = predict(test)
    seconds = time.perf_counter() - start
    return found | {
        **calibration(dist, parts.test.y),
        "valid": scores(predict(parts.valid.x), parts.valid.y),
        "timing": {"seconds": trained, "seconds_to_predict_a_million_rows": seconds * MILLION / len(test)},
    }


Predict = Callable[[Array], PredictiveDistribution]


def _gp(
    spec: Spec, row: DeepMethod, sizes: tuple[int, ...], parts: Split, tick: Tick
) -> tuple[Predict, dict[str, Any]]:
    assert row.method is not None
    settings = Settings(
        row.method, n_inducing=spec.M, epochs=spec.epochs, recipe=RECIPES[spec.recipe],
        features=None if row.neural_mean else sizes, mean=sizes if row.neural_mean else None,
    )  # fmt: skip
    rows, held_out = tensors(parts.train), tensors(parts.valid)
    trained = train(settings, rows, held_out, generator=torch.Generator().manual_seed(0), on_epoch=lambda _: tick())
    model = trained.model
    with torch.no_grad():
        factor = model.factorise()
    found = {"beta": trained.beta, "epochs": len(trained.history), "best_epoch": trained.best_epoch}
    return lambda x: model.predict(torch.from_numpy(x).float(), factor=factor), found


def _dropout(spec: Spec, sizes: tuple[int, ...], parts: Split, tick: Tick) -> tuple[Predict, dict[str, Any]]:
    model = MCDropoutRegressor(sizes, max_epochs=spec.epochs or 200, random_state=0, progress=tick)
    model.fit(*parts.train, X_val=parts.valid.x, y_val=parts.valid.y)
    return model.predict_dist, {"p": model.p_, "tau": model.tau_, "epochs": spec.epochs}


def calibration(dist: PredictiveDistribution, y: Array) -> dict[str, Any]:
    """Scores, what intervals cover, and how far the z-scores are from normal: Kolmogorov-Smirnov's largest difference
    of the distributions, and Cramér-von Mises' mean squared one."""
    found = scores(dist, y)
    ((_, floored),) = dist.floored(FLOOR)  # none of them is a mixture
    z = floored.normal_scores(y)
    found |= {f"coverage_{level:g}": coverage(floored, y, level=level) for level in LEVELS}
    found |= {"ks": float(kstest(z, norm.cdf).statistic), "cvm": float(cramervonmises(z, norm.cdf).statistic) / len(z)}
    return {"scores": found, "z_cdf": (np.searchsorted(np.sort(z), Z, side="right") / len(z)).tolist()}


# --- what comes of it ---

COLUMNS = {
    "nll": "NLL", "rmse": "RMSE", "crps": "CRPS", **{f"coverage_{level:g}": f"{level:.0%}" for level in LEVELS},
    "ks": "KS", "cvm": "CvM",
}  # fmt: skip


def results(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The first split's run of each city and method."""
    found = {(run["spec"]["dataset"], run["spec"]["method"]): run for run in _first_splits(folder)}
    if not found:
        raise ValueError(f"There are no runs in {folder}. Make some with: paragp paper run --experiment trips")
    return {(name, method): found[name, method] for name in (*CITIES, "diabetes") for method in DEEP
            if (name, method) in found}  # fmt: skip


def _first_splits(folder: Path) -> Iterable[dict[str, Any]]:
    return (run for run in protocol.read(folder) if run["spec"]["split"] == 0)


def table(folder: Path, profile: str) -> tables.Table:
    """Scores by city and method; bold: the best of the city, of coverages the nearest."""
    found = results(folder)
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for (name, method), run in found.items():
        rivals = [other for (place, _), other in found.items() if place == name]
        timing = protocol.timing(run["spec"], folder)
        row = [name, DEEP[method].label]
        for metric in COLUMNS:
            if run is min(rivals, key=lambda other: _distance(other, metric)):
                best.add((len(rows), len(row)))
            digits = 4 if metric == "cvm" else 3
            row.append(f"{run['scores'][metric]:.{digits}f}")
        keys = ("seconds", "seconds_to_predict_a_million_rows")
        rows.append([*row, *(f"{timing[key]:.0f}" if key in timing else "" for key in keys)])
    caption = (
        f"Trips (profile {profile}, the first split), standardised: scores, the share of rows in intervals of 50 to "
        "95 %, the distance of the z-scores' distribution from the normal one (Kolmogorov-Smirnov, Cramér-von Mises), "
        "and the seconds to train and to predict a million rows."
    )
    return tables.Table(
        "trips", caption, ["city", "method", *COLUMNS.values(), "train", "predict"], rows, frozenset(best)
    )


def _distance(run: dict[str, Any], metric: str) -> float:
    score = float(run["scores"][metric])
    return abs(score - float(metric.removeprefix("coverage_"))) if metric.startswith("coverage_") else score


def figure(folder: Path) -> Any:
    """Fig eta: the distribution of z-scores against the normal one, a panel per city."""
    found = results(folder)
    names = list(dict.fromkeys(name for name, _ in found))
    columns = min(figures.PANELS, len(names))
    made, axes = figures.figure(-(-len(names) // columns), columns)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        axis.plot(Z, norm.cdf(Z), "--", color="#444444", linewidth=1, label="ideal")
        for method, row in DEEP.items():
            if (name, method) in found:
                axis.plot(Z, found[name, method]["z_cdf"], color=row.colour, linewidth=1.2, label=row.label)
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_xlim(-3, 3)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=7)
    made.supxlabel("z-score", fontsize=9)
    made.supylabel("share of rows below", fontsize=9)
    return made
