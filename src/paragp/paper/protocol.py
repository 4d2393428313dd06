"""The comparison as a grid of runs: what a run is, where its file lies, and what is left to do.

A `Spec` says what a run is to do; its file is named after it and written when the run is complete, so that a grid that
was stopped goes on with what is missing, and several processes can share a folder, each with a shard of its own. Files
hold nothing that changes from one time to the next: the seconds, and the machine they were measured on, are beside them
under `timing/`.
"""

import importlib.metadata
import itertools
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from paragp.atomic import writing
from paragp.data.datasets import DATASETS
from paragp.gp.methods import METHODS

LARGE = ("3droad", "song", "buzz", "houseelectric")  # batches of 10,000 rows
SMALLER = ("pol", "elevators", "bike", "kin40k", "keggdirected")
BASELINES = ("exact", "raissi")
TIMING = "timing"  # the folder of seconds, beside the runs
EXACT_SPLITS = {"3droad": 1, "song": 1, "buzz": 0, "houseelectric": 0}  # the paper's, where they are not the profile's


BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left{postfix}"


@dataclass(frozen=True)
class Spec:
    """One run. None means: the recipe's, or searched on the validation rows within the run."""

    profile: str
    dataset: str
    method: str
    split: int
    M: int
    recipe: str
    batch_size: int | None = None
    epochs: int | None = None  # of a baseline: steps
    beta: float | None = None
    gamma: float | None = None

    @property
    def name(self) -> str:
        values = [
            f"{key}={value:g}" for key, value in (("beta", self.beta), ("gamma", self.gamma)) if value is not None
        ]
        return "-".join([self.dataset, self.method, str(self.split), *values])


@dataclass(frozen=True)
class Profile:
    """How far a comparison goes."""

    datasets: tuple[str, ...]
    splits: int
    exact_splits: int
    M: int
    recipe: str
    batch_size: int | None = None
    epochs: int | None = None
    large_epochs: int | None = None  # of sets with batches of 10,000 rows, if not as many as of the others
    baseline_steps: int | None = None  # of the baselines' own training, if not what they take by default
    exact_rows: int = 4000  # that the exact GP learns on by Cholesky factors; it is conditioned on all
    exact_cg_steps: int = 0  # of its learning on all rows after that, by conjugate gradients
    every_value: bool = False  # a run for each value of a method's grid, as in the paper; else one that searches

    def specs(
        self,
        name: str,
        datasets: Iterable[str],
        methods: Iterable[str],
        splits: Iterable[int],
        betas: Iterable[float] | None = None,
    ) -> list[Spec]:
        """The grid: all splits of a set before the next set, so that what is done can be compared early.

        With `betas` a run for each of these values of beta_reg instead.
        """
        return [
            Spec(name, dataset, method, k, self.M, self.recipe, *self._lengths(dataset, method), beta, gamma)
            for dataset in datasets
            for k in splits
            for method in methods
            if method != "exact" or k < EXACT_SPLITS.get(dataset, self.exact_splits)
            for beta, gamma in (self.values(method) if betas is None else [(beta, None) for beta in betas])
        ]

    def _lengths(self, dataset: str, method: str) -> tuple[int | None, int | None]:
        """Batch size and epochs."""
        if method in BASELINES:
            return None, self.baseline_steps
        if dataset not in LARGE:
            return self.batch_size, self.epochs
        epochs = 200 if dataset == "houseelectric" and self.epochs == 400 else self.large_epochs or self.epochs
        return 10_000, epochs

    def values(self, method: str) -> list[tuple[float | None, float | None]]:
        """Of beta_reg and gamma, one run each; None is searched within a run."""
        if not self.every_value or method not in METHODS:
            return [(None, None)]
        row = METHODS[method]
        return [(beta, gamma) for beta in row.beta for gamma in row.gamma or (None,)]


PROFILES = {
    "smoke": Profile(("diabetes",), splits=2, exact_splits=2, M=20, recipe="auto", epochs=5, baseline_steps=5),
    "lite": Profile(SMALLER, splits=2, exact_splits=2, M=1000, recipe="auto", large_epochs=10),
    "full": Profile(
        tuple(DATASETS), splits=10, exact_splits=3, M=1000, recipe="adam", batch_size=1000, epochs=400,
        exact_rows=10_000, exact_cg_steps=3, every_value=True,  # the exact GP as in Wang et al. 2019
    ),
}  # fmt: skip


def sharded(specs: list[Spec], shard: str) -> list[Spec]:
    """Part i of k of a grid, for a shard "i/k".

    >>> sharded([1, 2, 3, 4, 5], "2/3")
    [2, 5]
    """
    first, _, count = shard.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise ValueError(f"A shard is i/k with i from 1 to k, such as 2/4; got {shard!r}.")
    return specs[int(first) - 1 :: int(count)]


def missing(specs: Iterable[Spec], folder: Path) -> list[Spec]:
    """What is not done; a file of the same name that was made by another spec is an error."""
    return [spec for spec in specs if not _is_done(spec, folder / f"{spec.name}.json")]


def _is_done(spec: Spec, file: Path) -> bool:
    if not file.exists():
        return False
    made = _read(file)["spec"]
    for name, wanted in asdict(spec).items():
        if made.get(name) != wanted:
            raise ValueError(
                f"{file} was made with {name} = {made.get(name)}, and {wanted} is wanted. Move it away, or choose "
                "another folder with --results."
            )
    return True


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The runs that are done."""
    for file in sorted(folder.glob("[!.]*.json")):  # hidden files are being written, or were when their writer died
        yield _read(file)


def _read(file: Path) -> dict[str, Any]:
    """A run's file, or one of seconds."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        if file.parent.name != TIMING and not isinstance(found.get("spec"), dict):
            raise ValueError("it does not say what was run")
    except ValueError as error:
        raise ValueError(f"{file} is not a run's file: {error}. Delete it, and its run is done again.") from error
    return found


class Work(NamedTuple):
    """What a run takes, so that time left is told by what is left to do, not by how many runs are left."""

    cost: float = 1.0  # beside other runs'
    steps: int | None = None  # that it reports at the most, where that is known


def run(
    specs: list[Spec],
    folder: Path,
    execute: Callable[[Spec, Callable[[], None]], dict[str, Any]],
    *,
    work: Callable[[Spec], Work] = lambda _: Work(),
    show_progress: bool | None = None,
) -> dict[str, str]:
    """Do what is missing; returns what failed, by name, with the reason, which is also said at once.

    `execute(spec, tick)` calls `tick` after each epoch or step, so that a long run shows signs of life. What it returns
    under "timing" is kept with the seconds.
    A run that fails does not keep the others from being done, and is tried again the next time.
    """
    failures: dict[str, str] = {}
    works = [work(spec) for spec in specs]
    hidden = None if show_progress is None else not show_progress
    with tqdm(total=sum(each.cost for each in works), disable=hidden, bar_format=BAR) as bar:
        for i, (spec, (cost, steps)) in enumerate(zip(specs, works, strict=True), 1):
            failed = f", {len(failures)} failed" if failures else ""
            bar.set_description(f"run {i} of {len(specs)}{failed}: {spec.name}")
            start, ticks = time.perf_counter(), itertools.count(1)

            def tick(ticks: Iterator[int] = ticks, steps: int | None = steps) -> None:
                step = next(ticks)
                bar.set_postfix_str(f"step {step}" if steps is None else f"step {step} of {max(step, steps)}")

            try:
                if missing([spec], folder):  # another process may have been here
                    found = execute(spec, tick)
                    check_scores(found)
                    seconds = time.perf_counter() - start
                    store(spec, found, {"seconds": seconds} | found.pop("timing", {}), folder)
                    if bar.disable and not hidden:  # for who reads it later, in a file
                        print(
                            f"Run {i} of {len(specs)}: {spec.name} took {seconds:.0f} s.", file=sys.stderr, flush=True
                        )
            except Exception as error:
                failures[spec.name] = f"{type(error).__name__}: {error}"
                tqdm.write(f"Failed: {spec.name}: {failures[spec.name]}", file=sys.stderr)
            bar.update(cost)
    return failures


def check_scores(found: dict[str, Any]) -> None:
    """A run whose scores are not finite has failed."""
    for rows in ("scores", "valid"):
        for name, score in found[rows].items():
            if not math.isfinite(score):
                raise ArithmeticError(
                    f"the {name} on the {'test' if rows == 'scores' else 'validation'} rows is {score}"
                )


def store(spec: Spec, found: dict[str, Any], seconds: dict[str, float], folder: Path) -> None:
    """The seconds first: a run's file says that all of it is done."""
    (folder / TIMING).mkdir(parents=True, exist_ok=True)
    _write(folder / TIMING / f"{spec.name}.json", {**seconds, **machine()})
    _write(folder / f"{spec.name}.json", {"spec": asdict(spec), **found})


def timing(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The seconds of a run that is done, and the machine; nothing where the file is missing."""
    file = folder / TIMING / f"{Spec(**spec).name}.json"
    return _read(file) if file.exists() else {}


def machine() -> dict[str, Any]:
    """What seconds depend on; `preloaded` may have changed what MKL takes this processor for (docs/speed.md)."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "preloaded": [Path(file).name for file in re.split("[ :]+", os.environ.get("LD_PRELOAD", "")) if file],
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("paragp", "torch", "gpytorch", "numpy")},
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    with writing(file) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
