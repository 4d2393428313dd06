"""Tables in files: CSV (also gzipped), Parquet and Arrow in, Parquet and CSV out, whole or in batches of rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from paragp.atomic import writing
from paragp.data.tables import Column

BATCH_ROWS = 50_000
KINDS = {
    ".csv": "CSV", ".csv.gz": "CSV", ".parquet": "Parquet", ".pq": "Parquet",
    ".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow",
}  # fmt: skip
NULLS = pacsv.ConvertOptions(strings_can_be_null=True)


def kind_of(path: Path) -> str:
    """CSV, Parquet or Arrow, by the ending of the name."""
    name = path.name.lower()
    for ending, kind in KINDS.items():
        if name.endswith(ending):
            return kind
    raise ValueError(
        f"{path} ends in none of {', '.join(KINDS)}. Rename it, or write the table in one of these formats."
    )


def read_table(path: Path) -> pa.Table:
    """A whole table, with at least one row and distinct column names."""
    kind = kind_of(path)
    with _in_words(path, kind):
        if kind == "CSV":
            table = pacsv.read_csv(path, convert_options=NULLS)
        elif kind == "Parquet":
            table = pq.read_table(path)
        else:
            table = feather.read_table(path)
    return _checked(table, path)


def read_batches(path: Path, columns: Sequence[Column], also: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a file in order, in batches: the columns of a model (which must all be there) and `also`.

    A column of numbers may come as anything that reads as numbers, whatever the first rows look like.
    """
    names = [column.name for column in columns]
    kind = kind_of(path)
    with _in_words(path, kind):
        if kind == "CSV":
            with pacsv.open_csv(path, convert_options=NULLS) as reader:
                schema = reader.schema
            _require(schema.names, [*names, *also], path)
            types = {c.name: _csv_type(c, schema.field(c.name).type) for c in columns}
            options = pacsv.ConvertOptions(
                strings_can_be_null=True,
                column_types=types | dict.fromkeys(also, pa.float64()),
                include_columns=[*names, *also],
            )
            with pacsv.open_csv(path, convert_options=options) as reader:
                yield from (pa.table(batch) for batch in _batches(reader) if len(batch))
        elif kind == "Parquet":
            with pq.ParquetFile(path) as file:
                _require(file.schema_arrow.names, [*names, *also], path)
                for batch in file.iter_batches(BATCH_ROWS, columns=[*names, *also]):
                    yield pa.Table.from_batches([batch]).select([*names, *also])
        else:
            with ipc.open_file(path) as file:
                _require(file.schema.names, [*names, *also], path)
                for i in range(file.num_record_batches):
                    yield pa.Table.from_batches([file.get_batch(i)]).select([*names, *also])


def column_names_of(path: Path) -> list[str]:
    """The names of a file's columns."""
    kind = kind_of(path)
    with _in_words(path, kind):
        if kind == "CSV":
            with pacsv.open_csv(path, convert_options=NULLS) as reader:
                return reader.schema.names
        if kind == "Parquet":
            return pq.read_schema(path).names
        with ipc.open_file(path) as file:
            return file.schema.names


@contextmanager
def writing_table(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that appends rows (a dictionary of columns) to the file `path`, which appears when all is written."""
    kind = kind_of(path)
    if kind == "Arrow" or path.name.endswith(".gz"):
        raise ValueError(f"{path} cannot be written: choose a name that ends in .parquet or .csv.")
    with writing(path) as part:
        writer: Any = None

        def write(columns: dict[str, Any]) -> None:
            nonlocal writer
            table = pa.table(columns)
            if writer is None:
                writer = (pacsv.CSVWriter if kind == "CSV" else pq.ParquetWriter)(part, table.schema)
            writer.write_table(table)

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise ValueError(f"There were no rows to write to {path}.")


def _batches(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_batch()
        except StopIteration:
            return


def _csv_type(column: Column, seen: pa.DataType) -> pa.DataType:
    """Text for categories; numbers as float64 but for true and false, which would not be read as such."""
    if column.kind == "categorical":
        return pa.string()
    return seen if pa.types.is_boolean(seen) else pa.float64()


def _require(found: Sequence[str], names: Sequence[str], path: Path) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing[:5]))}"
            f"{' and others' if len(missing) > 5 else ''}; it has {', '.join(map(repr, found[:8]))}"
            f"{' and others' if len(found) > 8 else ''}."
        )
    _distinct(found, path)


def _checked(table: pa.Table, path: Path) -> pa.Table:
    _distinct(table.column_names, path)
    if not table.num_rows or not table.num_columns:
        raise ValueError(
            f"{path} has {table.num_columns} columns and {table.num_rows} rows; at least one of each is needed."
        )
    return table


def _distinct(names: Sequence[str], path: Path) -> None:
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    if repeated:
        raise ValueError(f"{path} has the column {repeated[0]!r} more than once. Rename one of them.")


@contextmanager
def _in_words(path: Path, kind: str) -> Iterator[None]:
    """Arrow's exceptions as a ValueError of one sentence; those of the file system as they are."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, not a table.") from None
    except PermissionError:
        raise PermissionError(f"{path} may not be read.") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            raise OSError(f"{path} cannot be read: {_first_line(error)}") from error
        raise ValueError(f"{path} cannot be read as {kind}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown"])[0][:300].rstrip(".") + "."
