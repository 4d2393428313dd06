"""What float32 costs in accuracy: moments, gradients and test scores against float64, on real data.

    PARAGP_DATA=... python benchmarks/precision.py --json

For each data set, five seeds: the same training in float32 and in float64 (each with its own jitter), scored on the
same test rows with deviations floored at .01 in standardised units. And, on the trained float32 model: the largest
error of moments against a float64 copy of that model with the same jitter, relative to the largest value, and of the
gradient of a batch: relative to the gradients of its rows (their root mean square length, the scale of the terms that
are averaged), to the length of what is left after they cancelled, and to that of the worst parameter taken alone.
"""

import argparse
import copy
import json
import statistics

import machine
import torch

from paragp import METHODS, Config, Data, fit
from paragp.data.datasets import FLOOR, load, split
from paragp.gp.linalg import JITTER
from paragp.metrics import floored_scores
from paragp.training.inducing import starting_points
from paragp.training.step import backward

SETS = "pol,elevators,bike,kin40k,keggdirected"


def rows(name: str) -> tuple[Data, Data]:
    """Training and test rows of split 0, in float64."""
    parts = split(load(name), 0)
    return tuple(Data(torch.from_numpy(part.x), torch.from_numpy(part.y)) for part in parts[:2])  # type: ignore[return-value]


def to(data: Data, dtype: torch.dtype) -> Data:
    return Data(data.x.to(dtype), data.y.to(dtype))


def trained(method: str, train: Data, dtype: torch.dtype, seed: int, options: argparse.Namespace) -> object:
    row, generator = METHODS[method], torch.Generator().manual_seed(seed)
    Z, Z_variance = starting_points(train.x, options.M, options.M, generator=generator)
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
    narrow, exact = gradient(method, model, train, slice(1000)), gradient(method, wide, train, slice(1000))
    rows = [float(flat(gradient(method, wide, train, slice(i, i + 1))).norm()) for i in range(100)]
    error = float((flat(narrow) - flat(exact)).norm())
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(narrow, exact, strict=True) if float(b.norm()) > 0]
    return found | {
        "gradient_of_rows": error / statistics.mean(length**2 for length in rows) ** 0.5,
        "gradient": error / float(flat(exact).norm()),
        "gradient_of_one_parameter": max(apart),
    }


def gradient(method: str, model, train: Data, rows: slice) -> list[torch.Tensor]:
    """Of the loss on some rows, in float64, by parameter."""
    row, batch = METHODS[method], to(train.take(rows), next(model.parameters()).dtype)
    model.zero_grad()
    backward(model, row.objective_for(), batch, num_data=len(train.y), beta=row.beta[0])
    return [parameter.grad.double() for parameter in model.parameters()]


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def compare(method: str, name: str, options: argparse.Namespace) -> dict:
    train, test = rows(name)
    scores: dict[str, list[float]] = {"float32": [], "float64": []}
    worst: dict[str, float] = {}
    for seed in range(options.seeds):
        for label, dtype in (("float32", torch.float32), ("float64", torch.float64)):
            model = trained(method, train, dtype, seed, options)
            dist = model.predict(test.x.to(dtype))
            scores[label].append(floored_scores(dist, test.y.numpy(), FLOOR)["nll"])
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
