"""Columns to numbers: kinds, gaps, categories, weights as copies, and records that survive JSON."""

import json
from datetime import date
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
    take_rows,
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


@pytest.mark.parametrize("order", [1, -1])
def test_categories_do_not_depend_on_the_order_of_the_rows(order):
    values = [1, True, Decimal("1.0"), 1.0, 0.5, Decimal("0.50"), "0.5", "1"][::order]
    assert one(np.array(values, dtype=object), categorical=["a"]).categories == ("0.5", "1")


def test_true_and_false_are_found_again_among_numbers():
    column = one([True, False], categorical=["a"])
    for values in (np.array([1.0, 0.0]), np.array([True, False]), np.array([np.True_, 0], dtype=object)):
        np.testing.assert_array_equal(column.encode(values), [[0, 1], [1, 0]])


def test_large_whole_numbers_are_different_categories():
    codes = [2**60 + 1, 2**60 + 2, 10**400]
    column = one(np.array(codes, dtype=object), categorical=["a"])
    assert column.categories == tuple(sorted(map(str, codes)))
    assert len(one(codes[:2], categorical=["a"]).categories) == 2


GAPS = [None, np.nan, np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("NaN"), Decimal("sNaN")]


@pytest.mark.parametrize("gap", GAPS, ids=repr)
def test_every_kind_of_gap_is_missing(gap):
    assert one(np.array(["u", gap], dtype=object)) == Column("a", "categorical", missing=True, categories=("u",))
    assert one(np.array([3, gap], dtype=object)) == Column("a", "numeric", 3.0, missing=True)


FRAMES = {
    "pandas nullable": lambda v: pd.DataFrame({"a": pd.array(v, dtype="Float64")}),
    "polars": lambda v: pl.DataFrame({"a": v}),
    "arrow": lambda v: pa.table({"a": v}),
    "arrow decimal256": lambda v: pa.table({"a": pa.array(decimals(v), pa.decimal256(50, 2))}),
    "arrow int64": lambda v: pa.table({"a": pa.array(v, pa.int64())}),
    "pandas arrow": lambda v: pd.DataFrame({"a": pd.array(v, dtype="int64[pyarrow]")}),
    "pandas sparse": lambda v: pd.DataFrame({"a": pd.arrays.SparseArray(v, dtype="Sparse[float64]")}),
    "polars int128": lambda v: pl.DataFrame({"a": pl.Series(v).cast(pl.Int128)}),
    "polars decimal": lambda v: pl.DataFrame({"a": pl.Series(decimals(v))}),
    "pandas object": lambda v: pd.DataFrame({"a": np.array(v, dtype=object)}),
    "pandas decimal": lambda v: pd.DataFrame({"a": decimals(v)}),
}


def decimals(values):
    return [None if value is None else Decimal(value) for value in values]


@pytest.mark.parametrize("frame", FRAMES)
def test_numbers_are_numbers_in_any_frame(frame):
    made = FRAMES[frame]([1.0, None, 3.0])
    (column,) = fit_columns(made)
    assert column == Column("a", "numeric", 2.0, 1.0, missing=True)
    np.testing.assert_array_equal(encode([column], made), [[-1, 0], [0, 1], [1, 0]])


WIDE = {
    "arrow int64": lambda v: pa.table({"a": pa.array(v, pa.int64())}),
    "arrow uint64": lambda v: pa.table({"a": pa.array(v, pa.uint64())}),
    "pandas arrow": lambda v: pd.DataFrame({"a": pd.array(v, dtype="int64[pyarrow]")}),
    "pandas": lambda v: pd.DataFrame({"a": v}),
    "polars": lambda v: pl.DataFrame({"a": v}),
}


@pytest.mark.parametrize("frame", WIDE)
def test_whole_numbers_beyond_2_to_53_are_rounded(frame):
    made = WIDE[frame]([2**60 + 1, 2**61 + 1])
    (column,) = fit_columns(made)
    assert column == Column("a", "numeric", 1.5 * 2**60, 2.0**59)
    np.testing.assert_array_equal(encode([column], made), [[-1], [1]])
    assert len(distinct_rows(made, np.zeros(2)).rows) == 2


REFUSED = {
    "periods": (pd.DataFrame({"a": pd.period_range("2020", periods=2)}), r"Column 'a' is of type period\[D\]"),
    "dates": (pl.DataFrame({"a": [date(2020, 1, 1)]}), "Column 'a' is of type Date"),
    "lists in Arrow": (pa.table({"a": [[1.0], [2.0]]}), r"Column 'a' is of type List"),
    "run ends": (pa.table({"a": pa.RunEndEncodedArray.from_arrays([1, 2], ["u", "v"])}), "Column 'a' is of type run"),
    "lists": (pd.DataFrame({"a": [[1.0], [2.0]]}), r"Column 'a' holds \[1.0\], which is neither"),
    "tuples": (pd.DataFrame({"a": [(1, 2), (3, 4)]}), r"Column 'a' holds \(1, 2\), which is neither"),
    "arrays": (pd.DataFrame({"a": [np.ones(1), np.ones(1)]}), r"Column 'a' holds array\(\[1.\]\), which is neither"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_column_is_named(case):
    frame, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        fit_columns(frame)


def test_a_list_where_a_number_is_expected_is_named():
    with pytest.raises(ValueError, match=r"Column 'a' holds \[1.0\] where a number is expected"):
        one([1.0, 2.0]).encode(pd.Series([2.0, [1.0]]).to_numpy())


@pytest.mark.parametrize("make", [pa.string, pa.string_view, pa.large_string])
def test_rows_are_taken_of_text_of_every_make(make):
    taken = take_rows(pa.table({"a": pa.array(["u", None, "v"], make())}), np.array([2, 0]))
    assert taken["a"].to_pylist() == ["v", "u"]


def test_rows_that_cannot_be_taken_are_an_error_in_words():
    with pytest.raises(ValueError, match="rows cannot be taken"):
        take_rows(pa.table({"a": pa.RunEndEncodedArray.from_arrays([1, 2], [1.0, 2.0])}), np.array([0]))


@pytest.mark.parametrize("values", [[3.0, 3.0], [np.nan, np.nan], [1e12, 1e12], [0.0, 0.0]])
def test_a_constant_column_has_deviation_one(values):
    assert one(values).deviation == 1.0


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_numbers_of_any_size_are_standardised(scale):
    x = scale * np.array([[1.0], [2.0], [4.0]])
    (column,) = fit_columns(x)
    np.testing.assert_allclose(encode([column], x).std(), 1)


@pytest.mark.parametrize("offset", [1e9, -1.7e12, 1e15])
def test_a_small_spread_far_from_zero_is_the_deviation(offset):
    values = offset + rng.normal(size=20_000)
    target = fit_target(values, "y")
    assert target.deviation == pytest.approx((values - values[0]).std(), rel=1e-6)
    assert target.mean == pytest.approx(values.mean())
    assert one(values).deviation == target.deviation


def test_weights_of_any_size_weigh():
    for scale in (1e-300, 1e300):
        target = fit_target(np.array([0.0, 4.0]), "y", scale * np.array([3.0, 1.0]))
        assert (target.mean, target.deviation) == pytest.approx((1.0, np.sqrt(3)))


def test_far_values_are_brought_near_enough_to_compute_with():
    column = one([0.0, 2.0])
    np.testing.assert_array_equal(column.encode(np.array([1e300, -1e300])), [[FARTHEST], [-FARTHEST]])


def test_the_categories_that_weigh_most_are_kept():
    names = [f"{i:03}" for i in range(MAX_CATEGORIES + 10)]
    column = one(names, weights=np.arange(1.0, len(names) + 1))
    assert column.categories == tuple(names[10:])


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
    found = distinct_rows(X, y)
    np.testing.assert_array_equal(y[found.rows], [0, 1, 2])
    np.testing.assert_array_equal(found.weights, [2, 1, 1])
    np.testing.assert_array_equal(found.counts, [2, 1, 1])
    weighted = distinct_rows(X.iloc[[1, 0, 3]], y[[1, 0, 3]], np.array([1.0, 2.0, 1.0]))
    np.testing.assert_array_equal(weighted.weights, found.weights)
    np.testing.assert_array_equal(weighted.counts, [1, 1, 1])


def test_empty_text_and_missing_text_are_different_rows():
    X = pd.DataFrame({"t": ["", None, "u", ""]})
    np.testing.assert_array_equal(distinct_rows(X, np.zeros(4)).counts, [1, 2, 1])


DATES = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-01", None])


@pytest.mark.parametrize("values", [DATES, np.array([np.inf, 1.0, np.inf, np.nan])], ids=["dates", "infinite"])
def test_declared_categories_are_told_apart_as_such(values):
    X = pd.DataFrame({"a": values})
    found = distinct_rows(X, np.zeros(4), categorical=["a"])
    assert sorted(found.counts) == [1, 1, 2]
    assert len(one(values, categorical=["a"]).categories) == 2
    with pytest.raises(ValueError, match="Column 'a'"):
        distinct_rows(X, np.zeros(4))


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
