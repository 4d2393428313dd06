"""Products and factors of 1000 x 1000 matrices: torch's, ours, and torch's where MKL takes the processor for Intel's.

    python benchmarks/products.py --json
    cc -shared -fPIC -o yes.so yes.c && python benchmarks/products.py --preload yes.so --json      # see docs/speed.md

One thread. Medians in milliseconds; torch's and ours alternate in one process, and what is preloaded is measured in
another after it. Stored in results/products.json.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import machine
import torch

from paragp.atomic import writing
from paragp.gp.products import lower_of_product, product

FILE = pathlib.Path(__file__).parent / "results" / "products.json"


def operations(size: int) -> dict[str, dict[str, Callable[[], object]]]:
    """By name and side; a side that is missing is torch's."""
    X, Y = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0))
    wide = X.double()
    S = product(X, X.T) + size * torch.eye(size)
    L = torch.linalg.cholesky(S)
    return {
        "product, float32": {"torch": partial(torch.mm, X, Y), "ours": partial(product, X, Y)},
        "lower half of a product, float32": {
            "torch": partial(torch.mm, X, Y.T),
            "ours": partial(lower_of_product, X, Y.T),
        },
        "product, float64": {"torch": partial(torch.mm, wide, wide)},
        "Cholesky factor, float32": {"torch": partial(torch.linalg.cholesky_ex, S)},
        "Cholesky factor, float64": {"torch": partial(torch.linalg.cholesky_ex, S.double())},
        "triangular solve, float32": {"torch": partial(torch.linalg.solve_triangular, L, X, upper=False)},
    }


def measure(size: int, repeats: int) -> list[dict]:
    rows = []
    for name, calls in operations(size).items():
        seconds = machine.taking_turns(calls, repeats)
        rows.append(
            {"operation": name, **{f"{side}_ms": 1e3 * machine.quartiles(found)[1] for side, found in seconds.items()}}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--preload", help="a library that tells MKL that it may")
    parser.add_argument("--out", default=str(FILE), help="where the figures are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = {"machine": machine.describe(), "size": options.size, "rows": measure(options.size, options.repeats)}
    if options.preload:
        words = [sys.executable, __file__, f"--size={options.size}", f"--repeats={options.repeats}", "--json"]
        told = subprocess.run(
            [*words, f"--out={os.devnull}"], check=True, capture_output=True, text=True,
            env=os.environ | {"LD_PRELOAD": str(pathlib.Path(options.preload).resolve())},
        )  # fmt: skip
        for row, other in zip(report["rows"], json.loads(told.stdout.splitlines()[-1])["rows"], strict=True):
            row["told_ms"] = other["torch_ms"]
    if options.out != os.devnull:
        with writing(pathlib.Path(options.out)) as part:
            part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for row in report["rows"]:
        print(", ".join(f"{key} {value:.2f}" if key != "operation" else value for key, value in row.items()))
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
