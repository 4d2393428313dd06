"""Tables larger than memory: Parquet files that are read anew for each pass, a bounded number of rows at a time.

`Source` is what the files say before any row is read: columns, types and row groups, which must agree. `survey` reads
all rows once: statistics of the columns, rows to start from and rows to validate on. A `Stream` is then what training
takes (`data.rows.Rows`): batches from shuffled row groups through a bounded buffer, or all rows in order.
"""

import glob
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from paragp.data.files import check_columns, check_distinct, column_names_of, read_batches, some, without_index
from paragp.data.rows import Data, bounds
from paragp.data.tables import Array, Column, ColumnSurvey, Target, encode

READ_BYTES = 4 * 2**20  # of rows that are decoded at once
FEWEST_READ, MOST_READ = 500, 50_000  # rows
AHEAD = 8  # such blocks that wait, encoded, for whoever takes them
BUFFER = 128 * 2**20  # bytes of encoded rows among which a batch is drawn
FEWEST_BATCHES = 4  # that the buffer holds in any case
ENDINGS = (".parquet", ".pq")
GLOB = "*?["  # signs of a glob
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # how a partition's folder spells a missing value

T = TypeVar("T")


# --- what the files say ---


class Piece(NamedTuple):
    """A row group."""

    file: int
    group: int
    start: int  # its first row, counted over all files
    rows: int


class Source:
    """Parquet files as one table. `place` is a file, a folder or a glob; key=value/ folders below it are columns."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = str(place)
        self.files = _files(self.place)
        self.partitions = _partitions(self.files, _root(self.place))
        self.pieces: list[Piece] = []
        self.stamps: list[tuple[int, int]] = []
        self.footers: list[pq.FileMetaData] = []
        self.rows = 0
        for i, file in enumerate(self.files):
            with _naming(file), pq.ParquetFile(file) as opened:
                schema, footer = opened.schema_arrow, opened.metadata
            self.stamps.append(_stamp(file))
            self.footers.append(footer)
            schema = pa.schema([schema.field(name) for name in without_index(schema.names)])
            check_distinct(schema.names, file)
            self.partitions[i] = {key: value for key, value in self.partitions[i].items() if key not in schema.names}
            for name, value in self.partitions[i].items():
                schema = schema.append(pa.field(name, value.type))
            if i == 0:
                self.schema = schema
            else:
                _check_schema(schema, self.schema, file, self.files[0])
            for group in range(footer.num_row_groups):
                count = footer.row_group(group).num_rows
                if count:
                    self.pieces.append(Piece(i, group, self.rows, count))
                    self.rows += count
        if not self.rows:
            raise ValueError(f"{self.place} has no rows.")
        self.block_rows = max(FEWEST_READ, min(MOST_READ, READ_BYTES // (8 * len(self.schema))))

    def read(self, names: Sequence[str], pieces: Iterable[Piece] | None = None) -> Iterator["Block"]:
        """These columns of these row groups (all, if left out), block by block."""
        for piece in self.pieces if pieces is None else pieces:
            file, start = self.files[piece.file], piece.start
            if not file.exists() or _stamp(file) != self.stamps[piece.file]:
                raise OSError(f"{file} is gone, or was changed, since it was first read. Put it back and start again.")
            known = self.partitions[piece.file]
            stored = [name for name in names if name not in known]
            footer = self.footers[piece.file]
            with _naming(file), pq.ParquetFile(file, metadata=footer, pre_buffer=False) as opened:
                for batch in opened.iter_batches(self.block_rows, row_groups=[piece.group], columns=stored):
                    part = _plain(pa.Table.from_batches([batch]))
                    for name in names:
                        if name in known:
                            part = part.append_column(name, pa.repeat(known[name], len(batch)))
                    yield Block(start, part.select(list(names)))
                    start += len(batch)


class Block(NamedTuple):
    """Rows that are read together."""

    start: int  # the first row's number
    table: pa.Table


def _files(place: str) -> list[Path]:
    if Path(place).is_dir():
        found = [path for path in Path(place).rglob("*") if path.is_file() and _is_visible(path.relative_to(place))]
    elif Path(place).exists():
        found = [Path(place)]
    else:
        found = [Path(name) for name in glob.glob(place, recursive=True) if Path(name).is_file()]
    if not found and Path(place).is_dir():
        raise FileNotFoundError(f"{place} is a folder without Parquet files.")
    if not found:
        raise FileNotFoundError(f"There is no file at {place}. Pass a Parquet file, a folder of such, or a glob.")
    others = [path for path in found if not path.name.lower().endswith(ENDINGS)]
    if others:
        raise ValueError(f"{others[0]} is no Parquet file ({' or '.join(ENDINGS)}). Only such files can be streamed.")
    return sorted(found)


def _is_visible(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)  # what is being written, and notes of writers


def _root(place: str) -> Path:
    """The folder below which key=value/ folders are columns: of a glob, the last one without a sign."""
    if Path(place).is_dir():
        return Path(place)
    parts = Path(place).parts
    fixed = next((i for i, part in enumerate(parts) if any(sign in part for sign in GLOB)), len(parts) - 1)
    return Path(*parts[:fixed])


def _partitions(files: Sequence[Path], root: Path) -> list[dict[str, pa.Scalar]]:
    """The values of key=value/ folders, by file: of a key whole numbers if all of them are, else text."""
    words: list[dict[str, str | None]] = []
    for file in files:
        folders = [part.partition("=") for part in file.relative_to(root).parent.parts if "=" in part]
        words.append({key: None if value == NO_VALUE else unquote(value) for key, _, value in folders})
    found: list[dict[str, pa.Scalar]] = [{} for _ in files]
    for key in dict.fromkeys(key for keys in words for key in keys):
        values = [keys[key] for keys in words if keys.get(key) is not None]
        whole = all(value is not None and value.lstrip("-").isdecimal() for value in values)
        for keys, known in zip(words, found, strict=True):
            if key in keys:
                value = keys[key]
                known[key] = pa.scalar(
                    int(value) if whole and value is not None else value, pa.int64() if whole else pa.string()
                )
    return found


def _plain(part: pa.Table) -> pa.Table:
    """Views as text: Arrow cannot take rows of them."""
    if not any(pa.types.is_string_view(kind) for kind in part.schema.types):
        return part
    fields = [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in part.schema]
    return part.cast(pa.schema(fields))


def _check_schema(schema: pa.Schema, first: pa.Schema, file: Path, first_file: Path) -> None:
    missing = [name for name in first.names if name not in schema.names]
    more = [name for name in schema.names if name not in first.names]
    if missing or more:
        verb, names = ("lacks", missing) if missing else ("has besides", more)
        raise ValueError(
            f"{file} {verb} the column{'s' * (len(names) > 1)} {some(names, 5)} beside {first_file}. All files must "
            "have the same columns."
        )
    for name in first.names:
        one, other = schema.field(name).type, first.field(name).type
        if one != other:
            raise ValueError(f"The column {name!r} is {one} in {file} and {other} in {first_file}. Make them the same.")


class _naming:
    """Errors of the Parquet reader, with the file's name."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, pa.ArrowException) or (isinstance(error, OSError) and error.errno is None):
            reason = (str(error).splitlines() or ["it is damaged"])[0]
            raise ValueError(f"{self.file} cannot be read as Parquet: {reason[:200]}") from error


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


# --- files of either kind ---


def is_many(place: Path) -> bool:
    """Whether a folder or a glob is meant, and not one file."""
    return place.is_dir() or (not place.exists() and any(sign in str(place) for sign in GLOB))


def too_large(place: Path) -> bool:
    """Whether a Parquet file is larger than a quarter of the memory."""
    if not place.is_file() or not place.name.lower().endswith(ENDINGS) or not hasattr(os, "sysconf"):
        return False
    with _naming(place), pq.ParquetFile(place) as opened:
        size = sum(opened.metadata.row_group(i).total_byte_size for i in range(opened.metadata.num_row_groups))
    return size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 4


def names_of(place: Path) -> list[str]:
    """The names of the columns of a file, or of many."""
    return list(Source(place).schema.names) if is_many(place) else column_names_of(place)


def rows_of(place: Path, columns: Sequence[Column], also: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a file, or of many in the order of their names, in batches: a model's columns and `also`."""
    if not is_many(place):
        yield from read_batches(place, columns, also)
        return
    source = Source(place)
    names = list(dict.fromkeys([*(column.name for column in columns), *also]))
    check_columns(source.schema.names, names, place)
    for block in read_ahead(source.read(names)):
        yield block.table


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

    Of `count` processes each takes every `count`-th row from its `rank` on, and `gather` gives each what all found.
    """
    chosen = _sorted_sample(source.rows, min(source.rows, start_rows + validation_rows), generator)
    mixed = chosen[torch.randperm(len(chosen), generator=generator).numpy()]
    held_out, kept = np.sort(mixed[:validation_rows]), np.sort(mixed[validation_rows:])
    surveys = [ColumnSurvey(name, text) for name, text in zip(wanted.names, wanted.categorical, strict=True)]
    surveys.append(ColumnSurvey(wanted.target, False))
    total = 0.0
    samples: dict[str, dict[int, pa.Table]] = {"start": {}, "validation": {}}
    for first, part in read_ahead(source.read(wanted.all_names)):
        progress(len(part))
        _check_numbers(source, wanted, part, first)
        for name, rows in (("start", kept), ("validation", held_out)):
            taken = _within(rows, first, len(part)) - first
            if len(taken) and rank == 0:  # each finds the same
                samples[name][first] = part.take(taken)
        mask = _own(first, len(part), held_out, rank, count)
        if not mask.any():
            continue
        part = part.filter(pa.array(mask))
        weights = _weights(part, wanted)
        total += float(weights.sum())
        for column, found in zip(wanted.names, surveys[:-1], strict=True):
            found.add(nw.from_native(part[column], series_only=True), weights)
        surveys[-1].add(_floats(part[wanted.target], wanted.target), weights)
    surveys, total, samples = _merged(gather((surveys, total, samples)))
    if not total > 0:
        raise ValueError(f"All weights {wanted.weights!r} of {source.place} are zero. At least one row must count.")
    *columns, known = (found.column() for found in surveys)
    target = Target(wanted.target, known.mean, known.deviation)
    start, validation = (
        encoded(pa.concat_tables(samples[name].values()), wanted, columns, target) if samples[name] else None
        for name in ("start", "validation")
    )
    assert start is not None
    low, high = surveys[-1].low, surveys[-1].high
    return Survey(tuple(columns), target, start, held_out, validation, total, low, high)


def _own(start: int, rows: int, held_out: NDArray[np.int64], rank: int, count: int) -> NDArray[np.bool_]:
    """Which rows of a block are this process's to train on."""
    mask = np.arange(start, start + rows) % count == rank
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
    """Rows of files as training takes them (`Rows`): encoded, standardised, without those that validate."""

    source: Source
    wanted: Plan
    found: Survey
    dtype: torch.dtype
    device: torch.device
    buffer: int = BUFFER  # bytes
    rank: int = 0  # of `count` processes that train together: each takes every `count`-th row
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
        for _, part in read_ahead(self._parts(self.source.pieces)):
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
        pieces = [self.source.pieces[i] for i in torch.randperm(len(self.source.pieces), generator=own)]
        sizes = iter([stop - start for start, stop in pairwise(bounds(self.size, batch_size))])
        width = self._sample.x.shape[1] + 2
        capacity = max(self.buffer // (width * self._sample.x.element_size()), FEWEST_BATCHES * batch_size)
        held = _Held(min(capacity, self.size), self._sample)
        wanted = next(sizes)
        for own_rows, part in read_ahead(self._parts(pieces)):
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

    def _parts(self, pieces: Iterable[Piece]) -> Iterator[tuple[NDArray[np.bool_], Data]]:
        """For each block which of its rows (without those that validate) are this process's, and these rows: encoded,
        on the processor, in the model's precision."""
        for first, part in self.source.read(self.wanted.all_names, pieces):
            own = _own(first, len(part), self.found.held_out, self.rank, self.count)
            training = _own(first, len(part), self.found.held_out, 0, 1)
            rows = encoded(part.filter(pa.array(own)), self.wanted, self.found.columns, self.found.target)
            yield own[training], _mapped(rows, lambda values: values.to(self.dtype))

    def _placed(self, rows: Data) -> Data:
        return _mapped(rows, lambda values: values.to(self.device, self.dtype))


class _Held:
    """Places for the rows of a buffer, and in memory of its own those rows that are this process's."""

    def __init__(self, capacity: int, like: Data) -> None:
        self.data = _mapped(like, lambda part: torch.empty(capacity, *part.shape[1:], dtype=part.dtype))
        self.slots = torch.empty(capacity, dtype=torch.int64)  # of each place: where its row lies; -1: elsewhere
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
        return torch.randperm(self.count, generator=generator)

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


def _mapped(rows: Data, change: Callable[[Tensor], Tensor]) -> Data:
    return Data(change(rows.x), change(rows.y), None if rows.weights is None else change(rows.weights))


def _joined(one: Data, other: Data) -> Data:
    weights = None if one.weights is None or other.weights is None else torch.cat([one.weights, other.weights])
    return Data(torch.cat([one.x, other.x]), torch.cat([one.y, other.y]), weights)


def read_ahead(items: Iterator[T], ahead: int = AHEAD) -> Iterator[T]:
    """The same items, made in a thread before they are asked for; what goes wrong there is raised here."""
    waiting: queue.Queue[Any] = queue.Queue(ahead)
    ended, stopped = object(), threading.Event()

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((ended, None))
        except BaseException as error:
            put((ended, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = waiting.get()
            if error is not None:
                raise error
            if item is ended:
                return
            yield item
    finally:
        stopped.set()
        thread.join()
