"""Columns to numbers: kinds, gaps, categories, weights as copies, and records that survive JSON."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragp.data.tables import (
    FARTHEST,
    MAX_CATEGORIES,
    Column,
    distinct_rows,
    encode,
    fit_columns,
    fit_target,
    from_records,
    matrix_names,
    owners,
    row_blocks,
    to_records,
)

rng = np.random.default_rng(0)


def one(values, **options):
    (column,) = fit_columns(pd.DataFrame({"a": values}), **options)
    return column


def test_numbers_are_standardised():
    X = rng.normal(5, 3, size=(100, 2))
    matrix = encode(fit_columns(X), X)
    np.testing.assert_allclose(matrix.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(matrix.std(0), 1)


def test_a_gap_is_the_mean_and_an_indicator():
    column = one([1.0, np.nan, 3.0])
    assert column.missing
    np.testing.assert_array_equal(column.encode(np.array([1.0, np.nan, 3.0])), [[-1, 0], [0, 1], [1, 0]])


def test_a_gap_seen_first_at_prediction_is_the_mean():
    column = one([1.0, 3.0])
    np.testing.assert_array_equal(column.encode(np.array([np.nan])), [[0.0]])


def test_booleans_are_numbers_and_text_is_categories():
    columns = fit_columns(pd.DataFrame({"b": [True, False], "t": ["u", "v"], "c": pd.Categorical(["x", "y"])}))
    assert [column.kind for column in columns] == ["numeric", "categorical", "categorical"]
    assert matrix_names(columns) == ["b", "t = u", "t = v", "c = x", "c = y"]
    assert owners(columns) == [0, 1, 1, 2, 2]


def test_missing_and_unseen_categories():
    column = one(["u", "v", None])
    encoded = column.encode(np.array(["u", "v", None, "w"], dtype=object))
    np.testing.assert_array_equal(encoded, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_rare_categories_share_an_indicator_and_the_unseen_join_them():
    values = [f"often {i}" for i in range(MAX_CATEGORIES)] * 2 + ["rare 1", "rare 2"]
    column = one(values)
    assert column.other
    assert len(column.categories) == MAX_CATEGORIES
    encoded = column.encode(np.array(["often 3", "rare 1", "never"], dtype=object))
    np.testing.assert_array_equal(encoded[:, -1], [0, 1, 1])
    np.testing.assert_array_equal(encoded.sum(1), [1, 1, 1])


def test_whole_numbers_name_the_same_category_as_floats_and_text():
    column = one([1, 2], categorical=["a"])
    for values in ([1.0, np.nan], ["1", None], [1, None]):
        np.testing.assert_array_equal(column.encode(np.array(values, dtype=object)), [[1, 0], [0, 0]])


FRAMES = {
    "pandas nullable": lambda v: pd.DataFrame({"a": pd.array(v, dtype="Float64")}),
    "polars": lambda v: pl.DataFrame({"a": v}),
    "arrow": lambda v: pa.table({"a": v}),
    "pandas object": lambda v: pd.DataFrame({"a": np.array(v, dtype=object)}),
    "pandas decimal": lambda v: pd.DataFrame({"a": [None if x is None else Decimal(x) for x in v]}),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_numbers_are_numbers_in_any_frame(frame):
    made = FRAMES[frame]([1.0, None, 3.0])
    (column,) = fit_columns(made)
    assert column == Column("a", "numeric", 2.0, 1.0, missing=True)
    np.testing.assert_array_equal(encode([column], made), [[-1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize("values", [[3.0, 3.0], [np.nan, np.nan], [1e12, 1e12], [0.0, 0.0]])
def test_a_constant_column_has_deviation_one(values):
    assert one(values).deviation == 1.0


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_numbers_of_any_size_are_standardised(scale):
    x = scale * np.array([[1.0], [2.0], [4.0]])
    (column,) = fit_columns(x)
    np.testing.assert_allclose(encode([column], x).std(), 1)


def test_far_values_are_brought_near_enough_to_compute_with():
    column = one([0.0, 2.0])
    np.testing.assert_array_equal(column.encode(np.array([1e300, -1e300])), [[FARTHEST], [-FARTHEST]])


def test_weights_count_as_copies():
    values = pd.DataFrame({"n": rng.normal(size=30), "t": rng.choice(list("abcdef"), 30)})
    copies = rng.integers(0, 3, size=30)
    repeated = values.iloc[np.repeat(np.arange(30), copies)]
    weighted, plain = fit_columns(values, weights=copies.astype(float)), fit_columns(repeated)
    assert weighted[0].mean == pytest.approx(plain[0].mean)
    assert weighted[0].deviation == pytest.approx(plain[0].deviation)
    assert weighted[1] == plain[1]
    y = values["n"].to_numpy()
    assert fit_target(y, "y", copies.astype(float)).deviation == pytest.approx(
        fit_target(y.repeat(copies), "y").deviation
    )


def test_distinct_rows_do_not_depend_on_order_or_on_copies_and_weights():
    X = pd.DataFrame({"n": [1.0, np.nan, 1.0, np.nan], "t": ["u", None, "u", None]})
    y = np.array([0.0, 1.0, 0.0, 2.0])
    rows, totals = distinct_rows(X, y)
    np.testing.assert_array_equal(y[rows], [0, 1, 2])
    np.testing.assert_array_equal(totals, [2, 1, 1])
    _, weighted = distinct_rows(X.iloc[[1, 0, 3]], y[[1, 0, 3]], np.array([1.0, 2.0, 1.0]))
    np.testing.assert_array_equal(weighted, totals)


def test_blocks_of_rows_put_together_are_the_table():
    frame = pd.DataFrame({"n": np.arange(10.0), "t": list("abcdefghij")})
    columns = fit_columns(frame)
    for made in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        parts = [encode(columns, block) for block in row_blocks(made, 3)]
        assert [len(part) for part in parts] == [3, 3, 3, 1]
        np.testing.assert_array_equal(np.vstack(parts), encode(columns, frame))


def test_text_where_numbers_were_is_named():
    column = one([1.0, 2.0])
    with pytest.raises(ValueError, match="Column 'a' holds 'x' where a number is expected"):
        column.encode(np.array([1.0, "x"], dtype=object))


NAMES = st.text(max_size=4)
NUMERIC = st.builds(
    Column,
    name=NAMES,
    kind=st.just("numeric"),
    mean=st.floats(-1e6, 1e6),
    deviation=st.floats(1e-6, 1e6),
    missing=st.booleans(),
)
CATEGORICAL = st.builds(
    Column,
    name=NAMES,
    kind=st.just("categorical"),
    missing=st.booleans(),
    categories=st.lists(NAMES, max_size=3, unique=True).map(tuple),
    other=st.booleans(),
)
COLUMNS = NUMERIC | CATEGORICAL


@given(st.lists(COLUMNS, min_size=1, max_size=3))
def test_records_survive_json(columns):
    assert from_records(json.loads(json.dumps(to_records(columns)))) == tuple(columns)


JUNK = st.recursive(
    st.sampled_from(["numeric", "categorical", True, False, 1, -1.0]) | st.none() | st.floats() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=3),
)


@given(COLUMNS, st.sampled_from(["name", "kind", "mean", "deviation", "missing", "categories", "other"]), JUNK)
def test_a_record_with_anything_in_it_is_a_column_or_a_reason(column, key, value):
    (record,) = to_records([column])
    try:
        (found,) = from_records([record | {key: value}])
    except ValueError as error:
        assert str(error)  # noqa: PT017
    else:
        assert found.encode(np.array([1.0, 2.0])).shape == (2, len(found.outputs))
