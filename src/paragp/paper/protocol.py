"""The comparison as a grid of runs: what a run is, where its file lies, and what is left to do.

A `Spec` says all that a run depends on; its file is named after it and written when the run is complete, so that a grid
that was stopped goes on with what is missing, and several processes can share a folder. Files hold nothing that changes
from one time to the next: the seconds, and the machine they were measured on, are beside them under `timing/`.
"""

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from paragp.atomic import writing
from paragp.gp.methods import METHODS

LARGE = ("buzz", "song", "3droad", "houseelectric")  # batches of 10,000 rows
SMALLER = ("pol", "elevators", "bike", "kin40k", "keggdirected")
PAPERS = (*SMALLER, "protein", "slice", "keggundirected", *LARGE)
BASELINES = ("exact", "raissi")


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
    epochs: int | None = None
    baseline_steps: int | None = None  # of the baselines' own training, if not what they take by default
    every_value: bool = False  # a run for each value of a method's grid, as in the paper; else one that searches

    def specs(self, name: str, datasets: Iterable[str], methods: Iterable[str], splits: Iterable[int]) -> list[Spec]:
        """The grid: all splits of a set before the next set, so that what is done can be compared early."""
        return [
            Spec(name, dataset, method, k, self.M, self.recipe, *self._lengths(dataset, method), beta, gamma)
            for dataset in datasets
            for k in splits
            for method in methods
            if method != "exact" or k < self.exact_splits
            for beta, gamma in self._values(method)
        ]

    def _lengths(self, dataset: str, method: str) -> tuple[int | None, int | None]:
        """Batch size and epochs."""
        if method in BASELINES:
            return None, self.baseline_steps
        epochs = 200 if dataset == "houseelectric" and self.epochs == 400 else self.epochs
        return 10_000 if dataset in LARGE else None, epochs

    def _values(self, method: str) -> list[tuple[float | None, float | None]]:
        if not self.every_value or method in BASELINES:
            return [(None, None)]
        row = METHODS[method]
        return [(beta, gamma) for beta in row.beta for gamma in row.gamma or (None,)]


PROFILES = {
    "smoke": Profile(("diabetes",), splits=2, exact_splits=2, M=20, recipe="auto", epochs=5, baseline_steps=5),
    "lite": Profile(SMALLER, splits=2, exact_splits=2, M=1000, recipe="auto"),
    "full": Profile(PAPERS, splits=10, exact_splits=3, M=1000, recipe="adam", epochs=400, every_value=True),
}


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
    return [spec for spec in specs if not (folder / f"{spec.name}.json").exists()]


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The runs that are done."""
    for file in sorted(folder.glob("*.json")):
        yield json.loads(file.read_text(encoding="utf-8"))


def run(
    specs: list[Spec],
    folder: Path,
    execute: Callable[[Spec], dict[str, Any]],
    *,
    show_progress: bool | None = None,
) -> dict[str, str]:
    """Do what is missing; what failed, by name, with the reason. A run that fails does not keep the others."""
    failures: dict[str, str] = {}
    with tqdm(total=len(specs), unit="run", disable=None if show_progress is None else not show_progress) as bar:
        for spec in specs:
            bar.set_description(f"{spec.name} ({len(failures)} failed)" if failures else spec.name)
            if missing([spec], folder):  # another process may have been here
                start = time.perf_counter()
                try:
                    found = execute(spec)
                except Exception as error:
                    failures[spec.name] = f"{type(error).__name__}: {error}"
                else:
                    store(spec, found, time.perf_counter() - start, folder)
            bar.update()
    return failures


def store(spec: Spec, found: dict[str, Any], seconds: float, folder: Path) -> None:
    """The seconds first: a run's file says that all of it is done."""
    (folder / "timing").mkdir(parents=True, exist_ok=True)
    _write(folder / "timing" / f"{spec.name}.json", {"seconds": seconds, **machine()})
    _write(folder / f"{spec.name}.json", {"spec": asdict(spec), **found})


def machine() -> dict[str, Any]:
    """What seconds depend on."""
    return {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "threads": torch.get_num_threads(), "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }  # fmt: skip


def _write(file: Path, content: dict[str, Any]) -> None:
    with writing(file) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
