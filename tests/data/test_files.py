"""Tables in files: every format comes back the same, whole and in batches, and every bad file is named in one line."""

import gzip
import os
import re
import warnings
from contextlib import suppress

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paragp.data.files import column_names_of, read_batches, read_table, writing_table
from paragp.data.tables import Column

TABLE = pa.table({
    "number": [0.5, None, -1e300, 3.0],
    "whole": [1, 2, None, 4],
    "yes": [True, False, None, True],
    "town": ["Ulm", None, 'say "aye", or\nnay', "Żary"],
})  # fmt: skip
COLUMNS = [Column("town", "categorical"), *(Column(name, "numeric") for name in ("whole", "number", "yes"))]


def write_gzip(table, path):
    with gzip.open(path, "wb") as file:
        pacsv.write_csv(table, file)


def write_v1(table, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        feather.write_feather(table, path, version=1)


def write_stream(table, path):
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=50_000)


WRITERS = {
    "t.csv": pacsv.write_csv,
    "T.CSV": pacsv.write_csv,
    "t.csv.gz": write_gzip,
    "T.Csv.GZ": write_gzip,
    "t.parquet": pq.write_table,
    "t.pq": pq.write_table,
    "lz4.feather": feather.write_feather,
    "zstd.feather": lambda table, path: feather.write_feather(table, path, compression="zstd"),
    "plain.arrow": lambda table, path: feather.write_feather(table, path, compression="uncompressed"),
    "v1.feather": write_v1,
    "stream.arrow": write_stream,
    "stream.ipc": write_stream,
    "pandas.csv": lambda table, path: table.to_pandas().to_csv(path, index=False),
    "pandas.parquet": lambda table, path: table.to_pandas().to_parquet(path),
    "pandas.feather": lambda table, path: table.to_pandas().to_feather(path),
    "polars.csv": lambda table, path: pl.from_arrow(table).write_csv(path),
    "polars.parquet": lambda table, path: pl.from_arrow(table).write_parquet(path),
    "polars.arrow": lambda table, path: pl.from_arrow(table).write_ipc(path),
}


def together(path, columns, also=()):
    """All batches as one table of float64 and text."""
    batches = list(read_batches(path, columns, also))
    kinds = {column.name: pa.string() for column in columns if column.kind == "categorical"}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in batches[0].column_names])
    return pa.concat_tables([
        pa.table([as_numbers(batch[f.name]) if f.type == pa.float64() else batch[f.name].cast(f.type) for f in schema],
                 schema=schema)
        for batch in batches
    ])  # fmt: skip


def as_numbers(column):
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return pa.array(column.to_pandas().to_numpy(dtype=np.float64, na_value=np.nan), from_pandas=True)


# --- what comes back ---


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_comes_back_whole(name, tmp_path):
    WRITERS[name](TABLE, tmp_path / name)
    found = read_table(tmp_path / name)
    assert found.column_names == TABLE.column_names
    assert found["town"].to_pylist() == TABLE["town"].to_pylist()
    for column in ("number", "whole", "yes"):
        assert as_numbers(found[column]).to_pylist() == as_numbers(TABLE[column]).to_pylist()
    assert column_names_of(tmp_path / name) == TABLE.column_names


@pytest.mark.parametrize("name", WRITERS)
def test_batches_hold_the_columns_of_the_model_in_its_order(name, tmp_path):
    WRITERS[name](TABLE, tmp_path / name)
    found = together(tmp_path / name, COLUMNS)
    assert found.column_names == ["town", "whole", "number", "yes"]
    assert found["town"].to_pylist() == TABLE["town"].to_pylist()
    for column in ("number", "whole", "yes"):
        assert found[column].to_pylist() == as_numbers(TABLE[column]).to_pylist()


MANY = 150_000  # rows: several blocks of every format
LONG = pa.table({"row": np.arange(MANY), "noise": np.random.default_rng(0).normal(size=MANY)})


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "lz4.feather", "stream.arrow"])
def test_batches_keep_the_order_of_the_rows(name, tmp_path):
    WRITERS[name](LONG, tmp_path / name)
    batches = list(read_batches(tmp_path / name, [Column("noise", "numeric")], ["row"]))
    assert len(batches) > 1
    found = pa.concat_tables([batch.select(["noise", "row"]) for batch in batches])
    assert np.array_equal(found["row"].to_numpy(), np.arange(MANY))
    assert np.array_equal(found["noise"].to_numpy(), LONG["noise"].to_numpy())
    assert read_table(tmp_path / name)["noise"].equals(LONG["noise"])


FILL = "x" * 100  # so that some thousand rows are more than a block


def write_late(path, first, later):
    """A CSV whose first block of rows is all `first`, and whose last rows are `later`."""
    rows = [f"{first},{FILL}"] * 15_000 + [f"{value},{FILL}" for value in later]
    path.write_text("a,fill\n" + "\n".join(rows) + "\n")


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        ("1", ["0.5", "", "NA", "1e3", "nan"], [0.5, None, None, 1e3, None]),
        ("", ["3", "0.5"], [3.0, 0.5]),
        ("", ["true", "false", ""], [1.0, 0.0, None]),
        ("", ["3", "NA", "null", "N/A"], [3.0, None, None, None]),
        ("true", ["", "false", "True", "0", "1"], [None, 0.0, 1.0, 0.0, 1.0]),
        ("0.5", ["1", "-inf"], [1.0, -np.inf]),
    ],
)
def test_numbers_may_look_otherwise_after_the_first_block(first, later, expected, tmp_path):
    write_late(tmp_path / "t.csv", first, later)
    found = together(tmp_path / "t.csv", [Column("a", "numeric")])
    assert len(found) == 15_000 + len(later)
    assert found["a"].to_pylist()[-len(later) :] == expected


def test_a_whole_table_finds_types_over_all_blocks(tmp_path):
    write_late(tmp_path / "t.csv", "1", ["0.5", ""])
    found = read_table(tmp_path / "t.csv")["a"]
    assert found.type == pa.float64()
    assert found.to_pylist()[-3:] == [1.0, 0.5, None]


def test_codes_stay_text_where_the_model_has_text(tmp_path):
    (tmp_path / "t.csv").write_text("code,day\n007,2024-01-01\n1.50,2024-01-02\n")
    found = together(tmp_path / "t.csv", [Column("code", "categorical"), Column("day", "categorical")])
    assert found.to_pydict() == {"code": ["007", "1.50"], "day": ["2024-01-01", "2024-01-02"]}
    assert read_table(tmp_path / "t.csv", ["code"])["code"].to_pylist() == ["007", "1.50"]


def test_missing_text_and_quoted_text(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n1,"x, ""y""\nz"\n2,NA\n3,\n4,""\n5, x \n')
    expected = ['x, "y"\nz', "NA", None, None, " x "]
    assert read_table(tmp_path / "t.csv")["b"].to_pylist() == expected
    assert together(tmp_path / "t.csv", [Column("b", "categorical")])["b"].to_pylist() == expected


def test_words_for_a_missing_number_are_words_in_text(tmp_path):
    words = ["NA", "null", "nan", "N/A", "NULL"]
    (tmp_path / "t.csv").write_text("a,b\n1,u\n" + "".join(f"{word},{word}\n" for word in words))
    for found in (
        read_table(tmp_path / "t.csv"),
        together(tmp_path / "t.csv", [Column("a", "numeric"), Column("b", "categorical")]),
    ):
        assert found["a"].to_pylist() == [1] + [None] * 5
        assert found["b"].to_pylist() == ["u", *words]


def test_line_breaks_in_quoted_text_may_fall_on_the_edge_of_a_block(tmp_path):
    frame = pd.DataFrame({"a": np.arange(3000), "b": ["line\n" * 200] * 3000})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = together(tmp_path / "t.csv", [Column("a", "numeric"), Column("b", "categorical")])
    assert found["a"].to_pylist() == frame["a"].tolist()
    assert set(found["b"].to_pylist()) == {"line\n" * 200}


def test_a_byte_order_mark_and_windows_line_ends_are_no_data(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfa,b\r\n1,2\r\n")
    assert read_table(tmp_path / "t.csv").to_pydict() == {"a": [1], "b": [2]}
    assert column_names_of(tmp_path / "t.csv") == ["a", "b"]


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_row_numbers_that_pandas_stores_are_not_a_column(ending, tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=[4, 2, 9])
    table = pa.Table.from_pandas(frame)
    assert "__index_level_0__" in table.column_names
    WRITERS["t.parquet" if ending == "parquet" else "lz4.feather"](table, tmp_path / f"t.{ending}")
    assert read_table(tmp_path / f"t.{ending}").column_names == ["a"]
    assert column_names_of(tmp_path / f"t.{ending}") == ["a"]


def test_one_column_is_a_table(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    assert read_table(tmp_path / "t.csv").to_pydict() == {"a": [1, 2]}


def test_columns_named_as_paths_into_others_are_columns(tmp_path):
    table = pa.table({"a": [1.0], "a.b": [2.0], "a.b.c": [3.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert together(tmp_path / "t.parquet", [Column("a.b", "numeric")]).to_pydict() == {"a.b": [2.0]}


def test_a_column_may_be_input_and_target_at_once(tmp_path):
    for name in ("t.csv", "t.parquet", "lz4.feather"):
        WRITERS[name](TABLE, tmp_path / name)
        found = together(tmp_path / name, [Column("number", "numeric")], ["number", "number"])
        assert found.to_pydict() == {"number": TABLE["number"].to_pylist()}


# --- what is refused ---


def every_way(path):
    """All that reads a file, each with the columns a and b."""
    yield lambda: read_table(path)
    yield lambda: list(read_batches(path, [Column("a", "numeric"), Column("b", "categorical")]))


def refusals(path, kind=(ValueError, OSError)):
    """The messages of all ways to read a file."""
    for read in every_way(path):
        with pytest.raises(kind) as caught:
            read()
        message = str(caught.value)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 600
        yield message


ENDINGS = ["csv", "csv.gz", "parquet", "pq", "arrow", "feather", "ipc"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_file_and_a_folder(ending, tmp_path):
    path = tmp_path / f"t.{ending}"
    assert list(refusals(path, FileNotFoundError)) == [f"There is no file {path}."] * 2
    path.mkdir()
    assert list(refusals(path, IsADirectoryError)) == [f"{path} is a folder, not a table."] * 2
    path.rmdir()
    path.symlink_to(os.devnull)
    assert list(refusals(path, OSError)) == [f"{path} is not a file on a disk, so it cannot be read as a table."] * 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "t.csv").touch(mode=0)
    assert list(refusals(tmp_path / "t.csv", PermissionError)) == [f"{tmp_path / 't.csv'} may not be read."] * 2


def test_a_file_that_may_not_be_read_even_by_root(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert list(refusals(tmp_path / "t.csv", PermissionError)) == [f"{tmp_path / 't.csv'} may not be read."] * 2


@pytest.mark.parametrize("name", ["t.txt", "t.xlsx", "csv", "t.gz", "t.csv.zip", "t"])
def test_an_unknown_ending_is_refused_with_those_that_are_known(name, tmp_path):
    (tmp_path / name).write_text("a,b\n1,2\n")
    for message in refusals(tmp_path / name, ValueError):
        assert "ends in none of .csv, .csv.gz, .parquet, .pq, .arrow, .feather, .ipc" in message


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe\x80" * 500, b"ARROW1\x00\x00" + b"?" * 99, b"PAR1" * 9])
def test_junk_is_refused(ending, content, tmp_path):
    (tmp_path / f"t.{ending}").write_bytes(content)
    for message in refusals(tmp_path / f"t.{ending}"):
        assert "cannot be read as" in message or "lacks the column" in message


@pytest.mark.parametrize("name", ["t.csv.gz", "t.parquet", "lz4.feather", "stream.arrow", "v1.feather"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.97])
def test_truncated_files_are_refused(name, share, tmp_path):
    path = tmp_path / name
    WRITERS[name](LONG.slice(0, 60_000).rename_columns(["a", "b"]), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    for message in refusals(path):
        assert "cannot be read as" in message


@pytest.mark.parametrize("name", ["plain.arrow", "stream.arrow"])
def test_text_that_points_outside_the_file_is_refused(name, tmp_path):
    path = tmp_path / name
    WRITERS[name](pa.table({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "zz"]}), path)
    ends, damaged = (np.array([0, 1, 2, last], dtype=np.int32).tobytes() for last in (4, 4_000_000))
    assert ends in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(ends, damaged))
    for message in refusals(path, ValueError):
        assert "cannot be read as Arrow" in message


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "lz4.feather", "stream.arrow"])
def test_a_table_without_rows_is_refused(name, tmp_path):
    WRITERS[name](pa.table({"a": pa.array([], pa.float64()), "b": pa.array([], pa.string())}), tmp_path / name)
    whole, batches = refusals(tmp_path / name, ValueError)
    assert "has 2 columns and 0 rows; at least one of each is needed" in whole
    assert "has no rows" in batches


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "lz4.feather"])
def test_a_repeated_column_is_named(name, tmp_path):
    WRITERS[name](pa.table([[1.0], ["x"], [2.0]], names=["a", "b", "a"]), tmp_path / name)
    for message in refusals(tmp_path / name, ValueError):
        assert "has the column 'a' more than once" in message


@pytest.mark.parametrize("row", ["1", "1,x,3", "1,x\n2"])
def test_ragged_rows_are_refused(row, tmp_path):
    (tmp_path / "t.csv").write_text(f"a,b\n1,x\n{row}\n")
    for message in refusals(tmp_path / "t.csv", ValueError):
        assert re.search(r"cannot be read as CSV: CSV parse error: (Row #\d: )?Expected 2 columns, got \d", message)


@pytest.mark.parametrize("text", ["a,b\n1,Zürich\n", "a,b,größe\n1,x,2\n"])
def test_text_that_is_not_utf_8_is_refused(text, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    for message in refusals(tmp_path / "t.csv", ValueError):
        assert "cannot be read as CSV: " in message
        assert "UTF-8" in message.upper()


def test_text_that_is_not_utf_8_after_the_first_block_is_refused(tmp_path):
    rows = b"1,x\n" * 400_000
    (tmp_path / "t.csv").write_bytes(b"a,b\n" + rows + "2,ü\n".encode("latin-1"))
    for message in refusals(tmp_path / "t.csv", ValueError):
        assert "utf" in message.lower()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "lz4.feather"])
def test_missing_columns_are_named_beside_those_that_are_there(name, tmp_path):
    WRITERS[name](TABLE, tmp_path / name)
    columns = [Column(f"x{i}", "numeric") for i in range(7)]
    with pytest.raises(ValueError, match=r"lacks the columns 'x0', .*'x4' and 2 more; it has 'number', 'whole', 'yes'"):
        list(read_batches(tmp_path / name, columns))
    with pytest.raises(ValueError, match=r"lacks the column 'y'; it has"):
        list(read_batches(tmp_path / name, [Column("yes", "numeric")], ["y"]))


@pytest.mark.parametrize("first", ["1", "0.5", "true"])
def test_text_where_the_model_has_numbers_is_named(first, tmp_path):
    write_late(tmp_path / "t.csv", first, ["forty"])
    with pytest.raises(ValueError, match=r"t.csv holds 'forty' in the column 'a', where a number is expected"):
        list(read_batches(tmp_path / "t.csv", [Column("fill", "categorical"), Column("a", "numeric")]))


# --- whatever comes ---


def table_or_refusal(path):
    columns = [Column("a", "numeric"), Column("b", "categorical")]
    for read in (lambda: read_table(path), lambda: list(read_batches(path, columns)), lambda: column_names_of(path)):
        with suppress(ValueError, OSError):
            read()


HURRIED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(content=st.binary(max_size=300), ending=st.sampled_from(ENDINGS))
@HURRIED
def test_random_bytes_are_a_table_or_refused(content, ending, tmp_path):
    (tmp_path / f"t.{ending}").write_bytes(content)
    table_or_refusal(tmp_path / f"t.{ending}")


CELLS = st.sampled_from(
    ["", "1", "-0.5", "1e400", "true", "NA", "x", '"', '""', "\r", "é", "2024-01-01", "\x00", "10:30"]
)


@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=5), header=st.sampled_from(["a,b", "a", '"a""",b'])
)
@HURRIED
def test_random_rows_are_a_table_or_refused(rows, header, tmp_path):
    (tmp_path / "t.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]), encoding="utf-8")
    table_or_refusal(tmp_path / "t.csv")


@given(
    name=st.sampled_from(["t.parquet", "lz4.feather", "plain.arrow", "stream.arrow"]),
    place=st.floats(0, 1),
    content=st.binary(min_size=1, max_size=8),
)
@HURRIED
def test_damaged_files_are_a_table_or_refused(name, place, content, tmp_path):
    WRITERS[name](pa.table({"a": [1.0, 2.0, None], "b": ["x", "y", "zz"]}), tmp_path / name)
    data = bytearray((tmp_path / name).read_bytes())
    start = int(place * (len(data) - 1))
    data[start : start + len(content)] = content
    (tmp_path / name).write_bytes(data)
    table_or_refusal(tmp_path / name)


# --- writing ---


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "OUT.PQ"])
def test_rows_that_are_appended_come_back_to_the_bit(name, tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 50))
    with writing_table(tmp_path / name) as write:
        for row in values:
            write({"y_mean": row, "y_std": row**2})
        assert not (tmp_path / name).exists()
    found = read_table(tmp_path / name)
    assert np.array_equal(found["y_mean"].to_numpy(), values.ravel())
    assert np.array_equal(found["y_std"].to_numpy(), values.ravel() ** 2)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad row")])
def test_a_failure_between_rows_leaves_nothing(name, error, tmp_path):
    def fail():
        with writing_table(tmp_path / name) as write:
            write({"y": np.zeros(10)})
            raise error

    with pytest.raises(type(error)):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["out.arrow", "out.feather", "out.csv.gz", "out.CSV.GZ", "out.txt", "out"])
def test_formats_that_are_not_written_are_refused(name, tmp_path):
    with (
        pytest.raises(ValueError, match=r"choose a name that ends in .parquet or .csv"),
        writing_table(tmp_path / name),
    ):
        pass


def test_no_rows_are_no_file(tmp_path):
    with pytest.raises(ValueError, match="There were no rows to write"), writing_table(tmp_path / "out.csv"):
        pass
    assert not list(tmp_path.iterdir())
