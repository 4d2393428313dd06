"""Tables from PARAGP_DATA and their splits, on a folder the test makes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paragp.data.datasets import Table, load, split


@pytest.fixture
def table(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    columns = {"x0": rng.normal(5, 2, 103), "y": rng.normal(-1, 3, 103), "x1": np.full(103, 7.0)}
    (tmp_path / "uci").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "uci" / "small.parquet")
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    return columns


def test_the_target_is_y_wherever_it_stands(table):
    found = load("small")
    np.testing.assert_array_equal(found.x, np.column_stack([table["x0"], table["x1"]]))
    np.testing.assert_array_equal(found.y, table["y"])


def test_a_split_is_the_protocols(table):
    parts = split(load("small"), 2)
    order = np.random.default_rng(2).permutation(103)
    y = table["y"]
    mean, deviation = y[order[:77]].mean(), y[order[:77]].std()
    for part, rows in zip(parts, (order[:77], order[77:92], order[92:]), strict=True):
        np.testing.assert_allclose(part.y, (y[rows] - mean) / deviation)
    assert not np.concatenate([part.x[:, 1] for part in parts]).any()  # the constant column


def test_splits_differ(table):
    assert not np.array_equal(split(load("small"), 0).train.y, split(load("small"), 1).train.y)


def test_what_is_missing_is_said(table, monkeypatch):
    with pytest.raises(OSError, match=r"no .*pol\.parquet\. Tables found there: small"):
        load("pol")
    monkeypatch.delenv("PARAGP_DATA")
    with pytest.raises(OSError, match="Set the environment variable PARAGP_DATA"):
        load("small")


def test_a_table_is_left_as_it_is():
    table = Table(np.ones((40, 2)), np.arange(40.0))
    split(table, 0)
    np.testing.assert_array_equal(table.y, np.arange(40.0))
