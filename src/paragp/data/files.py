"""Tables in files: CSV (also gzipped), Parquet and Arrow in, Parquet and CSV out, whole or in batches of rows."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from paragp.atomic import writing
from paragp.data.tables import Column, some

BATCH_ROWS = 50_000
KINDS = {
    ".csv": "CSV", ".csv.gz": "CSV", ".parquet": "Parquet", ".pq": "Parquet",
    ".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow",
}  # fmt: skip
FILE, FEATHER_1, STREAM = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"  # how the Arrow formats begin
WRITTEN = (".csv", ".parquet", ".pq")
NO_NUMBER = pa.array(pacsv.ConvertOptions().null_values)  # how CSV files spell a number that is missing: NA, null, ...
PANDAS_INDEX = "__index_level_"  # a data frame's row numbers, which pandas writes as a column


def kind_of(path: Path) -> str:
    """CSV, Parquet or Arrow, by the ending of the name."""
    name = path.name.lower()
    for ending, kind in KINDS.items():
        if name.endswith(ending):
            return kind
    raise ValueError(
        f"{path} ends in none of {', '.join(KINDS)}. Rename it, or write the table in one of these formats."
    )


def read_table(path: Path, text: Sequence[str] = ()) -> pa.Table:
    """A whole table, with at least one row and distinct column names.

    In a CSV the columns `text` are read as text. NA, null and the like are a missing number; in text, only an empty
    field is missing.
    """
    kind = kind_of(path)
    with _reading(path):
        if kind == "CSV":
            table = pacsv.read_csv(_csv_bytes(path), **_csv_options(dict.fromkeys(text, pa.string())))
            _refuse_binary(table.schema)
            table = pa.table([_empty_is_missing(column) for column in table.columns], table.column_names)
        elif kind == "Parquet":
            with pq.ParquetFile(path) as file:
                table = file.read()
        else:
            schema, batches = _arrow(path)
            table = pa.Table.from_batches(batches, schema)
        names = without_index(table.column_names)
        check_distinct(names, path)
    table = table.select(names)
    if not table.num_rows or not table.num_columns:
        raise ValueError(
            f"{path} has {table.num_columns} columns and {table.num_rows} rows; at least one of each is needed."
        )
    return table


def read_batches(path: Path, columns: Sequence[Column], also: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a file in order, in batches: the columns of a model (which must all be there) and `also`, numbers.

    What is a number and what is text is up to the model's columns, whatever the first rows of a CSV look like.
    """
    names = list(dict.fromkeys([*(column.name for column in columns), *also]))
    kind = kind_of(path)
    count = 0
    check_columns(column_names_of(path), names, path)
    with _reading(path):
        if kind == "CSV":
            text = {column.name for column in columns if column.kind == "categorical"} - set(also)
            batches: Iterable[pa.RecordBatch] = _csv_batches(path, names, text)
        elif kind == "Parquet":
            batches = _parquet_batches(path, names)
        else:
            batches = _arrow(path)[1]
        for batch in batches:
            if len(batch):
                count += len(batch)
                yield pa.Table.from_batches([batch]).select(names)
    if not count:
        raise ValueError(f"{path} has no rows.")


def even_blocks(batches: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in blocks of `size` (the last may be smaller), however the batches were cut.

    >>> [len(block) for block in even_blocks([pa.table({"a": range(n)}) for n in (3, 4, 1)], 5)]
    [5, 3]
    """
    held: list[pa.Table] = []
    for batch in batches:
        if held and held[0].schema != batch.schema:  # a CSV column may turn from numbers to true and false
            yield pa.concat_tables(held)
            held = []
        held.append(batch)
        if sum(map(len, held)) >= size:
            rows = pa.concat_tables(held)
            whole = len(rows) - len(rows) % size
            yield from (rows.slice(start, size) for start in range(0, whole, size))
            held = [rows.slice(whole)] if whole < len(rows) else []
    if held:
        yield pa.concat_tables(held)


def column_names_of(path: Path) -> list[str]:
    """The names of a file's columns, which are distinct."""
    kind = kind_of(path)
    with _reading(path):
        if kind == "CSV":
            names = _csv_schema(path).names
        else:
            names = (pq.read_schema(path) if kind == "Parquet" else _arrow(path)[0]).names
    names = without_index(names)
    check_distinct(names, path)
    return names


def check_columns(found: Sequence[str], names: Iterable[str], path: Path) -> None:
    """Refuse a table without the columns `names`."""
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {some(missing, 5)}; it has {some(found, 10)}."
        )


@contextmanager
def writing_table(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that appends rows (a dictionary of columns) to the file `path`, which appears when all is written."""
    if not path.name.lower().endswith(WRITTEN):
        raise ValueError(f"{path} cannot be written: choose a name that ends in .parquet or .csv.")
    kind = kind_of(path)
    with writing(path) as part:
        writer: Any = None

        def write(columns: dict[str, Any]) -> None:
            nonlocal writer
            table = pa.table(columns)
            with _in_words(path, "written"):
                if writer is None:
                    writer = (pacsv.CSVWriter if kind == "CSV" else pq.ParquetWriter)(part, table.schema)
                writer.write_table(table)

        try:
            yield write
        finally:
            if writer is not None:
                with _in_words(path, "written"):
                    writer.close()
        if writer is None:
            raise ValueError(f"There were no rows to write to {path}.")


# --- CSV ---


def _csv_bytes(path: Path) -> Any:
    """A stream to be dropped, not closed: Arrow reads ahead in threads that live a little longer than their reader, and
    in a closed one they would read, and use up, the start of the file that is opened next under the same number."""
    return pa.input_stream(str(path), compression="gzip" if path.name.lower().endswith(".gz") else None)


def _csv_options(types: dict[str, pa.DataType], names: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "parse_options": pacsv.ParseOptions(newlines_in_values=True),
        "convert_options": pacsv.ConvertOptions(column_types=types, include_columns=names or None),
    }


def _csv_schema(path: Path) -> pa.Schema:
    """Names, and types as the first block of rows suggests them."""
    with pacsv.open_csv(_csv_bytes(path), **_csv_options({})) as reader:
        _refuse_binary(reader.schema)
        return reader.schema


def _csv_batches(path: Path, names: Sequence[str], text: set[str]) -> Iterator[pa.RecordBatch]:
    """Batches of these columns: those in `text` as text, the others as numbers or booleans."""
    seen = _csv_schema(path)
    types = {name: pa.string() if name in text else _number_type(seen.field(name).type) for name in names}
    try:
        with pacsv.open_csv(_csv_bytes(path), **_csv_options(types, names)) as reader:
            for batch in reader:
                columns = [
                    _empty_is_missing(part) if name in text else _numbers_in_text(part)
                    for name, part in zip(names, batch.columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, names)
    except pa.ArrowInvalid as error:
        found = re.search(r"In CSV column #(\d+): .* to (?:double|bool): invalid value '(.*)'", str(error))
        if not found:
            raise
        name, value = seen.names[int(found[1])], found[2]
        raise ValueError(f"{path} holds {value[:40]!r} in the column {name!r}, where a number is expected.") from None


def _number_type(seen: pa.DataType) -> pa.DataType:
    """float64; but true and false are not read as such, and a column that starts empty may hold either: as text."""
    if pa.types.is_null(seen):
        return pa.string()
    return seen if pa.types.is_boolean(seen) else pa.float64()


def _empty_is_missing(column: Any) -> Any:
    return _missing(column, pa.array([""])) if pa.types.is_string(column.type) else column


def _missing(column: Any, words: pa.Array) -> Any:
    return pc.if_else(pc.is_in(column, words), pa.scalar(None, column.type), column)


def _numbers_in_text(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    column = _missing(column, NO_NUMBER)
    for kind in (pa.float64(), pa.bool_()):
        with suppress(pa.ArrowInvalid):
            return column.cast(kind)
    return column  # whoever needs numbers will say what is wrong


def _refuse_binary(schema: pa.Schema) -> None:
    """Text that is not UTF-8 comes as bytes."""
    for field in schema:
        if pa.types.is_binary(field.type):
            raise pa.ArrowInvalid(f"the column {field.name!r} is not UTF-8 text; save the file as UTF-8")


# --- Parquet and Arrow ---


def _parquet_batches(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=names)


def _arrow(path: Path) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Schema and batches of an Arrow file, an Arrow stream or a Feather file of version 1, by how it begins."""
    with path.open("rb") as file:
        start = file.read(len(FILE))
    if start == FILE:
        reader = ipc.open_file(path)
        return reader.schema, _valid(reader.get_batch(i) for i in range(reader.num_record_batches))
    if start.startswith(STREAM):
        stream = ipc.open_stream(path)
        return stream.schema, _valid(stream)
    if start.startswith(FEATHER_1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            table = feather.read_table(path)
        return table.schema, table.to_batches()
    raise pa.ArrowInvalid("it does not begin as an Arrow file does")


def _valid(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, checked: Arrow maps the bytes of a file as they are, damaged or not."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


# --- checks ---


def without_index(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith(PANDAS_INDEX)]


def check_distinct(names: Sequence[str], path: Path) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{path} has the column {repeated[0]!r} more than once. Rename one of them.")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever makes a file unreadable, in one sentence."""
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a table.")
    if not path.is_file():  # a pipe would be waited for, and cannot be read twice
        raise OSError(f"{path} is not a file on a disk, so it cannot be read as a table.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} may not be read.")
    with _in_words(path, f"read as {kind_of(path)}"):
        yield


@contextmanager
def _in_words(path: Path, what: str) -> Iterator[None]:
    """Arrow's exceptions as a ValueError or OSError of one sentence."""
    try:
        yield
    except (pa.ArrowException, UnicodeError, OSError) as error:
        lines = str(getattr(error, "strerror", None) or error).splitlines() or ["unknown reason"]
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"{path} cannot be {what}: {lines[0][:200].rstrip('.')}.") from error
