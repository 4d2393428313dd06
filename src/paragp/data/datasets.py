"""The paper's data sets: tables from the folder in `PARAGP_DATA`, and the splits they are compared on."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

SHARES = (0.75, 0.15)  # of the rows, for training and test; the rest validates (15:3:2, as in the paper)
FLOOR = 0.01  # of a predicted deviation, in standardised units, before scores are compared

Array = NDArray[np.float64]


class Table(NamedTuple):
    """Inputs (n, d) and a target (n,)."""

    x: Array
    y: Array


class Split(NamedTuple):
    """Rows to train, test and validate on, in units of the training rows' deviations."""

    train: Table
    test: Table
    valid: Table


def folder() -> Path:
    """Where the tables are."""
    found = os.environ.get("PARAGP_DATA")
    if not found:
        raise OSError("Set the environment variable PARAGP_DATA to the folder that holds uci/<name>.parquet.")
    return Path(found)


def load(name: str) -> Table:
    """A UCI table by its name: columns x0, x1, ... and y."""
    place = folder() / "uci" / f"{name}.parquet"
    if not place.exists():
        known = ", ".join(sorted(path.stem for path in place.parent.glob("*.parquet"))) or "none"
        raise OSError(f"There is no {place}. Tables found there: {known}.")
    table = pq.read_table(place)
    inputs = [name for name in table.column_names if name != "y"]
    columns = [table[name].to_numpy().astype(np.float64) for name in inputs]
    return Table(np.column_stack(columns), table["y"].to_numpy().astype(np.float64))


def split(table: Table, k: int) -> Split:
    """Split k of a table: a permutation seeded by k, cut in three, standardised by the training rows in float64.

    >>> parts = split(Table(np.arange(40.0).reshape(20, 2), np.arange(20.0)), 0)
    >>> [len(part.y) for part in parts], f"{parts.train.x.std():.3f}"
    ([15, 3, 2], '1.000')
    """
    n = len(table.y)
    order = np.random.default_rng(k).permutation(n)
    first, second = (int(share * n) for share in SHARES)
    parts = order[:first], order[first : first + second], order[first + second :]
    x, y = (_standardised(values, parts[0]) for values in table)
    return Split(*(Table(x[rows], y[rows]) for rows in parts))


def _standardised(values: Array, rows: NDArray[np.intp]) -> Array:
    mean, deviation = values[rows].mean(0), values[rows].std(0)
    return (values - mean) / np.where(deviation == 0, 1.0, deviation)
