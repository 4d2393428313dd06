"""Tables larger than memory: what files say, one pass over them, and batches from a bounded buffer."""

import os
import threading

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from paragp import ParametricGPRegressor
from paragp.cli import app
from paragp.data import stream, tables
from paragp.data.parquet import Source, read_ahead
from paragp.data.rows import bounds
from paragp.data.stream import Stream, _sorted_sample, plan, spread_order, survey
from paragp.data.tables import fit_columns, fit_target
from paragp.metrics import nll

from cases import generator

N = 5000


def frame(n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, n)
    return pd.DataFrame({
        "x": x, "size": np.where(rng.random(n) < 0.1, np.nan, 1e6 + rng.standard_normal(n)),
        "colour": rng.choice(["red", "green", "blue"], n), "flag": rng.random(n) < 0.5, "w": rng.integers(1, 3, n),
        "y": np.sin(2 * x) + 0.1 * (1 + (x > 0)) * rng.standard_normal(n) + 7.0, "row": np.arange(n),
    })  # fmt: skip


def write(folder, rows, files=3, groups=700):
    folder.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        table = pa.Table.from_pandas(rows.iloc[part], preserve_index=False)
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=groups)
    return folder


def opened(folder, *, buffer=stream.BUFFER, rank=0, count=1):
    source = Source(folder)
    wanted = plan(source, "y", "w", (), "from_dtype")
    found = survey(source, wanted, start_rows=300, validation_rows=200, generator=generator())
    return Stream(source, wanted, found, torch.float64, torch.device("cpu"), buffer, rank, count)


def numbers_of(rows, data):
    """Which rows of the frame these are, by the column `row`, standardised last among the inputs."""
    column = next(c for c in data.found.columns if c.name == "row")
    place = [name for c in data.found.columns for name in c.outputs].index("row")
    return np.rint(rows.x[:, place].numpy() * column.deviation + column.mean).astype(int)


# --- files ---
def test_files_are_one_table_in_the_order_of_their_names(tmp_path):
    source = Source(write(tmp_path / "rows", frame()))
    assert source.rows == N
    blocks = list(source.read(["row"]))
    np.testing.assert_array_equal(np.concatenate([block.table["row"].to_numpy() for block in blocks]), np.arange(N))
    assert [block.start for block in blocks] == np.cumsum([0, *(len(block.table) for block in blocks)]).tolist()[:-1]
    assert Source(tmp_path / "rows" / "*-1.parquet").rows < N
    assert Source(tmp_path / "rows" / "part-0.parquet").rows < N


def test_partitions_are_columns(tmp_path):
    for year in (2020, 2021):
        write(tmp_path / f"year={year}", frame(100, seed=year), files=1)
    (tmp_path / "_SUCCESS").touch()
    source = Source(tmp_path)
    years = np.concatenate([block.table["year"].to_numpy() for block in source.read(["x", "year"])])
    np.testing.assert_array_equal(years, [2020] * 100 + [2021] * 100)


def test_partitions_of_a_glob_with_gaps_and_of_columns_that_are_there(tmp_path):
    for year in ("2020", "__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / "run=5" / f"year={year}", frame(10).assign(colour="red"), files=1)
    source = Source(tmp_path / "run=5" / "*" / "*.parquet")
    assert "run" not in source.schema.names  # above the place
    years = [value for block in source.read(["year"]) for value in block.table["year"].to_pylist()]
    assert years == [2020] * 10 + [None] * 10
    write(tmp_path / "x=other", frame(10), files=1)
    assert Source(tmp_path / "x=other").schema.field("x").type == pa.float64()  # the file's own
    write(tmp_path / "kind=a b", frame(10), files=1)
    assert "kind" in Source(tmp_path / "k*" / "*.parquet").schema.names


def test_the_index_of_a_data_frame_is_no_input(tmp_path):
    rows = frame(200)
    rows[rows["x"] > 0].to_parquet(tmp_path / "rows.parquet")
    assert Source(tmp_path / "rows.parquet").schema.names == list(rows)


def test_views_of_text_are_text(tmp_path):
    table = pa.table({"kind": pa.array(["a", "b"] * 10, pa.string_view()), "y": np.arange(20.0)})
    pq.write_table(table, tmp_path / "rows.parquet", store_schema=True)
    source = Source(tmp_path / "rows.parquet")
    wanted = plan(source, "y", None, (), "from_dtype")
    found = survey(source, wanted, start_rows=5, validation_rows=5, generator=generator())
    assert found.columns[0].categories == ("a", "b")


def changed(folder, change):
    file = sorted(folder.glob("*.parquet"))[1]
    pq.write_table(change(pq.read_table(file)), file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["x"]), r"part-1.parquet lacks the column 'x' beside .*part-0.parquet"),
        (lambda t: t.append_column("z", t["x"]), "part-1.parquet has besides the column 'z'"),
        (lambda t: t.set_column(0, "x", t["x"].cast(pa.string())), "The column 'x' is string in .* and double in"),
    ],
)
def test_files_that_differ_are_named(change, said, tmp_path):
    changed(write(tmp_path / "rows", frame()), change)
    with pytest.raises(ValueError, match=said):
        Source(tmp_path / "rows")


def test_a_truncated_file_is_named_before_anything_is_trained(tmp_path):
    folder = write(tmp_path / "rows", frame())
    file = folder / "part-1.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"part-1.parquet cannot be read as Parquet"):
        Source(folder)


def test_a_damaged_row_group_is_named(tmp_path):
    folder = write(tmp_path / "rows", frame())
    file = folder / "part-1.parquet"
    content = bytearray(file.read_bytes())
    content[4:4000] = os.urandom(3996)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"part-1.parquet cannot be read as Parquet"):
        list(Source(folder).read(["x", "y"]))


def test_a_file_that_disappears_or_changes_is_named(tmp_path):
    data = opened(write(tmp_path / "rows", frame()))
    (tmp_path / "rows" / "part-2.parquet").unlink()
    with pytest.raises(OSError, match=r"part-2.parquet is gone, or was changed"):
        list(data.chunks(1000))


def test_places_without_rows_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file at"):
        Source(tmp_path / "nothing")
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="has no rows"):
        Source(tmp_path / "empty.parquet")
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"rows\.csv is no Parquet file"):
        Source(tmp_path / "rows.csv")


def test_an_empty_row_group_is_passed_over(tmp_path):
    schema = pa.schema([("x", pa.float64()), ("y", pa.float64())])
    with pq.ParquetWriter(tmp_path / "rows.parquet", schema) as writer:
        for n in (3, 0, 2):
            writer.write_table(pa.table({"x": np.ones(n), "y": np.ones(n)}, schema=schema), row_group_size=10)
    assert [len(block.table) for block in Source(tmp_path / "rows.parquet").read(["x", "y"])] == [3, 2]


# --- one pass ---
def test_statistics_are_those_of_all_rows_that_are_not_held_out(tmp_path):
    rows = frame()
    data = opened(write(tmp_path / "rows", rows))
    kept = rows.drop(index=data.found.held_out)
    weights = kept["w"].to_numpy(np.float64)
    expected = fit_columns(kept.drop(columns=["y", "w"]), weights=weights)
    target = fit_target(kept["y"].to_numpy(), "y", weights)
    for one, other in zip((*data.found.columns, data.found.target), (*expected, target), strict=True):
        assert one.name == other.name
        assert one.mean == pytest.approx(other.mean, rel=1e-12)
        assert one.deviation == pytest.approx(other.deviation, rel=1e-9)
    assert [(c.kind, c.missing, c.categories) for c in data.found.columns] == [
        (c.kind, c.missing, c.categories) for c in expected
    ]
    assert data.total == weights.sum()
    assert len(data.validation.y) == 200
    assert data.size == N - 200
    np.testing.assert_array_equal(np.sort(numbers_of(data.validation, data)), data.found.held_out)
    assert not set(numbers_of(data.sample, data)) & set(data.found.held_out)
    assert len(data.sample.y) == 300


def test_samples_are_uniform_and_small():
    counts = np.zeros(50)
    for seed in range(2000):
        found = _sorted_sample(50, 5, generator(seed))
        assert len(set(found)) == 5
        counts[found] += 1
    assert np.abs(counts / 2000 - 0.1).max() < 0.03
    assert len(_sorted_sample(10**12, 1000, generator())) == 1000


def test_samples_from_many_blocks_become_few_tables_of_the_same_rows(tmp_path, monkeypatch):
    rows = frame().astype({"colour": "category"})
    for i, part in enumerate(np.array_split(np.arange(N), 3)):  # each file with categories of its own
        colours = (rows.colour.iloc[part].astype(str) + f"-{i}-" + (part % 30).astype(str)).astype("category")
        table = pa.Table.from_pandas(rows.iloc[part].assign(colour=colours), preserve_index=False)
        assert table.schema.field("colour").type.index_type == pa.int8()  # which cannot count those of all files
        pq.write_table(table, tmp_path / f"part-{i}.parquet", row_group_size=100)
    expected = opened(tmp_path).found
    monkeypatch.setattr(stream, "MOST_PARTS", 2)
    joined, tables_joined = [], stream._one_table
    monkeypatch.setattr(stream, "_one_table", lambda parts: joined.append(len(parts)) or tables_joined(parts))
    found = opened(tmp_path).found
    assert max(joined) == 3
    for one, other in ((found.start, expected.start), (found.validation, expected.validation)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("y", np.nan, r"The target 'y' is nan in row 4321"),
        ("y", np.inf, r"The target 'y' is inf in row 4321"),
        ("w", -1.0, r"The weight 'w' is -1.0 in row 4321"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_number(column, value, said, tmp_path):
    rows = frame().astype({"w": float})
    rows.loc[4321, column] = value
    with pytest.raises(ValueError, match=said):
        opened(write(tmp_path / "rows", rows))


def test_roles_and_kinds_of_columns_are_checked(tmp_path):
    rows = frame().assign(day=pd.Timestamp("2020-01-01"))
    source = Source(write(tmp_path / "rows", rows))
    for arguments, said in (
        (("nothing", None, ()), "lacks the column 'nothing'"),
        (("y", "y", ()), "two roles"),
        (("y", None, ()), "Column 'day' is of type timestamp"),
        (("y", None, [name for name in rows if name != "y"]), "has no column left"),
    ):
        with pytest.raises(ValueError, match=said):
            plan(source, *arguments, "from_dtype")
    assert plan(source, "y", None, ["day"], ["flag"]).categorical == [False, False, False, True, False, False]
    with pytest.raises(ValueError, match="names of columns"):
        plan(source, "y", None, ["day"], [1])


# --- batches ---
@pytest.mark.parametrize("buffer", [1, 200_000, stream.BUFFER])
def test_an_epoch_holds_every_row_once_in_near_equal_batches(buffer, tmp_path):
    data = opened(write(tmp_path / "rows", frame()), buffer=buffer)
    epoch = list(data.batches(256, generator(1)))
    assert [len(batch.y) for batch in epoch] == np.diff(bounds(data.size, 256)).tolist()
    order = np.concatenate([numbers_of(batch, data) for batch in epoch])
    np.testing.assert_array_equal(np.sort(order), np.setdiff1d(np.arange(N), data.found.held_out))
    again = np.concatenate([numbers_of(batch, data) for batch in data.batches(256, generator(1))])
    np.testing.assert_array_equal(again, order)
    other = np.concatenate([numbers_of(batch, data) for batch in data.batches(256, generator(2))])
    assert (other != order).mean() > 0.9
    assert np.abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < (0.1 if buffer == stream.BUFFER else 0.9)


@pytest.mark.parametrize("groups", [700, 20])  # few row groups, which all read, and many, of which each has its own
@pytest.mark.parametrize("buffer", [1, 200_000, stream.BUFFER])
def test_processes_share_every_batch(buffer, groups, tmp_path):
    folder = write(tmp_path / "rows", frame(), groups=groups)
    whole = opened(folder, buffer=buffer)
    parts = [opened(folder, buffer=buffer, rank=rank, count=3) for rank in range(3)]
    epochs = [list(data.batches(256, generator(1))) for data in (whole, *parts)]
    for batch, *shares in zip(*epochs, strict=True):
        rows = np.concatenate([numbers_of(share, whole) for share in shares])
        np.testing.assert_array_equal(np.sort(rows), np.sort(numbers_of(batch, whole)))
    rows = np.concatenate([numbers_of(chunk, whole) for data in parts for chunk in data.chunks(100)])
    np.testing.assert_array_equal(np.sort(rows), np.setdiff1d(np.arange(N), whole.found.held_out))


def test_each_process_reads_its_own_row_groups_where_there_are_many(tmp_path, monkeypatch):
    folder = write(tmp_path / "rows", frame(), groups=20)
    shares, opened_groups = [], []
    for rank in range(2):
        data = opened(folder, rank=rank, count=2)
        read, decoded = data.source.read, set()

        def recorded(names, pieces, read=read, decoded=decoded):
            decoded.update(pieces)
            return read(names, pieces)

        monkeypatch.setattr(data.source, "read", recorded)
        shares.append([len(batch.y) for batch in data.batches(500, generator(1))])
        opened_groups.append(decoded)
    assert len(opened_groups[0] & opened_groups[1]) <= 1  # the one in the middle
    assert sum(map(len, opened_groups)) <= len(data.source.pieces) + 1
    assert max(max(share) for share in shares) < 1.2 * 500 / 2


def test_shares_stay_even_where_one_row_group_is_far_larger_than_the_others(tmp_path):
    folder = write(tmp_path / "rows", frame().iloc[:4000], files=1, groups=4000)
    write(tmp_path / "small", frame().iloc[4000:], files=1, groups=5)
    (tmp_path / "small" / "part-0.parquet").rename(folder / "part-1.parquet")
    data = opened(folder, buffer=1, rank=1, count=2)
    shares = [len(batch.y) / 100 for batch in data.batches(100, generator(1))]
    assert 0.25 < min(shares) <= max(shares) < 0.75


def test_a_bad_row_is_said_by_all_processes(tmp_path):
    rows = frame()
    rows.loc[N - 10, "y"] = np.nan
    source = Source(write(tmp_path / "rows", rows))
    wanted = plan(source, "y", "w", (), "from_dtype")
    options, found = {"start_rows": 300, "validation_rows": 0}, []
    for rank in range(2):
        with pytest.raises(StopIteration):
            survey(source, wanted, generator=generator(), rank=rank, count=2, gather=_stop_with(found), **options)
    for rank in range(2):
        with pytest.raises(ValueError, match=f"nan in row {N - 10} of"):
            survey(source, wanted, generator=generator(), rank=rank, count=2, gather=lambda _: found, **options)


def test_too_many_categories_are_found_over_all_processes(monkeypatch):
    monkeypatch.setattr(tables, "MOST_DISTINCT", 100)
    one, other = tables.ColumnSurvey("id", True), tables.ColumnSurvey("id", True)
    for survey_of, start in ((one, 0), (other, 75)):
        values = pa.chunked_array([[f"{i:03}" for i in range(start, start + 75)]])
        survey_of.add(nw.from_native(values, series_only=True), np.ones(75))
    with pytest.raises(ValueError, match="more than 100 different values"):
        one.merge(other)


def test_a_range_of_rows_is_read_without_the_rest(tmp_path):
    source = Source(write(tmp_path / "rows", frame()))
    blocks = list(source.read(["row"], within=range(690, 2345)))
    assert np.concatenate([block.table["row"].to_numpy() for block in blocks]).tolist() == list(range(690, 2345))
    assert [block.start for block in blocks] == [block.table["row"][0].as_py() for block in blocks]
    assert [len(source.share(rank, 3)) for rank in range(3)] == [1666, 1667, 1667]


def test_row_groups_are_taken_in_an_order_that_is_spread_over_the_table():
    for n in (0, 1, 7, 64, 100):
        order = spread_order(n, generator(n))
        assert sorted(order) == list(range(n))
    assert spread_order(64, generator(1)) != spread_order(64, generator(2))
    order = np.array(spread_order(96, generator(3)))
    for start in range(0, 96 - 24):  # each third has its share of any stretch, within a few
        assert np.ptp(np.bincount(order[start : start + 24] // 32, minlength=3)) <= 4


def test_processes_find_the_same_statistics_together(tmp_path):
    source = Source(write(tmp_path / "rows", frame()))
    wanted = plan(source, "y", "w", (), "from_dtype")
    options = {"start_rows": 300, "validation_rows": 200}
    whole = survey(source, wanted, generator=generator(), **options)
    found = []
    for rank in range(2):  # each one's own findings, then what the first makes of both
        with pytest.raises(StopIteration):
            survey(source, wanted, generator=generator(), rank=rank, count=2, gather=_stop_with(found), **options)
    merged = survey(source, wanted, generator=generator(), rank=0, count=2, gather=lambda _: found, **options)
    assert [c.name for c in merged.columns] == [c.name for c in whole.columns]
    for one, other in zip(merged.columns, whole.columns, strict=True):
        assert (one.categories, one.missing) == (other.categories, other.missing)
        assert (one.mean, one.deviation) == pytest.approx((other.mean, other.deviation), rel=1e-9)
    torch.testing.assert_close(merged.validation.x, whole.validation.x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(merged.start.y, whole.start.y, rtol=1e-9, atol=1e-9)
    assert merged.total == whole.total


def test_a_target_that_is_constant_in_one_share_has_the_spread_of_all(tmp_path):
    rows = frame()
    rows.loc[: N // 2, "y"] = 7.0
    source = Source(write(tmp_path / "rows", rows))
    wanted = plan(source, "y", "w", (), "from_dtype")
    options = {"start_rows": 300, "validation_rows": 0}
    whole, found = survey(source, wanted, generator=generator(), **options), []
    for rank in range(3):
        with pytest.raises(StopIteration):
            survey(source, wanted, generator=generator(), rank=rank, count=3, gather=_stop_with(found), **options)
    merged = survey(source, wanted, generator=generator(), rank=1, count=3, gather=lambda _: found, **options)
    assert (merged.low, merged.high) == (whole.low, whole.high)
    assert merged.target.deviation == pytest.approx(whole.target.deviation, rel=1e-9)
    assert merged.target.deviation > 0.1


def _stop_with(found):
    def gather(item):
        found.append(item)
        raise StopIteration

    return gather


def test_one_number_is_drawn_for_an_epoch(tmp_path):
    data = opened(write(tmp_path / "rows", frame()))
    one, other = generator(1), generator(1)
    list(data.batches(256, one))
    torch.randint(2**63 - 1, (), generator=other)
    assert torch.equal(one.get_state(), other.get_state())


def test_chunks_are_all_rows_in_order(tmp_path):
    data = opened(write(tmp_path / "rows", frame()))
    chunks = list(data.chunks(999))
    assert [len(chunk.y) for chunk in chunks] == [999, 999, 999, 999, 804]
    order = np.concatenate([numbers_of(chunk, data) for chunk in chunks])
    np.testing.assert_array_equal(order, np.setdiff1d(np.arange(N), data.found.held_out))
    weights = np.concatenate([chunk.weights.numpy() for chunk in chunks])
    np.testing.assert_array_equal(weights, frame()["w"].to_numpy()[order])


def test_reading_ahead_raises_here_and_ends_with_its_reader():
    def failing():
        yield 1
        raise OSError("gone")

    items = read_ahead(failing())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)
    before = threading.active_count()
    endless = read_ahead(iter(range(10**9)))
    assert next(endless) == 0
    endless.close()
    assert threading.active_count() == before


# --- models ---
def regressor(**options):
    return ParametricGPRegressor(**({"n_inducing": 30, "max_epochs": 15, "random_state": 0} | options))


def test_a_stream_gives_a_model_as_good_as_the_table_in_memory(tmp_path):
    rows, new = frame(700), frame(1000, seed=9)
    inputs = ["x", "size", "colour", "flag"]
    folder = write(tmp_path / "rows", rows, groups=100)
    streamed = regressor().fit_stream(folder, "y", drop=["w", "row"])
    whole = regressor().fit(rows[inputs], rows["y"])
    scores = [nll(model.predict_dist(new[inputs]), new["y"]) for model in (streamed, whole)]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)
    assert streamed.feature_names_in_.tolist() == inputs
    assert streamed.fitted_.target.name == "y"
    assert streamed.validation_scores_["nll"] < 0.5  # a constant normal: 1.1
    np.testing.assert_array_equal(
        regressor().fit_stream(folder, "y", drop=["w", "row"]).predict(new[inputs]), streamed.predict(new[inputs])
    )
    streamed.save(tmp_path / "model")
    again = ParametricGPRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(new[inputs]), streamed.predict(new[inputs]))


def test_the_default_streams_to_a_model_as_good_as_of_the_table(tmp_path):
    rows, new = frame(700), frame(1000, seed=9)
    inputs = ["x", "size", "colour", "flag"]
    folder = write(tmp_path / "rows", rows, groups=100)
    streamed = regressor(max_epochs="auto").fit_stream(folder, "y", drop=["w", "row"])
    whole = regressor(max_epochs="auto").fit(rows[inputs], rows["y"])
    assert streamed.fitted_.method == whole.fitted_.method == "two-stage"
    scores = [nll(model.predict_dist(new[inputs]), new["y"]) for model in (streamed, whole)]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)
    streamed.save(tmp_path / "model")
    again = ParametricGPRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_interval(new[inputs]), streamed.predict_interval(new[inputs]))


def test_a_stream_is_checked_as_a_table_is(tmp_path):
    rows = frame(100)[["x", "y", "w"]].astype(float)
    for name, change, said in (
        ("zero", {"w": 0.0}, "All weights 'w' of .* are zero"),
        ("heavy", {"w": 1e30}, "largest sample weight"),
        ("far", {"x": np.where(rows["x"] > 0, 1.7e308, -1.7e308)}, "Column 'x' spreads too far"),
        ("narrow", {"y": np.arange(100) * 1e-160}, "spreads over"),
    ):
        folder = write(tmp_path / name, rows.assign(**change), files=1)
        with pytest.raises(ValueError, match=said):
            regressor(max_epochs=1).fit_stream(folder, "y", sample_weight="w")
    with pytest.raises(ValueError, match="at least 2 rows"):
        regressor().fit_stream(write(tmp_path / "one", rows.head(1), files=1), "y")
    with pytest.warns(UserWarning, match=r"The target is constant \(7\)"):
        regressor(max_epochs=1).fit_stream(write(tmp_path / "same", rows.assign(y=7.0), files=1), "y", drop=["w"])


def test_rows_of_no_weight_neither_start_nor_validate(tmp_path):
    rows = frame()
    folder = write(tmp_path / "rows", rows.assign(w=(rows["row"] == 17).astype(float)))
    with pytest.raises(ValueError, match=r"None of 300 rows .*, drawn at random, has a weight 'w' above zero"):
        opened(folder)
    first = opened(write(tmp_path / "all", rows))
    held_out = np.isin(np.arange(N), first.found.held_out)
    assert opened(write(tmp_path / "some", rows.assign(w=1.0 * ~held_out))).found.validation is None


def test_what_a_stream_cannot_do_is_said(tmp_path):
    folder = write(tmp_path / "rows", frame())
    with pytest.raises(ValueError, match="method='exact' needs all rows at once"):
        regressor(method="exact").fit_stream(folder, "y")
    with pytest.raises(ValueError, match="A stream always starts anew"):
        regressor(warm_start=True).fit_stream(folder, "y")


def test_a_folder_on_the_command_line(tmp_path):
    folder = write(tmp_path / "rows", frame(600))
    words = ["--target", "y", "--drop", "row", "--weights", "w", "--inducing", "20", "--epochs", "3"]
    done = CliRunner().invoke(app, ["fit", str(folder), *words, "--out", str(tmp_path / "model")])
    assert done.exit_code == 0, done.output
    assert "Fitted ppgpr-mfd to 540 rows" in done.output
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "model"), str(folder / "*.parquet")])
    assert done.exit_code == 0, done.output
    assert "600 rows, y in its own units" in done.output
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "model"), str(folder), "--out", str(tmp_path / "p.csv")])
    assert "Wrote 600 predictions" in done.output
    one = CliRunner().invoke(
        app, ["fit", str(folder / "part-0.parquet"), *words, "--stream", "--out", str(tmp_path / "one")]
    )
    assert "Fitted ppgpr-mfd to 180 rows" in one.output
    done = CliRunner().invoke(app, ["fit", str(folder), *words, "--valid", "v.csv", "--out", str(tmp_path / "other")])
    assert done.exit_code == 2
    assert "leave out --valid" in done.stderr
