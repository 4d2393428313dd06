"""How good, and how soon: test scores against wall-clock time, ours and what a user would take instead.

    PARAGP_DATA=... python benchmarks/quality.py --datasets pol --methods ppgpr-mfd --splits 0 --json
    PARAGP_DATA=... python benchmarks/quality.py --datasets pol --peer gpytorch --plot curves.png

`--peer gpytorch` compares split 0 alone: its curve is of that split, at beta_reg = .05, without validation rows.

Protocol: 15:3:2 rows for training, test and validation, standardised by the training rows, M = 1000 points for mean and
variance each, predicted deviations floored at .01 before NLL and CRPS, for all. A run is one JSON file under
results/quality/ and is not repeated while that file is there (`--rerun` does). Our seconds run from the call that makes
the model to the end of training: starting points, validation and the search of beta_reg included, the test scores taken
on the way not; beside GPyTorch's curve they are those of epochs timed in turns with its. Runs beside other work say
nothing of seconds: `--time` times a few epochs, or trees, of split 0 with nothing beside, and stores in
results/seconds.json what a whole run takes by them. `--peer` compares with GPyTorch (its stored curve, see
gpytorch_curve.py), CatBoost or NGBoost: up to 2000 trees, early stopping after 50, otherwise defaults.
"""

import argparse
import json
import pathlib
import statistics
import time
from itertools import pairwise

import gpytorch_curve
import machine
import numpy as np
import torch
from scipy.stats import kstest

from paragp.atomic import writing
from paragp.data.datasets import FLOOR, Split, Table, load, split
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.metrics import COVERAGE_LEVELS, evaluate, floored_scores, pit
from paragp.paper.protocol import SMALLER
from paragp.paper.trips import CITIES, city
from paragp.paper.uci import scores, tensors
from paragp.predictive import PredictiveDistribution
from paragp.training.recipe import RECIPES, Settings
from paragp.training.start import new_model
from paragp.training.train import train

FOLDER = pathlib.Path(__file__).parent / "results" / "quality"
SECONDS = FOLDER.parent / "seconds.json"
TREES, PATIENCE = 2000, 50
TIMED, TIMED_TREES = 3, 60  # epochs after the first, and trees, that are timed
FRESH, FRESH_ROWS = (*CITIES, "houseelectric"), 20_000  # tables that nothing was chosen on, and what is taken of each
# Other values stand in a run's name.
DEFAULTS = {"recipe": "auto", "M": 1000, "M_mean": None, "beta": None, "renyi": 1.0, "seed": 0}


def table(name: str) -> Table:
    """A data set; of those that nothing was chosen on, so many rows drawn at random."""
    found = city(name) if name in CITIES else load(name)
    if name not in FRESH:
        return found
    rows = np.random.default_rng(0).permutation(len(found.y))[:FRESH_ROWS]
    return Table(found.x[rows], found.y[rows])


def calibration(dist: PredictiveDistribution, y: np.ndarray) -> dict[str, float]:
    """The shares of rows that central intervals hold, as they are and floored, and the PIT's distance from uniform
    (Kolmogorov-Smirnov)."""
    names = [f"coverage_{level}" for level in COVERAGE_LEVELS]
    own, floored = evaluate(dist, y), floored_scores(dist, y, FLOOR)
    shares = {name: own[name] for name in names} | {f"floored_{name}": floored[name] for name in names}
    return shares | {"ks": float(kstest(pit(dist, y), "uniform").statistic)}


def ours(method: str, parts: Split, options: argparse.Namespace) -> dict:
    """One training with the library's defaults; its test scores after each epoch, the clock stopped meanwhile."""
    train_rows, test_rows, valid_rows = (tensors(part) for part in parts)
    generator = torch.Generator().manual_seed(options.seed)
    settings = Settings(
        METHODS[method], n_inducing=options.M_mean or options.M, recipe=RECIPES[options.recipe], beta=options.beta,
        n_inducing_variance=options.M if options.M_mean else None, renyi=options.renyi,
    )  # fmt: skip
    curve, paused, start = [], 0.0, time.perf_counter()

    def score(model: ParametricGP) -> dict[str, float]:
        return scores(model.predict(test_rows.x), test_rows.y.double().numpy())

    def watch(record) -> None:
        nonlocal paused
        now = time.perf_counter()
        if options.curve:
            valid = {f"valid_{name}": value for name, value in record.validation.items()}
            curve.append({"seconds": now - start - paused, **score(model), **valid})
        paused += time.perf_counter() - now

    model = new_model(settings, train_rows, generator)
    first = time.perf_counter() - start
    trained = train(settings, train_rows, valid_rows, generator=generator, start=model, on_epoch=watch)
    seconds = time.perf_counter() - start - paused
    return {
        "seconds": seconds, "start_seconds": first, "epochs": len(trained.history), "best_epoch": trained.best_epoch,
        "beta": trained.beta, "gamma": trained.gamma, **score(model),
        **calibration(model.predict(test_rows.x), test_rows.y.double().numpy()),
        "noise_std": None if model.noise_by_row else float(model.noise.detach()) ** 0.5,
        "valid": scores(model.predict(valid_rows.x), valid_rows.y.double().numpy()), "curve": curve,
    }  # fmt: skip


def catboost(parts: Split, options: argparse.Namespace) -> dict:
    from catboost import CatBoostRegressor

    start = time.perf_counter()
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", iterations=TREES, thread_count=torch.get_num_threads(), verbose=False,
        random_seed=options.seed, allow_writing_files=False,
    )  # fmt: skip
    model.fit(parts.train.x, parts.train.y, eval_set=(parts.valid.x, parts.valid.y), early_stopping_rounds=PATIENCE)
    seconds = time.perf_counter() - start
    mean, var = model.predict(parts.test.x).T
    return {
        "seconds": seconds,
        "trees": model.tree_count_,
        **scores(PredictiveDistribution(mean, var, 0.0), parts.test.y),
        **calibration(PredictiveDistribution(mean, var, 0.0), parts.test.y),
    }


def ngboost(parts: Split, options: argparse.Namespace) -> dict:
    from ngboost import NGBRegressor

    start = time.perf_counter()
    model = NGBRegressor(n_estimators=TREES, verbose=False, random_state=options.seed, early_stopping_rounds=PATIENCE)
    model.fit(parts.train.x, parts.train.y, X_val=parts.valid.x, Y_val=parts.valid.y)
    seconds = time.perf_counter() - start
    found = model.pred_dist(parts.test.x, max_iter=model.best_val_loss_itr)
    dist = PredictiveDistribution(found.loc, found.scale**2, 0.0)
    return {"seconds": seconds, "trees": model.best_val_loss_itr, **scores(dist, parts.test.y),
            **calibration(dist, parts.test.y)}  # fmt: skip


PEERS = {"catboost": catboost, "ngboost": ngboost}


def seconds_by_epoch(method: str, parts: Split) -> dict:
    """What a training takes before its first epoch and for each, from the first few; the whole where it has none."""
    rows, _, valid = (tensors(part) for part in parts)
    ends: list[float] = []

    def watch(_: object) -> None:
        ends.append(time.perf_counter())
        if len(ends) > TIMED and not METHODS[method].stages:
            raise gpytorch_curve.Enough

    start = time.perf_counter()
    try:
        train(Settings(METHODS[method]), rows, valid, generator=torch.Generator().manual_seed(0), on_epoch=watch)
    except gpytorch_curve.Enough:
        each = statistics.median(later - sooner for sooner, later in pairwise(ends))
        return {"start_seconds": ends[0] - start - each, "epoch_seconds": each}
    return {"start_seconds": time.perf_counter() - start, "epoch_seconds": 0.0}


def seconds_by_tree(parts: Split) -> dict:
    """The same for NGBoost's trees, of which it makes PATIENCE more than it keeps."""
    from ngboost import NGBRegressor

    model = NGBRegressor(n_estimators=TIMED_TREES, verbose=False, random_state=0)
    took = machine.timed(
        lambda: model.fit(parts.train.x, parts.train.y, X_val=parts.valid.x, Y_val=parts.valid.y)  # scored after each
    )
    return {"start_seconds": PATIENCE * took / TIMED_TREES, "tree_seconds": took / TIMED_TREES}


def take_times(names: list[str], methods: list[str]) -> None:
    """Add to results/seconds.json, or replace there, what runs of these take."""
    stored = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.exists() else []
    for name in names:
        parts = split(table(name), 0)
        for method in methods:
            found = seconds_by_tree(parts) if method == "ngboost" else seconds_by_epoch(method, parts)
            row = {"dataset": name, "method": method, **found, "machine": machine.describe()}
            stored = [other for other in stored if (other["dataset"], other["method"]) != (name, method)] + [row]
            with writing(SECONDS) as part:
                part.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            print(name, method, found, flush=True)


def run(name: str, method: str, k: int, options: argparse.Namespace) -> dict:
    """A run, from its file if it has one that serves."""
    wanted = {key: getattr(options, key) for key in DEFAULTS}
    given = {key: value for key, value in wanted.items() if value != DEFAULTS[key]} if method not in PEERS else {}
    words = [name, method, str(k), *(f"{key}={value}" for key, value in given.items())]
    file = pathlib.Path(options.folder) / f"{'-'.join(words)}.json"
    if file.exists() and not options.rerun:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.get("curve") or not options.curve or method in PEERS:
            return found
    parts = split(table(name), k)
    found = {"dataset": name, "method": method, "recipe": options.recipe, "split": k, "seed": options.seed}
    sizes = {"M": options.M, "M_mean": options.M_mean}
    found |= PEERS[method](parts, options) if method in PEERS else {**sizes, **ours(method, parts, options)}
    found["machine"] = machine.describe()
    with writing(file) as part:
        part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def peer_file(name: str, method: str, options: argparse.Namespace) -> dict:
    """GPyTorch's curve with the seconds of both sides, from its file."""
    file = gpytorch_curve.place(name, method)
    if options.rerun_peer:
        file.unlink(missing_ok=True)
        file.with_suffix(".pt").unlink(missing_ok=True)
    if not file.exists():
        gpytorch_curve.run(name, method, options.peer_epochs, options.peer_epochs)
        gpytorch_curve.timing(name, method, options.peer_epochs)
    return json.loads(file.read_text(encoding="utf-8"))


def reached(curve: list[dict], target: float) -> float | None:
    """The first second at which the test NLL was as low as that."""
    return next((point["seconds"] for point in curve if point["nll"] <= target), None)


def against(curve: list[dict], peer: list[dict], targets: list[float]) -> list[dict]:
    """When each side reached each target; without targets, the NLL at which the peer ended."""
    found = []
    for target in targets or [peer[-1]["nll"]]:
        mine, theirs = reached(curve, target), reached(peer, target)
        ratio = theirs / mine if mine and theirs else None
        found.append({"target": target, "seconds": mine, "peer_seconds": theirs, "ratio": ratio})
    return found


def compare(row: dict, options: argparse.Namespace) -> None:
    """Add, print and draw the comparison of a run with GPyTorch's curve."""
    found = peer_file(row["dataset"], row["method"], options)
    peer, curve = gpytorch_curve.by_seconds(found), gpytorch_curve.ours_by_seconds(row["curve"], found)
    targets = [float(word) for word in options.targets.split(",")] if options.targets else []
    row["against_gpytorch"] = against(curve, peer, targets)
    for line in row["against_gpytorch"]:
        print("   ", ", ".join(f"{key} {value:.4g}" for key, value in line.items() if value is not None))
    if options.plot:
        draw(curve, peer, row["dataset"], options.plot)


def draw(curve: list[dict], peer: list[dict], title: str, file: str) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3), constrained_layout=True)
    for axis, name in zip(axes, ("nll", "rmse", "crps"), strict=True):
        for points, label in ((curve, "paragp"), (peer, "GPyTorch")):
            axis.plot([point["seconds"] for point in points], [point[name] for point in points], label=label)
        axis.set(xscale="log", xlabel="seconds", title=f"{title}: test {name.upper()}")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(SMALLER))
    parser.add_argument("--methods", default="ppgpr-mfd", help="rows of the registry, catboost, ngboost")
    parser.add_argument("--splits", default="0,1,2")
    parser.add_argument("--seed", type=int, default=DEFAULTS["seed"])
    parser.add_argument("--M", type=int, default=DEFAULTS["M"])
    parser.add_argument("--M-mean", dest="M_mean", type=int, help="points of the mean, if not as many")
    parser.add_argument("--beta", type=float, help="of the regulariser; without it the grid is searched")
    parser.add_argument("--renyi", type=float, default=DEFAULTS["renyi"], help="order of the regulariser")
    parser.add_argument("--recipe", default="auto", choices=list(RECIPES))
    parser.add_argument("--curve", action="store_true", help="score the test rows after each epoch")
    parser.add_argument("--peer", choices=["gpytorch", *PEERS], help="compare with")
    parser.add_argument("--peer-epochs", type=int, default=400, help="of a GPyTorch run without a stored curve")
    parser.add_argument("--rerun-peer", action="store_true", help="make GPyTorch's curve anew")
    parser.add_argument("--targets", help="NLLs to be reached, comma-separated; else where GPyTorch ended")
    parser.add_argument("--plot", help="a picture of the curves")
    parser.add_argument("--folder", default=str(FOLDER), help="where the runs are kept")
    parser.add_argument("--rerun", action="store_true")
    parser.add_argument("--time", action="store_true", help="time the methods instead, with nothing beside")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    options.curve = options.curve or options.peer == "gpytorch"
    methods = options.methods.split(",") + [options.peer] * (options.peer in PEERS)
    if options.time:
        take_times(options.datasets.split(","), methods)
        return
    rows = []
    for name in options.datasets.split(","):
        for method in methods:
            for k in options.splits.split(","):
                row = run(name, method, int(k), options)
                rows.append(row)
                print(
                    f"{name:<13} {method:<12} split {k}   NLL {row['nll']:7.3f}   RMSE {row['rmse']:.4f}   CRPS "
                    f"{row['crps']:.4f}   {row['seconds']:6.1f} s",
                    flush=True,
                )
                if options.peer == "gpytorch" and k == "0" and method in gpytorch_curve.PEERS:
                    compare(row, options)
    if options.json:
        print(json.dumps({"machine": machine.describe(), "rows": rows}))


if __name__ == "__main__":
    main()
