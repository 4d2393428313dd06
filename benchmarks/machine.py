"""What the numbers were measured on, and what the machine can do."""

import datetime
import os
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

from paragp.gp.products import product
from paragp.paper.protocol import machine


def describe() -> dict:
    return machine() | {"date": datetime.date.today().isoformat(), "load": os.getloadavg()[0]}


def peak_mb() -> float:
    """The largest resident size of this process so far, in MB."""
    status = pathlib.Path("/proc/self/status").read_text()  # getrusage would also count the parent's size at the fork
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def taking_turns(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, repeated: warmed up first, then one after the other, so that all see the same machine."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    for _ in range(repeats):
        for side, call in calls.items():
            seconds[side].append(timed(call))
    return seconds


def gemm_rate(repeats: int = 5) -> float:
    """Float32 operations per second of a matrix product: the best of 1000^3 and 4000^3, of torch and ours."""
    rates = []
    for n in (1000, 4000):
        a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        for multiply in (torch.mm, product):
            call = partial(multiply, a, b, out=out)
            call()
            rates.append(2 * n**3 / statistics.median(timed(call) for _ in range(repeats)))
    return max(rates)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
