"""Seconds to predict with a deep kernel (one pass) against MC dropout (fifty), as the network grows.

    python benchmarks/deep.py
    python benchmarks/deep.py --widths 1,2,4 --rows 20000 --json

Both have the paper's network (256, 256, 128, 128, 64), each layer as many times as wide as `--widths` says, before 1024
inducing points each for mean and variance, or with fifty sampled networks. The two sides alternate in one process.
Weights are those of the start: they do not change what a prediction costs.
"""

import argparse
import json

import machine
import numpy as np
import torch

from paragp import METHODS
from paragp.gp.features import layers
from paragp.paper.dropout import SIZES, MCDropoutRegressor


def deep_kernel(sizes: tuple[int, ...], x: torch.Tensor, M: int):
    generator = torch.Generator().manual_seed(0)
    features = layers(x.shape[1], sizes)
    _draw(features)
    Z, Z_variance = (torch.randn(M, sizes[-1], generator=generator) for _ in range(2))
    model = METHODS["ppgpr-mfd"].model("matern52", Z, Z_variance, features=features)
    factor = model.factorise()
    return lambda: model.predict(x, factor=factor).std


def dropout(sizes: tuple[int, ...], x: torch.Tensor, samples: int):
    model = MCDropoutRegressor(sizes, p=0.1, tau=0.1, n_samples=samples, max_epochs=1, random_state=0)
    rows = x[:100].double().numpy()
    model.fit(rows, np.arange(100.0))
    inputs = x.double().numpy()
    return lambda: model.predict_dist(inputs).std


def _draw(network: torch.nn.Sequential) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))


def compare(width: int, rows: int, d: int, M: int, samples: int, repeats: int) -> dict:
    sizes = tuple(width * size for size in SIZES)
    x = torch.randn(rows, d, generator=torch.Generator().manual_seed(1))
    calls = {"deep_kernel": deep_kernel(sizes, x, M), "dropout": dropout(sizes, x, samples)}
    quartiles = {side: machine.quartiles(values) for side, values in machine.taking_turns(calls, repeats).items()}
    weights = sum(one * other for one, other in zip((d, *sizes), sizes, strict=False))
    return {
        "width": width, "weights": weights, "rows": rows, "M": M, "samples": samples,
        **{f"{side}_seconds_a_million": [value * 1e6 / rows for value in found] for side, found in quartiles.items()},
        "ratio": quartiles["dropout"][1] / quartiles["deep_kernel"][1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="1,2,3,4,6", help="how many times as wide as the paper's network")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--inputs", type=int, default=30)
    parser.add_argument("--M", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    report: dict = {"machine": machine.describe(), "rows": []}
    for width in map(int, options.widths.split(",")):
        row = compare(width, options.rows, options.inputs, options.M, options.samples, options.repeats)
        report["rows"].append(row)
        ours, theirs = (row[f"{side}_seconds_a_million"][1] for side in ("deep_kernel", "dropout"))
        print(
            f"width {width:2d} ({row['weights'] / 1e3:6.0f} k weights)   a million rows: deep kernel {ours:6.1f} s   "
            f"MC dropout {theirs:7.1f} s   ratio {row['ratio']:.1f}",
            flush=True,
        )
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
