"""One training step (forward, backward, optimizer) of every method, against GPyTorch doing the same.

    python benchmarks/step.py                                  every method at M = 1000, B = 1000
    python benchmarks/step.py --methods ppgpr-mfd --B 1000,10000 --json
    python benchmarks/step.py --growth                         exponents of time and memory in M, B and d

Ours and GPyTorch's steps alternate in one process (one per row of the table, so that nothing is left over from another
method), on the same rows and the same starting points; times are medians with quartiles. Peak memory is that of a
process of its own which does nothing else (interpreter and libraries included). `roofline` is our arithmetic per second
over the rate of a float32 matrix product in the same run; the arithmetic is counted by the fixed table FLOPS, whatever
the code does.
"""

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable

import gpytorch
import machine
import torch
from peers import PEERS, PeerGP

from paragp import METHODS, Data
from paragp.gp.methods import PAPER
from paragp.training.step import backward

# Per step, in the method's M and B: solve and its backward 4 M^2 B, factorisation and its backward 4.7 M^3 (two
# kernel matrices share it in MFD: the mean's needs no product with the batch); a dense S' multiplies the batch once
# forward and twice backward, 3 M^2 B with its triangle.
COUPLED, DENSE = (4.0, 2.35), (7.0, 2.35)
FLOPS = {
    "map": COUPLED, "svgp": DENSE, "gamma-robust": DENSE, "od-svgp": DENSE, "vfitc": DENSE,
    "ppgpr-delta": COUPLED, "ppgpr-mf": COUPLED, "ppgpr-chol": DENSE, "ppgpr-mfd": (4.0, 4.7),
}  # fmt: skip
NUM_DATA, BETA = 100_000, 0.05


def rows(M: int, B: int, d: int) -> tuple[torch.Tensor, Data]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(M + B, d, generator=generator)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(M + B, generator=generator)
    return x[:M].clone(), Data(x[M:].clone(), y[M:].clone())


def our_step(name: str, M: int, B: int, d: int) -> Callable[[], None]:
    Z, batch = rows(M, B, d)
    model, objective = METHODS[name].model("matern52", Z), METHODS[name].objective_for()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        backward(model, objective, batch, num_data=NUM_DATA, beta=BETA)
        optimizer.step()

    return step


def gpytorch_step(name: str, M: int, B: int, d: int) -> Callable[[], None]:
    Z, batch = rows(M, B, d)
    model, likelihood = PeerGP(PEERS[name], Z).train(), gpytorch.likelihoods.GaussianLikelihood().train()
    mll = PEERS[name].objective(likelihood, model, num_data=NUM_DATA, beta=BETA)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        (-mll(model(batch.x), batch.y)).backward()
        optimizer.step()

    return step


SIDES = {"ours": our_step, "gpytorch": gpytorch_step}


def peak_memory(side: str, name: str, M: int, B: int, d: int) -> float:
    """Peak memory in MB of two steps in a process of their own."""
    words = ["--peak-of", side, "--methods", name, "--M", str(M), "--B", str(B), "--d", str(d)]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def compare(name: str, M: int, B: int, d: int, repeats: int, rate: float) -> dict:
    ours, theirs = our_step(name, M, B, d), gpytorch_step(name, M, B, d)
    ours(), theirs()  # warm both
    seconds: dict[str, list[float]] = {"ours": [], "gpytorch": []}
    for _ in range(repeats):
        seconds["ours"].append(machine.timed(ours))
        seconds["gpytorch"].append(machine.timed(theirs))
    mine, peer = (machine.quartiles([1e3 * s for s in values]) for values in seconds.values())
    per_batch, per_factor = FLOPS[name]
    flops = per_batch * M**2 * B + per_factor * M**3
    return {
        "method": name, "M": M, "B": B, "d": d,
        "ours_ms": mine[1], "ours_quartiles_ms": [mine[0], mine[2]],
        "gpytorch_ms": peer[1], "gpytorch_quartiles_ms": [peer[0], peer[2]],
        "ratio": peer[1] / mine[1],
        "ours_peak_mb": peak_memory("ours", name, M, B, d), "gpytorch_peak_mb": peak_memory("gpytorch", name, M, B, d),
        "roofline": flops / (mine[1] / 1e3) / rate,
        "note": PEERS[name].note,
    }  # fmt: skip


def in_a_process(name: str, M: int, B: int, d: int, repeats: int, rate: float) -> dict:
    """`compare` in a process of its own."""
    words = ["--methods", name, "--M", str(M), "--B", str(B), "--d", str(d), "--repeats", str(repeats)]
    command = [sys.executable, __file__, *words, "--rate", str(rate), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["rows"][0]


def show(row: dict) -> str:
    low, high = row["ours_quartiles_ms"]
    peer_low, peer_high = row["gpytorch_quartiles_ms"]
    return (
        f"{row['method']:<13} M {row['M']:>5} B {row['B']:>6} d {row['d']:>3}   "
        f"ours {row['ours_ms']:7.1f} ms [{low:.0f}, {high:.0f}]   "
        f"gpytorch {row['gpytorch_ms']:8.1f} ms [{peer_low:.0f}, {peer_high:.0f}]   ratio {row['ratio']:5.2f}   "
        f"peak {row['ours_peak_mb']:.0f} / {row['gpytorch_peak_mb']:.0f} MB   roofline {row['roofline']:.2f}"
        + (f"   ({row['note']})" if row["note"] else "")
    )


# --- growth ---
GROWTH = {"M": [250, 500, 1000, 2000], "B": [1000, 2000, 4000, 10_000], "d": [10, 40, 160]}
BASE = {"M": 1000, "B": 1000, "d": 26}


def growth(name: str, repeats: int) -> list[dict]:
    """Exponents of our time and memory, fitted to some sizes each, and what the paper's formula gives there."""
    idle = peak_memory("ours", name, 10, 10, 2)  # interpreter and libraries
    found = []
    for variable, sizes in GROWTH.items():
        times, memory, formulas = [], [], []
        for size in sizes:
            M, B, d = (BASE | {variable: size}).values()
            step = our_step(name, M, B, d)
            step()
            times.append(machine.quartiles([machine.timed(step) for _ in range(repeats)])[1])
            memory.append(statistics.median(peak_memory("ours", name, M, B, d) for _ in range(3)) - idle)
            formulas.append((M**3 + B * M**2, M**2 + B * M))
        found.append({
            "method": name, "variable": variable, "sizes": sizes, "seconds": times, "extra_mb": memory,
            "held": {other: size for other, size in BASE.items() if other != variable},
            "time_exponent": exponent(sizes, times), "memory_exponent": exponent(sizes, memory),
            "paper_time_exponent": exponent(sizes, [f[0] for f in formulas]),
            "paper_memory_exponent": exponent(sizes, [f[1] for f in formulas]),
        })  # fmt: skip
    return found


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of log(value) against log(size), by least squares."""
    xs, ys = [math.log(s) for s in sizes], [math.log(max(v, 1e-9)) for v in values]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(PAPER), help="comma-separated names")
    parser.add_argument("--M", type=numbers, default=[1000], help="inducing points, comma-separated")
    parser.add_argument("--B", type=numbers, default=[1000], help="batch sizes, comma-separated")
    parser.add_argument("--d", type=numbers, default=[26], help="inputs, comma-separated")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--growth", action="store_true", help="fit the exponents of our cost instead")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--peak-of", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)  # of matrix products: one comparison, here
    options = parser.parse_args()
    names = options.methods.split(",")
    if options.peak_of:
        step = SIDES[options.peak_of](names[0], options.M[0], options.B[0], options.d[0])
        step()
        step()
        print(machine.peak_mb())
        return
    report: dict = {"machine": machine.describe()}
    if options.growth:
        report["growth"] = [row for name in names for row in growth(name, options.repeats)]
        for row in report["growth"]:
            print(
                f"{row['method']:<13} {row['variable']} in {row['sizes']}: time ~ {row['variable']}^"
                f"{row['time_exponent']:.2f} (paper's formula there {row['paper_time_exponent']:.2f}), memory ~ "
                f"{row['variable']}^{row['memory_exponent']:.2f} (paper's {row['paper_memory_exponent']:.2f})"
            )
    else:
        rate = machine.gemm_rate() if options.rate is None else options.rate
        report |= {"gemm_gflops": rate / 1e9, "rows": []}
        sizes = list(itertools.product(names, options.M, options.B, options.d))
        if options.rate is None:
            print(f"matrix product: {rate / 1e9:.0f} GFLOP/s", flush=True)
        for size in sizes:
            alone = options.rate is not None
            row = compare(*size, options.repeats, rate) if alone else in_a_process(*size, options.repeats, rate)
            report["rows"].append(row)
            if not alone:
                print(show(row), flush=True)
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
