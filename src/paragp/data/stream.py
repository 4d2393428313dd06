"""Tables larger than memory, as training takes them.

`survey` reads all rows of a `Source` once: statistics of the columns, rows to start from and rows to validate on. A
`Stream` is then what training takes (`data.rows.Rows`): batches from shuffled row groups through a bounded buffer, or
all rows in order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from paragp.data.files import check_columns
from paragp.data.parquet import Piece, Source, read_ahead
from paragp.data.rows import Data, bounds
from paragp.data.tables import Array, Column, ColumnSurvey, Target, encode, some

BUFFER = 128 * 2**20  # bytes of encoded rows among which a batch is drawn
FEWEST_BATCHES = 4  # that the buffer holds in any case
MOST_PARTS = 64  # of a sample, before they become one table
FEWEST_PIECES = 16  # of each process in the buffer: with fewer row groups, shares of a batch would be uneven


# --- one pass over all rows ---


@dataclass(frozen=True)
class Plan:
    """What to read of a source, as what."""

    names: list[str]  # of the inputs
    target: str
    weights: str | None
    categorical: list[bool]

    @property
    def all_names(self) -> list[str]:
        return [*self.names, self.target, *([self.weights] if self.weights else [])]


def plan(source: Source, target: str, weights: str | None, drop: Sequence[str], categorical: Any) -> Plan:
    """Which columns are inputs, and which of them are categories."""
    asked = [target, *([weights] if weights else []), *drop]
    check_columns(source.schema.names, asked, Path(source.place))
    if len(set(asked)) < len(asked):
        raise ValueError(f"A column has two roles among target, weights and those to leave out: {some(asked, 5)}.")
    names = [name for name in source.schema.names if name not in asked]
    if not names:
        raise ValueError(f"{source.place} has no column left to predict {target!r} from.")
    return Plan(names, target, weights, _kinds(source.schema, names, categorical))


def _kinds(schema: pa.Schema, names: list[str], categorical: Any) -> list[bool]:
    if isinstance(categorical, str) and categorical == "from_dtype":
        return [_is_text(schema.field(name)) for name in names]
    if categorical is None:
        return [False] * len(names)
    wanted = list(categorical)
    if all(isinstance(name, str) for name in wanted) and set(wanted) <= set(names):
        return [name in wanted for name in names]
    raise ValueError(
        f'categorical_features of a stream must be "from_dtype", None or names of columns; got {categorical!r}.'
    )


def _is_text(column: pa.Field) -> bool:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return True
    if pa.types.is_dictionary(column.type):
        return True
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if number or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return False
    raise ValueError(
        f"Column {column.name!r} is of type {column.type}, which is neither numbers nor categories. Leave it out "
        "(drop), or turn it into numbers or text."
    )


class Survey(NamedTuple):
    """What one pass over all rows found."""

    columns: tuple[Column, ...]
    target: Target
    start: Data  # rows to find a start from, standardised, in float64
    held_out: NDArray[np.int64]  # numbers of the rows that validate, rising
    validation: Data | None
    total: float  # weight of the rows that are not held out
    low: float  # the smallest target, and the largest
    high: float


def survey(
    source: Source,
    wanted: Plan,
    *,
    start_rows: int,
    validation_rows: int,
    generator: torch.Generator,
    progress: Callable[[int], object] = lambda rows: None,
    rank: int = 0,
    count: int = 1,
    gather: Callable[[Any], list[Any]] = lambda found: [found],
) -> Survey:
    """Statistics of every column but for the rows that validate, exact and in float64, and two samples of rows.

    Of `count` processes each reads its share of the rows, and `gather` gives each what all found: where one has met a
    row that cannot be used, all say so.
    """
    chosen = _sorted_sample(source.rows, min(source.rows, start_rows + validation_rows), generator)
    mixed = chosen[torch.randperm(len(chosen), generator=generator).numpy()]
    held_out, kept = np.sort(mixed[:validation_rows]), np.sort(mixed[validation_rows:])
    share = source.share(rank, count)
    error, found = None, None
    try:  # the other processes are about as far
        found = _read(source, wanted, share, kept, held_out, lambda rows: progress(count * rows))
    except (ValueError, OSError) as bad:
        error = bad
    parts = gather((error, found))
    for error, _ in parts:
        if error is not None:
            raise error
    surveys, total, samples = _merged([part for _, part in parts])
    if not total > 0:
        raise ValueError(f"All weights {wanted.weights!r} of {source.place} are zero. At least one row must count.")
    *columns, known = (found.column() for found in surveys)
    target = Target(wanted.target, known.mean, known.deviation)
    start, validation = (
        encoded(_one_table(samples[name]), wanted, columns, target) if samples[name] else None
        for name in ("start", "validation")
    )
    assert start is not None
    if start.weights is not None and not start.weights.any():
        raise ValueError(
            f"None of {start.size} rows of {source.place}, drawn at random, has a weight {wanted.weights!r} above "
            "zero. Leave rows of no weight out."
        )
    if validation is not None and validation.weights is not None and not validation.weights.any():
        validation = None
    low, high = surveys[-1].low, surveys[-1].high
    return Survey(tuple(columns), target, start, held_out, validation, total, low, high)


def _read(
    source: Source,
    wanted: Plan,
    share: range,
    kept: NDArray[np.int64],
    held_out: NDArray[np.int64],
    progress: Callable[[int], object],
) -> tuple[list[ColumnSurvey], float, dict[str, dict[int, pa.Table]]]:
    """Of a share of the rows: each column's survey, the target's last, the weight, and the rows of both samples."""
    surveys = [ColumnSurvey(name, text) for name, text in zip(wanted.names, wanted.categorical, strict=True)]
    surveys.append(ColumnSurvey(wanted.target, False))
    total = 0.0
    samples: dict[str, dict[int, pa.Table]] = {"start": {}, "validation": {}}
    for first, part in read_ahead(source.read(wanted.all_names, within=share)):
        progress(len(part))
        _check_numbers(source, wanted, part, first)
        for name, rows in (("start", kept), ("validation", held_out)):
            taken = _within(rows, first, len(part)) - first
            if len(taken):
                samples[name][first] = part.take(taken)
                if len(samples[name]) > MOST_PARTS:  # many small tables are mostly what tables take beside their rows
                    samples[name] = {min(samples[name]): _one_table(samples[name])}
        mask = _training(first, len(part), held_out)
        if not mask.any():
            continue
        part = part.filter(pa.array(mask))
        weights = _weights(part, wanted)
        total += float(weights.sum())
        for column, found in zip(wanted.names, surveys[:-1], strict=True):
            found.add(nw.from_native(part[column], series_only=True), weights)
        surveys[-1].add(_floats(part[wanted.target], wanted.target), weights)
    return surveys, total, samples


def _one_table(parts: dict[int, pa.Table]) -> pa.Table:
    return pa.concat_tables(parts.values()).combine_chunks()


def _training(start: int, rows: int, held_out: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows of a block are to train on."""
    mask = np.ones(rows, dtype=bool)
    mask[_within(held_out, start, rows) - start] = False
    return mask


def _merged(found: list[Any]) -> Any:
    """What several processes have found, as one; in the order of the processes."""
    surveys, total, samples = found[0]
    for others, more, parts in found[1:]:
        for survey, other in zip(surveys, others, strict=True):
            survey.merge(other)
        total += more
        samples = {name: samples[name] | parts[name] for name in samples}
    return surveys, total, samples


def _sorted_sample(n: int, k: int, generator: torch.Generator) -> NDArray[np.int64]:
    """k of n numbers, each set as likely as any other, rising; in memory that grows with k alone."""
    if 2 * k >= n:
        return np.sort(torch.randperm(n, generator=generator)[:k].numpy())
    found = np.empty(0, dtype=np.int64)
    while len(found) < k:
        drawn = torch.randint(n, (k - len(found),), generator=generator).numpy()
        found = np.unique(np.concatenate([found, drawn]))
    return found


def _within(rows: NDArray[np.int64], start: int, count: int) -> NDArray[np.int64]:
    """Those of rising numbers that lie in a range."""
    return rows[slice(*np.searchsorted(rows, [start, start + count]))]


def _check_numbers(source: Source, wanted: Plan, part: pa.Table, first: int) -> None:
    """Refuse a target that is missing or infinite, and weights that are no weights, with the row's number."""
    for name, least in ((wanted.target, -np.inf), (wanted.weights, 0.0)):
        if name is None:
            continue
        values = _floats(part[name], name)
        bad = ~np.isfinite(values) | (values < least)
        if bad.any():
            row = first + int(np.flatnonzero(bad)[0])
            what = "target" if name == wanted.target else "weight"
            raise ValueError(
                f"The {what} {name!r} is {values[bad][0]} in row {row} of {source.place} (counted from 0 over all "
                "files). Leave such rows out."
            )


def _floats(column: pa.ChunkedArray, name: str) -> Array:
    try:
        return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"The column {name!r} must hold numbers, it is {column.type}.") from error


def _weights(part: pa.Table, wanted: Plan) -> Array:
    return np.ones(len(part)) if wanted.weights is None else _floats(part[wanted.weights], wanted.weights)


def encoded(part: pa.Table, wanted: Plan, columns: Sequence[Column], target: Target) -> Data:
    """Rows as the model takes them, in float64."""
    x = encode(columns, part.select(wanted.names)) if len(part) else np.empty((0, _width(columns)))
    y = target.encode(_floats(part[wanted.target], wanted.target))
    weights = None if wanted.weights is None else torch.from_numpy(_weights(part, wanted).copy())
    return Data(torch.from_numpy(x), torch.from_numpy(y), weights)


def _width(columns: Sequence[Column]) -> int:
    return sum(len(column.outputs) for column in columns)


# --- what training takes ---


@dataclass
class Stream:
    """Rows of files as training takes them (`Rows`): encoded, standardised, without those that validate.

    Where `count` processes train together, each reads its share of the rows (`Source.share`). Only where there are too
    few row groups to shuffle them and still give all an even share of each batch, each reads all for every `count`-th.
    """

    source: Source
    wanted: Plan
    found: Survey
    dtype: torch.dtype
    device: torch.device
    buffer: int = BUFFER  # bytes
    rank: int = 0  # of `count` processes that train together
    count: int = 1
    _sample: Data = field(init=False)

    def __post_init__(self) -> None:
        self._sample = self._placed(self.found.start)

    @property
    def size(self) -> int:
        return self.source.rows - len(self.found.held_out)

    @property
    def total(self) -> float:
        return self.found.total

    @property
    def sample(self) -> Data:
        return self._sample

    @property
    def validation(self) -> Data | None:
        return None if self.found.validation is None else self._placed(self.found.validation)

    def chunks(self, size: int) -> Iterator[Data]:
        left: Data | None = None
        for part in read_ahead(self._share()):
            rows = part if left is None else _joined(left, part)
            whole = len(rows.y) - len(rows.y) % size
            for start in range(0, whole, size):
                yield self._placed(rows.take(slice(start, start + size)))
            left = rows.take(slice(whole, None))
        if left is not None and len(left.y):
            yield self._placed(left)

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Data]:
        """All rows once: row groups in random order fill a buffer, whose rows are shuffled and cut into batches.

        One number is drawn from `generator`; all else follows from it, so that neither reading ahead nor the number of
        processes changes a batch.
        """
        own = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (), generator=generator)))
        pieces = [self.source.pieces[i] for i in spread_order(len(self.source.pieces), own)]
        sizes = iter([stop - start for start, stop in pairwise(bounds(self.size, batch_size))])
        width = self._sample.x.shape[1] + 2
        capacity = max(self.buffer // (width * self._sample.x.element_size()), FEWEST_BATCHES * batch_size)
        held = _Held(min(capacity, self.size), self._sample)
        wanted = next(sizes)
        typical = sum(piece.rows**2 for piece in pieces) / self.source.rows  # of the row group that a row is in
        by_range = capacity >= FEWEST_PIECES * self.count * typical
        for own_rows, part in read_ahead(self._parts(pieces, by_range)):
            while len(own_rows):
                own_rows, part = held.fill(own_rows, part)
                if held.full:
                    order = held.shuffled(own)
                    taken = 0
                    while taken + wanted <= len(order):
                        yield self._placed(held.rows(order[taken : taken + wanted]))
                        taken += wanted
                        wanted = next(sizes, len(order) + 1)
                    held.keep(order[taken:])
        if held.count:
            order = held.shuffled(own)
            taken = 0
            while taken < len(order):
                yield self._placed(held.rows(order[taken : taken + wanted]))
                taken += wanted
                wanted = next(sizes, 0)

    def _share(self) -> Iterator[Data]:
        """This process's share of all rows, in order."""
        for first, part in self.source.read(self.wanted.all_names, within=self.source.share(self.rank, self.count)):
            yield self._encoded(part, _training(first, len(part), self.found.held_out))

    def _parts(self, pieces: Iterable[Piece], by_range: bool) -> Iterator[tuple[NDArray[np.bool_], Data]]:
        """For each block (or row group that need not be read) which of its rows, without those that validate, are this
        process's, and these rows encoded: its range of the table, or every `count`-th."""
        share, nothing = self.source.share(self.rank, self.count), self._sample.take(slice(0))
        for piece in pieces:
            if by_range and not piece.meets(share):
                yield np.zeros(_training(*piece[2:], self.found.held_out).sum(), dtype=bool), nothing
                continue
            for first, part in self.source.read(self.wanted.all_names, [piece]):
                training = _training(first, len(part), self.found.held_out)
                row = np.arange(first, first + len(part))
                own = (share.start <= row) & (row < share.stop) if by_range else row % self.count == self.rank
                yield own[training], self._encoded(part, own & training)

    def _encoded(self, part: pa.Table, taken: NDArray[np.bool_]) -> Data:
        """Some rows of a block, on the processor, in the model's precision."""
        rows = encoded(part.filter(pa.array(taken)), self.wanted, self.found.columns, self.found.target)
        return _mapped(rows, lambda values: values.to(self.dtype))

    def _placed(self, rows: Data) -> Data:
        return _mapped(rows, lambda values: values.to(self.device, self.dtype))


class _Held:
    """Places for the rows of a buffer, and in memory of its own those rows that are this process's."""

    def __init__(self, capacity: int, like: Data) -> None:
        self.data = _mapped(like, lambda part: torch.empty(capacity, *part.shape[1:], dtype=part.dtype))
        self.slots = torch.empty(capacity, dtype=torch.int64)  # of each place: where its row lies; -1: elsewhere
        self.order = torch.empty(capacity, dtype=torch.int64)  # kept: a new one each time would leave holes in memory
        self.count = self.own = 0

    @property
    def full(self) -> bool:
        return self.count == len(self.slots)

    def fill(self, own: NDArray[np.bool_], part: Data) -> tuple[NDArray[np.bool_], Data]:
        """Takes in rows, of which `part` holds those that are this process's own; returns what there is no room for."""
        room = min(len(own), len(self.slots) - self.count)
        here = torch.from_numpy(own[:room])
        stored = int(here.sum())
        self.slots[self.count : self.count + room] = torch.where(here, self.own + here.cumsum(0) - 1, -1)
        self._store(part.take(slice(stored)))
        self.count += room
        return own[room:], part.take(slice(stored, None))

    def _store(self, rows: Data) -> None:
        for own, values in zip(self.data, rows, strict=True):
            if own is not None and values is not None:
                own[self.own : self.own + len(values)] = values
        self.own += len(rows.y)

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """The places in random order, until the next time."""
        return torch.randperm(self.count, generator=generator, out=self.order[: self.count])

    def rows(self, places: Tensor) -> Data:
        """Those at these places that are here."""
        slots = self.slots[places]
        return self.data.take(slots[slots >= 0])

    def keep(self, places: Tensor) -> None:
        """Only these rows stay."""
        left, here = self.rows(places), self.slots[places] >= 0
        self.count, self.own = len(places), 0
        self._store(left)
        self.slots[: self.count] = torch.where(here, here.cumsum(0) - 1, -1)


def spread_order(n: int, generator: torch.Generator) -> list[int]:
    """A random order of n numbers of which every stretch is spread evenly over all: halves take turns, and so on.

    >>> order = spread_order(8, torch.Generator().manual_seed(0))
    >>> order, [sorted(number // 2 for number in part) for part in (order[:4], order[4:])]
    ([4, 0, 6, 3, 5, 1, 7, 2], [[0, 1, 2, 3], [0, 1, 2, 3]])
    """
    coins = iter(torch.randint(2, (n,), generator=generator).tolist())

    def order(low: int, high: int) -> list[int]:
        if high - low < 2:
            return list(range(low, high))
        coin = next(coins)
        middle = (low + high + coin) // 2  # of an odd number, the half that begins is the larger one
        halves = order(low, middle), order(middle, high)
        found = [0] * (high - low)
        found[::2], found[1::2] = halves if coin else halves[::-1]
        return found

    return order(0, n)


def _mapped(rows: Data, change: Callable[[Tensor], Tensor]) -> Data:
    return Data(change(rows.x), change(rows.y), None if rows.weights is None else change(rows.weights))


def _joined(one: Data, other: Data) -> Data:
    weights = None if one.weights is None or other.weights is None else torch.cat([one.weights, other.weights])
    return Data(torch.cat([one.x, other.x]), torch.cat([one.y, other.y]), weights)
