"""What the default could have beside what it has, on rows that choices are made by: the validation rows of split 3.

    PARAGP_DATA=... python benchmarks/candidates.py --datasets pol,bike --json

Beside the default as it is: the mean solved again with rows weighed by the noise^-1/2 that was found for them, an
ensemble of three fits (their mixture has the mean of the means and the variance of all), and kriging of the residuals
of the 16 training rows that are nearest in the kernel's units. Rows of a set are kept in results/candidates/, not made
again while they are there.
"""

import argparse
import json
import pathlib
import time

import machine
import numpy as np
import torch

from paragp.atomic import writing
from paragp.data.datasets import load, split
from paragp.data.rows import Data
from paragp.gp.kernels import covariance
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.paper.protocol import SMALLER
from paragp.paper.uci import scores, tensors
from paragp.predictive import PredictiveDistribution
from paragp.training.distributed import ALONE
from paragp.training.recipe import Settings
from paragp.training.ridge import CHUNK, Ridge
from paragp.training.start import stretch
from paragp.training.train import train

FOLDER = pathlib.Path(__file__).parent / "results" / "candidates"
SETTINGS, SPLIT, FITS, NEIGHBOURS = Settings(METHODS["two-stage"]), 3, 3, 16
LABELS = {
    "default": "the default", "reweighed": "mean weighed by the noise^-1/2", "ensemble": f"{FITS} fits",
    "neighbours": f"{NEIGHBOURS} neighbours",
}  # fmt: skip


def reweighed(model: ParametricGP, rows: Data, held_out: Data) -> np.ndarray:
    """The mean at rows held out, solved for again with rows weighed by the root of the precision that was found for
    them; the prior's weight is chosen again."""
    precision = torch.from_numpy(model.predict(rows.x).var).to(rows.y).rsqrt()
    weighed = rows._replace(weights=precision / precision.mean())
    _, there = Ridge(model, weighed, float(model.noise), ALONE).choose(SETTINGS.ridges, held_out)
    return there.numpy()


def kriged(model: ParametricGP, rows: Data, x: torch.Tensor) -> np.ndarray:
    """The mean at x with what the nearest residuals say, of the prior that the points leave unknown and noise."""
    kernel, there = model.kernel, model.predict(rows.x)
    left = rows.y - torch.from_numpy(there.mean).to(rows.y)
    noise = torch.from_numpy(there.var).to(rows.y)
    features = model.family.mean_basis(kernel).features
    units = stretch(kernel, x.shape[1]).to(x)
    found = []
    for part in x.split(CHUNK // NEIGHBOURS):
        nearest = torch.cdist(part / units, rows.x / units).topk(NEIGHBOURS, largest=False).indices  # (b, k)
        joint = torch.cat([part[:, None], rows.x[nearest]], 1)  # (b, 1 + k, d)
        A = features(joint.flatten(0, 1)).T.unflatten(0, joint.shape[:2])  # (b, 1 + k, M)
        K = torch.stack([covariance(kernel, each, each) for each in joint]) - A @ A.mT
        C = K[:, 1:, 1:] + torch.diag_embed(noise[nearest] + 1e-4)
        found.append((K[:, :1, 1:] @ torch.linalg.solve(C, left[nearest][..., None]))[:, 0, 0])
    return torch.cat(found).numpy()


def mixture(dists: list[PredictiveDistribution]) -> PredictiveDistribution:
    """One distribution, in the first one's shape, with the mean and variance of them all together."""
    means = np.stack([dist.mean for dist in dists])
    var = np.mean([dist.var for dist in dists], axis=0) + means.var(axis=0)
    return PredictiveDistribution(means.mean(axis=0), 0.0, var, dists[0].shape)


@torch.no_grad()
def candidates(name: str) -> dict[str, dict]:
    rows, _, valid = (tensors(part) for part in split(load(name), SPLIT))
    y, found, dists, models = valid.y.double().numpy(), {}, [], []

    def take(label: str, dist: PredictiveDistribution, start: float) -> None:
        found[label] = scores(dist, y) | {"seconds": time.perf_counter() - start}

    start = time.perf_counter()
    for seed in range(FITS):
        with torch.enable_grad():
            trained = train(SETTINGS, rows, valid, generator=torch.Generator().manual_seed(seed))
        models.append(trained.model)
        dists.append(models[-1].predict(valid.x))
        if not seed:
            take("default", dists[0], start)
    take("ensemble", mixture(dists), start)
    own = dists[0]
    start = time.perf_counter()
    corrected = own.mean + kriged(models[0], rows, valid.x)
    take("neighbours", PredictiveDistribution(corrected, own.function_var, own.noise_var, own.shape), start)
    start = time.perf_counter()
    mean = reweighed(models[0], rows, valid)
    take("reweighed", PredictiveDistribution(mean, own.function_var, own.noise_var, own.shape), start)
    return {label: found[label] for label in LABELS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(SMALLER))
    parser.add_argument("--folder", default=str(FOLDER), help="where the rows are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    results = {}
    pathlib.Path(options.folder).mkdir(parents=True, exist_ok=True)
    for name in options.datasets.split(","):
        file = pathlib.Path(options.folder) / f"{name}.json"
        if not file.exists():
            content = {"dataset": name, "split": SPLIT, "rows": candidates(name), "machine": machine.describe()}
            with writing(file) as part:
                part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        results[name] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        for label, row in results[name].items():
            shown = "   ".join(f"{key.upper()} {row[key]:8.4f}" for key in ("nll", "rmse", "crps"))
            print(f"{name:<13} {LABELS[label]:<32} {shown}   {row['seconds']:6.1f} s", flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
