"""Mean and standard deviation of y for many rows: ours, GPyTorch's and our exported graph's; and the mean alone.

    python benchmarks/predict.py
    python benchmarks/predict.py --methods ppgpr-mfd --rows 200000 --json
    python benchmarks/predict.py --default --rows 20000 --repeats 15 --json

GPyTorch runs in eval mode without gradients, its caches warm, in chunks as its users must; every chunk size of
`--chunks` is tried and the best one counts. So it is with the exported ONNX graph, which onnxruntime runs on as many
threads as torch has; it computes in float64, we and GPyTorch in float32, and its answers are compared with ours. All
sides alternate in one process. Peak memory is that of a process of its own, at the full number of rows and at a tenth
of them. `--default` compares the default, `two-stage` with as many points for the mean as it takes at most, with
`ppgpr-mfd` instead: each of its kernels, in turns; the ratio is of their seconds.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import gpytorch
import machine
import numpy as np
import torch
from peers import PEERS, PeerGP

from paragp import METHODS
from paragp.data.tables import Column, Target
from paragp.fitted import Fitted
from paragp.gp.model import ParametricGP
from paragp.training.recipe import KINDS, MOST_MEAN_POINTS

METHODS_SHOWN = "ppgpr-mfd,ppgpr-mf,ppgpr-chol,ppgpr-delta,svgp,od-svgp"
TOLERANCE = 1e-3  # between the graph in float64 and the model in float32, in the target's deviations


def inputs(rows: int, M: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(M, d, generator=generator), torch.randn(rows, d, generator=generator)


def ours(name: str, rows: int, M: int, d: int, chunk: int | None = None) -> Callable[[], object]:
    Z, x = inputs(rows, M, d)
    model = METHODS[name].model("matern52", Z)
    factor = model.factorise()
    return lambda: model.predict(x, factor=factor).std


def our_mean(name: str, rows: int, M: int, d: int, chunk: int | None = None) -> Callable[[], object]:
    Z, x = inputs(rows, M, d)
    model = METHODS[name].model("matern52", Z)
    factor = model.factorise()
    return lambda: model.predict_mean(x, factor=factor)


def peer(name: str, rows: int, M: int, d: int, chunk: int = 1000) -> Callable[[], object]:
    Z, x = inputs(rows, M, d)
    model, likelihood = PeerGP(PEERS[name], Z).eval(), gpytorch.likelihoods.GaussianLikelihood().eval()

    def predict() -> None:
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            for part in x.split(chunk):
                prediction = likelihood(model(part))
                prediction.mean, prediction.stddev  # noqa: B018

    return predict


def session(name: str, M: int, d: int) -> Any:
    """The exported graph of the same model in onnxruntime, for inputs and a target that need no scaling."""
    import onnxruntime  # here, so that the peak memory of the other sides is without it

    from paragp.onnx import export

    Z, _ = inputs(0, M, d)
    columns = tuple(Column(f"x{i}", "numeric") for i in range(d))
    fitted = Fitted(name, METHODS[name].model("matern52", Z), columns, Target("y", 0.0, 1.0), {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "model.onnx")
        export(fitted, file)
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def graph(exported: Any, rows: int, M: int, d: int, chunk: int = 1000) -> Callable[[], list[np.ndarray]]:
    """Gives mean and deviation, (2, chunk) of each chunk."""
    x = inputs(rows, M, d)[1].double().numpy()
    parts = np.split(x, range(chunk, rows, chunk))
    return lambda: [np.stack(exported.run(["y_mean", "y_std"], {"X": part})) for part in parts]


def difference(found: list[np.ndarray], name: str, rows: int, M: int, d: int) -> float:
    """The largest between the graph and the model, in the target's deviations."""
    Z, x = inputs(rows, M, d)
    dist = METHODS[name].model("matern52", Z).predict(x)
    return float(np.abs(np.hstack(found) - np.stack([dist.mean, dist.std])).max())


SIDES = {"ours": ours, "our_mean": our_mean, "gpytorch": peer}


def peak_memory(side: str, name: str, rows: int, M: int, d: int, chunk: int) -> float:
    words = ["--peak-of", side, "--methods", name, "--rows", str(rows), "--M", str(M), "--d", str(d)]
    done = subprocess.run(
        [sys.executable, __file__, *words, "--chunks", str(chunk)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def compare(name: str, rows: int, M: int, d: int, chunks: list[int], repeats: int) -> dict:
    trial = min(rows, 20_000)
    best = min(chunks, key=lambda chunk: warm_time(peer(name, trial, M, d, chunk)))
    calls = {"ours": ours(name, rows, M, d), "our_mean": our_mean(name, rows, M, d)}
    calls["gpytorch"] = peer(name, trial, M, d, best)  # a tenth of the rows: its time is proportional to them
    exported = session(name, M, d)
    best_of_graph = min(chunks, key=lambda chunk: warm_time(graph(exported, trial, M, d, chunk)))
    calls["onnxruntime"] = graph(exported, trial, M, d, best_of_graph)
    error = difference(calls["onnxruntime"](), name, trial, M, d)
    if error > TOLERANCE:
        raise SystemExit(f"{name}: the graph differs from the model by {error:.1e}, more than {TOLERANCE:g}.")
    rate = {
        side: (rows if side in ("ours", "our_mean") else trial) / machine.quartiles(seconds)[1]
        for side, seconds in machine.taking_turns(calls, repeats).items()
    }
    return {
        "method": name, "rows": rows, "M": M, "d": d, "gpytorch_chunk": best,
        "ours_rows_per_s": rate["ours"], "gpytorch_rows_per_s": rate["gpytorch"],
        "ratio": rate["ours"] / rate["gpytorch"], "mean_alone_rows_per_s": rate["our_mean"],
        "onnxruntime_rows_per_s": rate["onnxruntime"], "onnxruntime_chunk": best_of_graph,
        "onnxruntime_difference": error,
        "ours_peak_mb": peak_memory("ours", name, rows, M, d, best),
        "ours_peak_mb_a_tenth": peak_memory("ours", name, rows // 10, M, d, best),
        "gpytorch_peak_mb": peak_memory("gpytorch", name, trial, M, d, best),
    }  # fmt: skip


def default(rows: int, M: int, d: int, repeats: int) -> list[dict]:
    """The seconds of a prediction by the default over those of one by PPGPR-MFD: quartiles over the turns."""
    _, x = inputs(rows, M, d)
    calls = {"ppgpr-mfd": ours("ppgpr-mfd", rows, M, d)}
    for kernel in KINDS:
        mean, variance = inputs(M, MOST_MEAN_POINTS * M, d)
        model = METHODS["two-stage"].model(kernel, mean, variance)
        torch.nn.init.normal_(model.family.m, generator=torch.Generator().manual_seed(0))
        calls[kernel] = partial(model.predict, x, factor=detached(model))
    seconds = machine.taking_turns(calls, repeats)
    found = []
    for kernel in KINDS:
        ratios = [mine / base for mine, base in zip(seconds[kernel], seconds["ppgpr-mfd"], strict=True)]
        low, middle, high = machine.quartiles(ratios)
        rates = {side: rows / machine.quartiles(seconds[side])[1] for side in (kernel, "ppgpr-mfd")}
        found.append({
            "kernel": kernel, "rows_per_s": rates[kernel], "ppgpr_mfd_rows_per_s": rates["ppgpr-mfd"],
            "ratio": middle, "ratio_quartiles": [low, high], "points_of_the_mean": MOST_MEAN_POINTS * M,
        })  # fmt: skip
        print(f"two-stage, {kernel}: {rates[kernel] / 1e3:.1f} k rows/s, {middle:.2f} times PPGPR-MFD's seconds")
    return found


@torch.no_grad()
def detached(model: ParametricGP) -> Any:
    return model.factorise()


def warm_time(call: Callable[[], object]) -> float:
    call()
    return machine.timed(call)


def show(row: dict) -> str:
    graph_rate = f"{row['onnxruntime_rows_per_s'] / 1e3:.1f} k (chunks of {row['onnxruntime_chunk']})"
    return (
        f"{row['method']:<12} ours {row['ours_rows_per_s'] / 1e3:6.1f} k rows/s   gpytorch "
        f"{row['gpytorch_rows_per_s'] / 1e3:5.1f} k (chunks of {row['gpytorch_chunk']})   ratio {row['ratio']:.2f}   "
        f"mean alone {row['mean_alone_rows_per_s'] / 1e3:.0f} k   onnxruntime {graph_rate}, "
        f"{row['onnxruntime_difference']:.0e} from ours   peak {row['ours_peak_mb']:.0f} MB "
        f"({row['ours_peak_mb_a_tenth']:.0f} at a tenth of the rows) / {row['gpytorch_peak_mb']:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS_SHOWN, help="comma-separated names")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--M", type=int, default=1000)
    parser.add_argument("--d", type=int, default=26)
    parser.add_argument("--chunks", default="500,1000,2000,5000", help="chunk sizes tried for GPyTorch and the graph")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--default", action="store_true", help="the default beside PPGPR-MFD instead")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--peak-of", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    chunks = [int(word) for word in options.chunks.split(",")]
    names = options.methods.split(",")
    if options.peak_of:
        SIDES[options.peak_of](names[0], options.rows, options.M, options.d, chunks[0])()
        print(machine.peak_mb())
        return
    report: dict = {"machine": machine.describe(), "rows": []}
    if options.default:
        report["rows"] = default(options.rows, options.M, options.d, options.repeats)
    for name in [] if options.default else names:
        row = compare(name, options.rows, options.M, options.d, chunks, options.repeats)
        report["rows"].append(row)
        print(show(row), flush=True)
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
