"""What float32 costs in accuracy: moments, gradients and test scores against float64, on real data.

    PARAGP_DATA=... python benchmarks/precision.py --json

For each data set, five seeds: the same training in float32 and in float64 (each with its own jitter), scored on the
same test rows with deviations floored at .01 in standardised units. And, on the trained float32 model: the largest
error of moments against a float64 copy of that model with the same jitter, relative to the largest value, and of the
gradient of a batch, as a share of its length: of the whole gradient, and of the worst parameter taken alone (which may
stand where its gradient cancels).
"""

import argparse
import copy
import json
import os
import pathlib
import statistics

import machine
import numpy as np
import pyarrow.parquet as pq
import torch

from paragp import METHODS, Config, Data, fit
from paragp.data.rows import Data as Rows
from paragp.gp.linalg import JITTER
from paragp.metrics import nll
from paragp.training.inducing import starting_points
from paragp.training.step import backward

SETS = "pol,elevators,bike,kin40k,keggdirected"
FLOOR = 0.01


def split(name: str, k: int) -> tuple[Rows, Rows]:
    """Training and test rows of split k, standardised in float64 with the training rows' statistics."""
    folder = os.environ.get("PARAGP_DATA")
    if not folder:
        raise SystemExit("Set PARAGP_DATA to the folder that holds uci/<name>.parquet.")
    table = pq.read_table(pathlib.Path(folder) / "uci" / f"{name}.parquet")
    values = np.column_stack([table[column].to_numpy() for column in table.column_names]).astype(np.float64)
    order = np.random.default_rng(k).permutation(len(values))
    train, test = np.split(values[order], [int(0.75 * len(values)), int(0.9 * len(values))])[:2]
    shift, scale = train.mean(0), train.std(0)
    scale[scale == 0] = 1
    return tuple(  # type: ignore[return-value]
        Data(torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1]))
        for rows in ((train - shift) / scale, (test - shift) / scale)
    )


def to(data: Data, dtype: torch.dtype) -> Data:
    return Data(data.x.to(dtype), data.y.to(dtype))


def trained(method: str, train: Data, dtype: torch.dtype, seed: int, options: argparse.Namespace) -> object:
    row, generator = METHODS[method], torch.Generator().manual_seed(seed)
    Z, Z_variance = starting_points(train.x, options.M, generator=generator)
    model = row.model("matern52", Z.to(dtype), Z_variance.to(dtype) if row.two_sets else None)
    config = Config(epochs=options.epochs, batch_size=1000, learning_rate=0.03, beta=row.beta[0])
    fit(model, row.objective_for(), to(train, dtype), config, generator=generator)
    return model


def errors(method: str, model, train: Data, test: Data) -> dict[str, float]:
    """Largest relative errors of a float32 model against its float64 copy with the same jitter."""
    wide = copy.deepcopy(model).double()
    wide.family.jitter = JITTER[torch.float32]
    found = {}
    with torch.no_grad():
        narrow_q, wide_q = model(test.x[:2000].float())[0], wide(test.x[:2000])[0]
    scale = max(float(wide_q.fvar.max()), 1e-12)
    for part in ("mean", "ktilde", "svar"):
        a, b = getattr(narrow_q, part).double(), getattr(wide_q, part)
        found[part] = float((a - b).abs().max()) / (float(b.abs().max()) if part == "mean" else scale)
    found["smallest_variance"] = float(torch.minimum(narrow_q.ktilde, narrow_q.svar).min())
    for dtype, one in ((torch.float32, model), (torch.float64, wide)):
        one.zero_grad()
        batch = to(train.take(slice(1000)), dtype)
        backward(one, METHODS[method].objective_for(), batch, num_data=len(train.y), beta=METHODS[method].beta[0])
    pairs = [(a.grad.double(), b.grad) for a, b in zip(model.parameters(), wide.parameters(), strict=True)]
    apart = [float((a - b).norm() / b.norm()) for a, b in pairs if float(b.norm()) > 0]
    narrow, exact = (torch.cat([pair[i].reshape(-1) for pair in pairs]) for i in (0, 1))
    return found | {"gradient": float((narrow - exact).norm() / exact.norm()), "gradient_of_one_parameter": max(apart)}


def compare(method: str, name: str, options: argparse.Namespace) -> dict:
    train, test = split(name, 0)
    scores: dict[str, list[float]] = {"float32": [], "float64": []}
    worst: dict[str, float] = {}
    for seed in range(options.seeds):
        for label, dtype in (("float32", torch.float32), ("float64", torch.float64)):
            model = trained(method, train, dtype, seed, options)
            dist = model.predict(test.x.to(dtype)).floored(FLOOR)
            scores[label].append(nll(dist, test.y.numpy()))
            if label == "float32":
                for key, value in errors(method, model, train, test).items():
                    worst[key] = (min if key == "smallest_variance" else max)(worst.get(key, value), value)
    gaps = [a - b for a, b in zip(scores["float32"], scores["float64"], strict=True)]
    error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
    return {
        "method": method, "dataset": name, "M": options.M, "epochs": options.epochs, "seeds": options.seeds,
        "nll_float32": statistics.mean(scores["float32"]), "nll_float64": statistics.mean(scores["float64"]),
        "nll_gap": statistics.mean(gaps), "nll_gap_stderr": error, "worst_relative_error": worst,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="ppgpr-mfd")
    parser.add_argument("--datasets", default=SETS)
    parser.add_argument("--M", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    report: dict = {"machine": machine.describe(), "rows": []}
    for method in options.methods.split(","):
        for name in options.datasets.split(","):
            row = compare(method, name, options)
            report["rows"].append(row)
            worst = row["worst_relative_error"]
            print(
                f"{method:<11} {name:<13} NLL float32 {row['nll_float32']:.4f}, float64 {row['nll_float64']:.4f}, gap "
                f"{row['nll_gap']:+.4f} +- {row['nll_gap_stderr']:.4f}; worst relative error: "
                + ", ".join(f"{key} {value:.1e}" for key, value in worst.items()),
                flush=True,
            )
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
