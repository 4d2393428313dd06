"""Tables to matrices: one plain record per column, fitted once, read by whoever predicts.

A table is a data frame (pandas, polars, pyarrow) or an array. Numbers and booleans are standardised; a missing
one becomes the mean, and a column that had missing values gets an indicator. Text and categories become one indicator
per category, the rarest sharing one; a category never seen has no indicator set, or the shared one. The records hold
numbers and strings only, so that they can be stored as JSON.
"""

import math
import numbers
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MOST_DISTINCT = 1_000_000  # categories that are counted
MAX_CATEGORIES = 50  # indicators per column; beyond, the rarest categories share one
REAL: tuple[Any, ...] = (numbers.Real, Decimal, np.bool_)  # what is a number in a column of objects
FARTHEST = 1e5  # deviations from the mean: farther away every kernel is back at the prior, and float32 would overflow

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """How one input becomes columns of the matrix.

    >>> Column("size", "numeric", mean=2.0, deviation=0.5, missing=True).outputs
    ['size', 'size is missing']
    """

    name: str
    kind: str  # "numeric" or "categorical"
    mean: float = 0.0  # of the known numbers
    deviation: float = 1.0  # of the known numbers; 1 where they are all equal
    missing: bool = False  # whether values were missing when this was fitted: an indicator of its own
    categories: tuple[str, ...] = ()
    other: bool = False  # whether rarer categories share an indicator

    @property
    def outputs(self) -> list[str]:
        """Names of the matrix columns this one becomes."""
        names = [self.name] if self.kind == "numeric" else [f"{self.name} = {key}" for key in self.categories]
        shared = [f"{self.name} is another"] if self.other else []
        return names + shared + ([f"{self.name} is missing"] if self.missing else [])

    def encode(self, values: Any) -> Array:
        """The matrix columns (n, k) of a series or an array."""
        if self.kind == "numeric":
            known = _numbers(values, self.name)
            main = np.clip((known - self.mean) / self.deviation, -FARTHEST, FARTHEST)[:, None]
            absent = np.isnan(known)
            main[absent] = 0.0
        else:
            keys, which = _distinct_keys(values, self.name)
            position = {key: i for i, key in enumerate(self.categories)}
            others = len(self.categories) if self.other else -1
            codes = np.array([-1 if key is None else position.get(key, others) for key in keys], dtype=np.int64)[which]
            main = (codes[:, None] == np.arange(len(self.categories) + self.other)).astype(np.float64)
            absent = np.array([key is None for key in keys], dtype=bool)[which]
        return np.hstack([main, absent[:, None].astype(np.float64)]) if self.missing else main


@dataclass(frozen=True)
class Target:
    """The target's name and units."""

    name: str
    mean: float
    deviation: float  # 1 for a constant target

    def encode(self, y: Array) -> Array:
        """Standardised y."""
        return (y - self.mean) / self.deviation


def fit_columns(X: Any, categorical: Any = "from_dtype", weights: Array | None = None) -> tuple[Column, ...]:
    """Learn one record per column of a table; a row of weight w counts as w rows.

    >>> fit_columns(np.array([[1.0, 5.0], [3.0, np.nan]]))[1].missing
    True
    """
    names = column_names(X)
    chosen = _categorical_columns(X, names, categorical)
    weights = np.ones(n_rows(X)) if weights is None else weights
    return tuple(
        (_fit_categorical if chosen[i] else _fit_numeric)(name, values, weights)
        for i, (name, values) in enumerate(_columns(X))
    )


def fit_target(y: Array, name: str, weights: Array | None = None) -> Target:
    """The mean and deviation of y; a row of weight w counts as w rows."""
    mean, deviation = _mean_and_deviation(y, np.ones(len(y)) if weights is None else weights)
    return Target(name, mean, deviation)


def encode(columns: Sequence[Column], X: Any) -> Array:
    """The matrix (n, p) of a table with these columns, in this order."""
    parts = [column.encode(values) for column, (_, values) in zip(columns, _columns(X), strict=True)]
    return np.hstack(parts)


def matrix_names(columns: Sequence[Column]) -> list[str]:
    """Names of the matrix's columns."""
    return [name for column in columns for name in column.outputs]


def owners(columns: Sequence[Column]) -> list[int]:
    """For each column of the matrix, the index of the input it came from."""
    return [i for i, column in enumerate(columns) for _ in column.outputs]


class Distinct(NamedTuple):
    """The rows of a table that differ in X or y, in an order of their own."""

    rows: NDArray[np.intp]  # positions
    weights: Array  # the total weight of each
    counts: NDArray[np.intp]  # how often each occurs


def distinct_rows(X: Any, y: Array, weights: Array | None = None, categorical: Any = "from_dtype") -> Distinct:
    """The rows that differ, whatever their order, and whether copies or weights.

    >>> distinct_rows(np.array([[3.0], [1.0], [3.0]]), np.zeros(3), np.array([1.0, 1.0, 0.5]))
    Distinct(rows=array([1, 0]), weights=array([1. , 1.5]), counts=array([1, 2]))
    """
    chosen = _categorical_columns(X, column_names(X), categorical)
    keys = [_sort_key(values, name, text) for text, (name, values) in zip(chosen, _columns(X), strict=True)]
    order = np.lexsort([*keys, y])
    table = np.column_stack([*keys, y])[order]
    first = np.concatenate([[True], (table[1:] != table[:-1]).any(axis=1)])
    which = first.cumsum() - 1
    totals = np.bincount(which, weights=None if weights is None else weights[order])
    return Distinct(order[first], totals.astype(np.float64), np.bincount(which))


def take_rows(X: Any, rows: NDArray[np.intp]) -> Any:
    """Some rows of a table."""
    if isinstance(X, pa.Table):  # of views Arrow cannot take rows
        fields = [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in X.schema]
        X = X.cast(pa.schema(fields))
    frame = as_frame(X)
    try:
        return X[rows] if frame is None else frame[rows.tolist()].to_native()
    except pa.ArrowException as error:
        raise ValueError(f"A column is of a type that rows cannot be taken of: {error}") from error


# --- frames and arrays, alike ---


def as_frame(X: Any) -> nw.DataFrame | None:
    """X as a narwhals frame (no copy), or None if it is not one of the known data frames."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def n_rows(X: Any) -> int:
    """The number of rows."""
    return len(X) if as_frame(X) is None else len(as_frame(X))  # type: ignore[arg-type]


def row_blocks(X: Any, size: int) -> Iterator[Any]:
    """The table in blocks of at most `size` rows."""
    frame = as_frame(X)
    for start in range(0, n_rows(X), size):
        yield X[start : start + size] if frame is None else frame[start : start + size].to_native()


def column_names(X: Any) -> list[str]:
    """The names of the columns: a frame's own, x0, x1, ... for an array."""
    frame = as_frame(X)
    return [f"x{i}" for i in range(X.shape[1])] if frame is None else [str(name) for name in frame.columns]


def _columns(X: Any) -> Iterator[tuple[str, Any]]:
    frame, names = as_frame(X), column_names(X)
    for i, name in enumerate(names):
        yield name, X[:, i] if frame is None else frame[:, i]


class Coded(NamedTuple):
    """A column of categories."""

    keys: list[str | None]  # names of categories, None for missing
    which: NDArray[np.intp]  # for each row, which of the keys it has


def read_columns(columns: Sequence[Column], X: Any) -> Iterator[Array | Coded]:
    """A table's columns as what they are taken for: finite numbers, NaN where missing, or categories."""
    for column, (_, values) in zip(columns, _columns(X), strict=True):
        numeric = column.kind == "numeric"
        yield _numbers(values, column.name) if numeric else Coded(*_distinct_keys(values, column.name))


def _categorical_columns(X: Any, names: list[str], categorical: Any) -> list[bool]:
    """Which columns are categories: by type, by name, by position or by mask."""
    if categorical is None:
        return [False] * len(names)
    if isinstance(categorical, str) and categorical == "from_dtype":
        return [_is_text(values, name) for name, values in _columns(X)]
    wanted = np.asarray(categorical)
    if wanted.size == 0:
        return [False] * len(names)
    if wanted.dtype == bool and wanted.shape == (len(names),):
        return wanted.tolist()
    if wanted.dtype.kind in "iu" and wanted.ndim == 1 and wanted.min() >= 0 and wanted.max() < len(names):
        return [i in wanted for i in range(len(names))]
    if wanted.dtype.kind in "UO" and wanted.ndim == 1 and set(wanted.tolist()) <= set(names):
        return [name in wanted.tolist() for name in names]
    raise ValueError(
        'categorical_features must be "from_dtype", None, or a list of column names, of positions, or of one bool per '
        f"column; got {categorical!r} for the columns {some(names)}."
    )


def _is_text(values: Any, name: str) -> bool:
    """Whether a column holds categories, by its type."""
    if isinstance(values, np.ndarray) or _is_plain(values):
        return False
    dtype = values.dtype
    if dtype in (nw.Object, nw.Unknown):  # whatever it holds
        try:
            _floats(values, name)
        except ValueError:
            if dtype == nw.Object:
                return True
        else:
            return False
    elif values.null_count() == len(values):
        return False
    elif dtype in (nw.String, nw.Categorical, nw.Enum):
        return True
    native = values.to_native()
    kind = dtype if dtype != nw.Unknown else getattr(native, "dtype", None) or native.type
    raise ValueError(
        f"Column {name!r} is of type {kind}, which is neither numbers nor categories. Turn it into numbers (a date "
        "into days since a start, say) or into text, or leave it out."
    )


def _is_plain(values: nw.Series) -> bool:
    return values.dtype.is_numeric() or values.dtype == nw.Boolean


def _sort_key(values: Any, name: str, text: bool) -> Array:
    """Numbers that are equal where the values are, missing ones included."""
    if not text:
        return np.nan_to_num(_numbers(values, name), nan=-np.inf)
    keys = _keys(values, name)
    position: dict[str | None, float] = {key: i for i, key in enumerate(sorted({*keys} - {None}))}  # type: ignore[type-var]
    return np.array([position.get(key, -1.0) for key in keys])


def _numbers(values: Any, name: str) -> Array:
    """A column as finite float64, NaN where missing."""
    found = _floats(values, name)
    if np.isinf(found).any():
        raise ValueError(
            f"Column {name!r} holds {int(np.isinf(found).sum())} infinite values (inf). Replace them by a finite "
            "number, or by NaN if they are unknown."
        )
    return found


def _floats(values: Any, name: str) -> Array:
    """A column as float64, NaN where missing."""
    if not isinstance(values, np.ndarray) and _is_plain(values):
        with suppress(pa.ArrowException):  # narwhals refuses to round whole numbers above 2^53
            return values.to_arrow().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    cells = _cells(values)
    try:
        found = np.array([math.nan if absent(value) else value for value in cells], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.empty((0, 0))
    if found.ndim != 1:
        bad = next((value for value in cells if not _is_number(value)), "something")
        raise ValueError(
            f"Column {name!r} holds {_shown(bad)} where a number is expected. Correct it, or make it a column of "
            "categories (text in a data frame, or categorical_features) and fit again."
        )
    return found


def _keys(values: Any, name: str) -> list[str | None]:
    """A column as names of categories, None where missing."""
    known: dict[Any, str | None] = {}
    found = []
    for value in _cells(values):
        if isinstance(value, Collection) and not isinstance(value, str | bytes):
            raise ValueError(f"Column {name!r} holds {_shown(value)}, which is neither a number nor a category.")
        try:
            key = known[type(value), value]
        except KeyError:
            key = known[type(value), value] = _key(value)
        except TypeError:  # unhashable
            key = _key(value)
        found.append(key)
    return found


def group_keys(X: Any, column: int) -> list[str | None]:
    """The names of a column's values, None where missing: of categories, or of numbers taken as such."""
    name, values = list(_columns(X))[column]
    return _keys(values, name)


def _distinct_keys(values: Any, name: str) -> tuple[list[str | None], NDArray[np.intp]]:
    """Names of categories, and for each cell which of them it is; quick for text in Arrow."""
    native = values.to_native() if isinstance(values, nw.Series) else None
    if isinstance(native, pa.ChunkedArray) and (
        pa.types.is_string(native.type) or pa.types.is_large_string(native.type)
    ):
        coded = native.combine_chunks().dictionary_encode(null_encoding="encode")
        coded = coded if isinstance(coded, pa.DictionaryArray) else coded.combine_chunks()
        return [_key(value) for value in coded.dictionary.to_pylist()], coded.indices.to_numpy(zero_copy_only=False)
    keys = _keys(values, name)
    position: dict[str | None, int] = {}
    which = np.array([position.setdefault(key, len(position)) for key in keys], dtype=np.intp)
    return list(position), which


def _cells(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else values.to_list()


def _key(value: Any) -> str | None:
    """One name for 3, 3.0 and "3", and for True and 1: a column of whole numbers with a gap comes as floats."""
    if absent(value):
        return None
    if isinstance(value, REAL) and -1e300 < value < 1e300:
        value = int(value) if value == int(value) else float(value)
    return str(value)


def absent(value: Any) -> bool:
    """Whether a cell is missing: None, NaN, NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float | np.floating | np.datetime64 | np.timedelta64) and bool(value != value)


def _is_number(value: Any) -> bool:
    try:
        float(0.0 if absent(value) else value)
        return np.ndim(value) == 0
    except (ValueError, TypeError, OverflowError):
        return False


def _fit_numeric(name: str, values: Any, weights: Array) -> Column:
    found = _numbers(values, name)
    mean, deviation = _mean_and_deviation(found, weights)
    return Column(name, "numeric", mean, deviation, missing=bool(np.isnan(found[weights > 0]).any()))


def _fit_categorical(name: str, values: Any, weights: Array) -> Column:
    survey = ColumnSurvey(name, categorical=True)
    survey.add(values, weights)
    return survey.column()


class ColumnSurvey:
    """A column's record from parts of the column, one after the other: what `fit_columns` finds of all at once.

    >>> survey = ColumnSurvey("size", categorical=False)
    >>> for part in ([1.0, 2.0], [3.0, np.nan]):
    ...     survey.add(np.array(part), np.ones(2))
    >>> survey.column().mean, survey.column().missing
    (2.0, True)
    """

    def __init__(self, name: str, categorical: bool) -> None:
        self.name, self.categorical = name, categorical
        self.missing = False
        self.totals: dict[str, float] = {}  # of each category
        self.weight = self.mean = self.square = 0.0  # of the known numbers; squares around the mean
        self.low, self.high = math.inf, -math.inf

    def add(self, values: Any, weights: Array) -> None:
        """Take in some rows; one of weight w counts as w rows."""
        (self._add_categories if self.categorical else self._add_numbers)(values, weights)

    def _add_categories(self, values: Any, weights: Array) -> None:
        keys, which = _distinct_keys(values, self.name)
        totals = np.bincount(which, weights=weights, minlength=len(keys))
        for key, total in zip(keys, totals.tolist(), strict=True):
            if total > 0 and key is not None:
                self.totals[key] = self.totals.get(key, 0.0) + total
            self.missing = self.missing or (total > 0 and key is None)
        self._check_distinct()

    def _check_distinct(self) -> None:
        if len(self.totals) > MOST_DISTINCT:
            raise ValueError(
                f"Column {self.name!r} holds more than {MOST_DISTINCT:,} different values, which says little as a "
                "category. Leave it out."
            )

    def _add_numbers(self, values: Any, weights: Array) -> None:
        found = _numbers(values, self.name)
        self.missing = self.missing or bool(np.isnan(found[weights > 0]).any())
        known = ~np.isnan(found) & (weights > 0)
        if not known.any():
            return
        found, weights = found[known], weights[known]
        with np.errstate(all="ignore"):  # `column` says what is too large
            weight, mean = float(weights.sum()), float(np.average(found, weights=weights))
            self._merge_numbers(weight, mean, float(weights @ (found - mean) ** 2))
        self.low, self.high = min(self.low, float(found.min())), max(self.high, float(found.max()))

    def merge(self, other: "ColumnSurvey") -> None:
        """Take in what another survey has seen."""
        self.missing = self.missing or other.missing
        for key, total in other.totals.items():
            self.totals[key] = self.totals.get(key, 0.0) + total
        self._check_distinct()
        if other.weight:
            self._merge_numbers(other.weight, other.mean, other.square)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def _merge_numbers(self, weight: float, mean: float, square: float) -> None:
        """Means and squares of two sets of rows make those of both (Chan et al. 1979)."""
        step, share = mean - self.mean, weight / (self.weight + weight)
        self.square += square + step * step * self.weight * share
        self.mean += step * share
        self.weight += weight

    def column(self) -> Column:
        """The record of all rows so far."""
        if self.categorical:
            kept = sorted(self.totals, key=lambda key: (-self.totals[key], key))[:MAX_CATEGORIES]
            other = len(self.totals) > len(kept)
            return Column(self.name, "categorical", missing=self.missing, categories=tuple(sorted(kept)), other=other)
        deviation = math.sqrt(self.square / self.weight) if self.weight else 0.0
        if not math.isfinite(self.mean) or not math.isfinite(deviation):
            raise ValueError(f"Column {self.name!r} spreads too far for float64. Rescale it.")
        deviation = deviation if deviation > 0 and self.high > self.low else 1.0
        return Column(self.name, "numeric", self.mean, deviation, self.missing)


def _mean_and_deviation(values: Array, weights: Array) -> tuple[float, float]:
    """Weighted mean and deviation of the known values, however large, small or far from zero; a constant has 1."""
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return 0.0, 1.0
    values, weights = values[known], weights[known] / weights[known].max()
    middle = float(values.min() / 2 + values.max() / 2)
    peak = float(np.abs(values - middle).max()) or 1.0  # squares of 1e200 would overflow, those of 1e-200 vanish
    near = (values - middle) / peak
    mean = float(np.average(near, weights=weights))
    deviation = float(np.sqrt(np.average((near - mean) ** 2, weights=weights))) * peak
    return middle + mean * peak, deviation if deviation > 0 and np.ptp(values) else 1.0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, for a message."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- as JSON ---


def to_records(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """The columns as plain dictionaries."""
    return [asdict(column) for column in columns]


def from_records(records: Any) -> tuple[Column, ...]:
    """The columns of `to_records`, checked: the records may come from a file that anyone wrote."""
    if not isinstance(records, list) or not records:
        raise ValueError("the columns must be a list of records")
    return tuple(_column(record) for record in records)


def _column(record: Any) -> Column:
    types = {"name": str, "kind": str, "mean": float, "deviation": float, "missing": bool, "other": bool}
    if not isinstance(record, dict) or set(record) != {*types, "categories"}:
        raise ValueError(f"a column record must hold exactly {', '.join([*types, 'categories'])}")
    for key, kind in types.items():
        if not isinstance(record[key], kind) and not (kind is float and type(record[key]) is int):
            raise ValueError(f"{key!r} of a column record must be {kind.__name__}, got {_shown(record[key])}")
    categories = record["categories"]
    if not isinstance(categories, list | tuple) or not all(isinstance(key, str) for key in categories):
        raise ValueError("the categories of a column record must be a list of text")
    if record["kind"] not in ("numeric", "categorical"):
        raise ValueError(f"the kind of a column must be numeric or categorical, got {_shown(record['kind'])}")
    if record["kind"] == "numeric" and (categories or record["other"]):
        raise ValueError(f"column {record['name']!r} is numeric and has categories")
    if len(set(categories)) < len(categories):
        raise ValueError(f"column {record['name']!r} has a category twice")
    if not (math.isfinite(record["mean"]) and math.isfinite(record["deviation"]) and record["deviation"] > 0):
        raise ValueError(f"column {record['name']!r} has no finite mean and positive deviation")
    return Column(**{**record, "categories": tuple(categories)})
