"""Rows to train on, and how they become mini-batches."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Rows(Protocol):
    """A table to train on, in memory (`Data`) or streamed from files: all that training asks of it."""

    @property
    def size(self) -> int:
        """The number of rows."""

    @property
    def total(self) -> float:
        """The sum of their weights: the number of rows, copies included."""

    @property
    def sample(self) -> "Data":
        """Rows that a start is found from: all of a table in memory, a random sample of a stream."""

    def batches(self, batch_size: int, generator: torch.Generator) -> "Iterator[Data]":
        """All rows once in random order, in the fewest near-equal batches of at most `batch_size` (see `bounds`); where
        several processes train together, of each batch this one's part."""

    def chunks(self, size: int) -> "Iterator[Data]":
        """All rows once in their order, at most `size` at a time; or this process's part of them."""


class Data(NamedTuple):
    """Rows to train on. A weight of w counts as w copies of its row."""

    x: Tensor  # (N, d)
    y: Tensor  # (N,)
    weights: Tensor | None = None  # (N,), non-negative

    def take(self, rows: Tensor | slice) -> "Data":
        """Some of the rows."""
        return Data(self.x[rows], self.y[rows], None if self.weights is None else self.weights[rows])

    @property
    def size(self) -> int:
        return len(self.y)

    @property
    def total(self) -> float:
        return float(len(self.y)) if self.weights is None else float(self.weights.sum())

    @property
    def sample(self) -> "Data":
        return self

    def batches(self, batch_size: int, generator: torch.Generator) -> "Iterator[Data]":
        return batches(self, batch_size, generator)

    def chunks(self, size: int) -> "Iterator[Data]":
        return (self.take(slice(start, start + size)) for start in range(0, len(self.y), size))


class Share:
    """A process's part of a table in memory: of each batch every `count`-th row from `rank` on."""

    def __init__(self, data: Data, rank: int, count: int) -> None:
        self.data, self.rank, self.count = checked(data), rank, count
        self.size, self.total, self.sample = data.size, data.total, data

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Data]:
        return (self._of(batch) for batch in batches(self.data, batch_size, generator))

    def chunks(self, size: int) -> Iterator[Data]:
        return self._of(self.data).chunks(size)

    def _of(self, rows: Data) -> Data:
        return rows.take(slice(self.rank, None, self.count))


def batches(data: Data, batch_size: int, generator: torch.Generator) -> Iterator[Data]:
    """All rows once in random order: permute, then slice into the fewest near-equal batches.

    >>> data = Data(torch.arange(10.0)[:, None], torch.arange(10.0))
    >>> [len(batch.y) for batch in batches(data, 4, torch.Generator().manual_seed(0))]
    [3, 3, 4]
    """
    order = torch.randperm(len(data.y), generator=generator).to(data.y.device)
    shuffled = data.take(order)
    for start, stop in pairwise(bounds(len(data.y), batch_size)):
        yield shuffled.take(slice(start, stop))


def bounds(n: int, batch_size: int) -> list[int]:
    """Where the fewest near-equal batches of n rows begin, and the last one ends.

    >>> bounds(10, 4)
    [0, 3, 6, 10]
    """
    count = math.ceil(n / batch_size)
    return [i * n // count for i in range(count + 1)]


def check_inputs(x: Tensor, d: int, dtype: torch.dtype) -> None:
    """Refuse inputs that are not (n, d) in the model's precision."""
    if x.ndim != 2 or x.shape[1] != d or x.dtype != dtype:
        raise ValueError(
            f"Expected inputs of shape (n, {d}) in {dtype}, got shape {tuple(x.shape)} in {x.dtype}. Pass the columns "
            "the model was made for, in its precision."
        )


def check_finite(column: Tensor, name: str) -> None:
    """Refuse NaN and infinity, and count them."""
    if not bool(torch.isfinite(column).all()):
        bad = int((~torch.isfinite(column)).sum())
        raise ValueError(f"{name} holds {bad} NaN or infinite values. Remove or impute them.")


def checked(data: Data) -> Data:
    """The data, or an error that says what is wrong with it."""
    x, y, weights = data
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise ValueError(
            f"Expected x of shape (N, d) and one target per row, got x {tuple(x.shape)} and y {tuple(y.shape)}."
        )
    for name, column in (("x", x), ("y", y), ("weights", weights)):
        if column is None:
            continue
        if column.dtype != x.dtype or not column.is_floating_point():
            raise ValueError(f"{name} is {column.dtype}, x is {x.dtype}. Pass all in one floating-point precision.")
        check_finite(column, name)
    if weights is not None and (weights.shape != y.shape or bool((weights < 0).any()) or not weights.sum() > 0):
        raise ValueError("weights must be one non-negative number per row, not all zero.")
    return data
