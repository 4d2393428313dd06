"""Parquet files as one table, read a bounded number of rows at a time.

`Source` is what the files say before any row is read: columns, types and row groups, which must agree. `rows_of` gives
the rows of a table of any kind in batches, and `read_ahead` makes items in a thread before they are asked for.
"""

import glob
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from paragp.data.files import check_columns, check_distinct, column_names_of, read_batches, without_index
from paragp.data.tables import Column, some

READ_BYTES = 4 * 2**20  # of rows that are decoded at once
FEWEST_READ, MOST_READ = 500, 50_000  # rows
READ_BUFFER = 2**20  # bytes of a column that are in memory undecoded: else all of the row group
AHEAD = 8  # such blocks that wait, encoded, for whoever takes them
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

    def meets(self, rows: range) -> bool:
        """Whether it holds any of these rows."""
        return self.start < rows.stop and rows.start < self.start + self.rows


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

    def share(self, rank: int, count: int) -> range:
        """The rows that are one's of `count` processes: as many as the others', side by side."""
        return range(rank * self.rows // count, (rank + 1) * self.rows // count)

    def read(
        self, names: Sequence[str], pieces: Iterable[Piece] | None = None, within: range | None = None
    ) -> Iterator["Block"]:
        """These columns of these row groups (all, if left out), block by block; only of rows `within`, if it is given.

        Row groups without such rows are not opened.
        """
        within = range(self.rows) if within is None else within
        for piece in self.pieces if pieces is None else pieces:
            if not piece.meets(within):
                continue
            file, start = self.files[piece.file], piece.start
            if not file.exists() or _stamp(file) != self.stamps[piece.file]:
                raise OSError(f"{file} is gone, or was changed, since it was first read. Put it back and start again.")
            known = self.partitions[piece.file]
            stored = [name for name in names if name not in known]
            footer = self.footers[piece.file]
            with (
                _naming(file),
                pq.ParquetFile(file, metadata=footer, pre_buffer=False, buffer_size=READ_BUFFER) as opened,
            ):
                for batch in opened.iter_batches(self.block_rows, row_groups=[piece.group], columns=stored):
                    first, stop = max(start, within.start), min(start + len(batch), within.stop)
                    if first < stop:
                        part = _plain(pa.Table.from_batches([batch.slice(first - start, stop - first)]))
                        for name in names:
                            if name in known:
                                part = part.append_column(name, pa.repeat(known[name], len(part)))
                        yield Block(first, part.select(list(names)))
                    start += len(batch)
                    if start >= within.stop:
                        break


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
    """Views and dictionaries as their values: Arrow cannot take rows of the former, nor join many of the latter."""
    fields = [field.with_type(_plain_type(field.type)) for field in part.schema]
    return part if fields == list(part.schema) else part.cast(pa.schema(fields))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_string_view(kind) else kind


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
