"""The paper's data sets, as tables here or from their public copies, and the splits they are compared on.

`load` looks for uci/<name>.parquet in the folder that `PARAGP_DATA` names, then for <name>.parquet in the cache folder.
What is in neither is downloaded, checked and kept in the cache.
"""

import gzip
import hashlib
import os
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from paragp.atomic import check_place
from paragp.data.files import BATCH_ROWS, check_columns, read_table, writing_table

SHARES = (0.75, 0.15)  # of the rows, for training and test; the rest validates (15:3:2, as in the paper)
FLOOR = 0.01  # of a predicted deviation, in standardised units, before scores are compared

# Version 1.1.0 of a public collection: inputs and targets are centred and rounded to five digits there, not scaled.
COLLECTION = (
    "https://raw.githubusercontent.com/treforevans/uci_datasets/f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets"
)
TIMEOUT = 30.0  # seconds to wait for a server's next word
CHUNK = 1 << 18  # bytes

Array = NDArray[np.float64]


# --- what there is ---


@dataclass(frozen=True)
class Dataset:
    """A data set of the paper, and its public copy: gzipped CSV files without a header, the target last."""

    name: str
    rows: int
    inputs: int
    target: str  # in words
    urls: tuple[str, ...]  # of files whose rows follow each other
    digest: str | None = None  # `digest_of` the values; None where it is not known


def _collected(
    name: str, rows: int, inputs: int, target: str, digest: str | None = None, files: Iterable[str] = ("data.csv.gz",)
) -> Dataset:
    return Dataset(name, rows, inputs, target, tuple(f"{COLLECTION}/{name}/{file}" for file in files), digest)


# In the paper's order. How the collection made its inputs and targets of the originals is on no record: "log" is what
# the values look like. The paper does not say which inputs of houseelectric it used, nor in what units.
DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        _collected(
            "pol", 15_000, 26, "a level of 0 to 100 in steps of 10 (pole telecommunication)",
            "65cd6369f64f5fe8ed06f6874d6bbbd0bbf813de4e0a0de371a0d5d2209f5673",
        ),
        _collected(
            "elevators", 16_599, 18, "the action on an aircraft's elevators, log",
            "3973c2bceca22cdd76577186da36ccc17cbd0ba6ea7a9c17b6ed76ef58904f2e",
        ),
        _collected(
            "bike", 17_379, 17, "the number of bikes hired in an hour, log; x15 and x16 determine it",
            "6a5f194a286c6ba8c774a23eadc6106dd83d75dbb44a80bba247a57621a7f806",
        ),
        _collected(
            "kin40k", 40_000, 8, "the distance of a robot arm's hand from a point, nearly without noise",
            "71e1e055a2d6e14fd3ef7cfb570bc00d50a7e66823d79d2fd6a36e2f2cd95b72",
        ),
        _collected("protein", 45_730, 9, "how far a protein's predicted structure is from the true one"),
        _collected(
            "keggdirected", 48_827, 20, "a count in a metabolic network's relation graph, log",
            "7c8210a277408c4a3ae74438cbfe8b3479d909aae7a31d3d4f9503d8038a09c2",
        ),
        _collected("slice", 53_500, 385, "where along the body a CT slice was taken"),
        _collected("keggundirected", 63_608, 27, "a property of a metabolic network's reaction graph"),
        _collected("3droad", 434_874, 3, "the altitude of a point on a road"),
        _collected("song", 515_345, 90, "the year in which a song came out", files=("data.csv.gz", "data1.csv.gz")),
        _collected("buzz", 583_250, 77, "how much a topic is discussed on Twitter"),
        _collected("houseelectric", 2_049_280, 11, "the active power a household draws in a minute"),
    )
}  # fmt: skip


def cache_folder() -> Path:
    """Where downloaded tables are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paragp"


def present() -> list[tuple[Dataset, Path | None]]:
    """The paper's data sets, and the file `load` would read each from; None for one it would download."""
    return [(dataset, _find(name)) for name, dataset in DATASETS.items()]


def _find(name: str) -> Path | None:
    own = _own_tables()
    places = [*([own / f"{name}.parquet"] if own else []), cache_folder() / f"{name}.parquet"]
    return next((place for place in places if place.exists()), None)


def _own_tables() -> Path | None:
    folder = os.environ.get("PARAGP_DATA")
    if folder and not Path(folder).is_dir():
        raise NotADirectoryError(
            f"PARAGP_DATA is {folder}, which is not a folder. Set it to one that holds uci/<name>.parquet, or unset it."
        )
    return Path(folder, "uci") if folder else None


# --- tables ---


class Table(NamedTuple):
    """Inputs (n, d) and a target (n,)."""

    x: Array
    y: Array


def load(name: str) -> Table:
    """A table by its name, from `PARAGP_DATA`, the cache or the network: columns x0, x1, ... and y."""
    return _read(_find(name) or _fetch(_known(name)))


def digest_of(values: Array) -> str:
    """SHA-256 of a table, row by row with the target last, in little-endian float32.

    At that precision a copy kept in float32 has the digest of the original.

    >>> digest_of(np.array([[0.1, 2.0]])) == digest_of(np.array([[0.1, 2.0]]).astype(np.float32))
    True
    """
    with np.errstate(over="ignore"):
        return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def _known(name: str) -> Dataset:
    if name in DATASETS:
        return DATASETS[name]
    own = _own_tables()
    if own:
        found = ", ".join(sorted(path.stem for path in own.glob("*.parquet"))) or "none"
        here = f"tables found in {own}: {found}"
    else:
        here = f"to read another, set PARAGP_DATA to the folder that holds uci/{name}.parquet"
    raise FileNotFoundError(f"There is no table {name!r}. The paper's data sets: {', '.join(DATASETS)}; {here}.")


def _read(place: Path) -> Table:
    table = read_table(place)
    check_columns(table.column_names, ["y"], place)
    inputs = [name for name in table.column_names if name != "y"]
    x = np.empty((table.num_rows, len(inputs)))
    for j, name in enumerate(inputs):
        x[:, j] = table[name].to_numpy()
    return Table(x, table["y"].to_numpy().astype(np.float64))


# --- public copies ---


def _fetch(dataset: Dataset) -> Path:
    """Download a data set, or take the files a user put there; check it, and keep it in the cache."""
    place = cache_folder() / f"{dataset.name}.parquet"
    check_place(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{dataset.name}-", dir=place.parent) as scratch:
        values = _parsed(dataset, [_original(dataset, url, Path(scratch)) for url in dataset.urls])
    found = fault(dataset, values)
    if found:
        raise _refusal(dataset, dataset.urls, found)
    _store(values, place)
    return place


def _by_hand(dataset: Dataset, url: str) -> Path:
    """Where a user without a network may put the file of this address."""
    return cache_folder() / dataset.name / url.rsplit("/", 1)[-1]


def _refusal(dataset: Dataset, urls: Iterable[str], what: str) -> OSError:
    urls = tuple(urls)
    places = [_by_hand(dataset, url) for url in urls]
    remedies = [
        f"Replace or remove {place}." if place.exists() else f"Try again later, or put the file at {place}."
        for place in places
    ]
    return OSError(f"The data set {dataset.name} cannot be had from {' and '.join(urls)}: {what}. {' '.join(remedies)}")


def _original(dataset: Dataset, url: str, scratch: Path) -> Path:
    """The file of an address, which gzip finds whole: put there by hand, else downloaded into `scratch`."""
    file = _by_hand(dataset, url)
    try:
        if not file.exists():
            file = scratch / file.name
            _download(url, file, dataset.name)
        _check_gzip(file)
    except (OSError, HTTPException, EOFError, zlib.error) as error:
        raise _refusal(dataset, [url], _reason(error)) from error
    return file


def _download(url: str, file: Path, label: str) -> None:
    with urlopen(url, timeout=TIMEOUT) as response, file.open("wb") as out:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        with tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=None) as bar:
            while chunk := response.read(CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
        came = out.tell()
    if total is not None and came != total:
        raise ConnectionError(f"{total} bytes were expected, and the connection ended after {came}")


def _check_gzip(file: Path) -> None:
    with gzip.open(file) as opened:
        while opened.read(CHUNK):
            pass


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        error.close()
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        return _reason(error.reason)
    if isinstance(error, gzip.BadGzipFile | zlib.error | EOFError):
        return f"a sound gzip file was expected, and this was found: {error}"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().rstrip(".")


def _parsed(dataset: Dataset, files: list[Path]) -> Array:
    """The rows of all files, (rows, inputs + 1); of a longer table, one row too many."""
    lines = chain.from_iterable(_lines(file) for file in files)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about empty files, whose rows are counted below
            return np.loadtxt(lines, delimiter=",", ndmin=2, max_rows=dataset.rows + 1)
    except ValueError as error:
        found = str(error).split(";")[0][:200].rstrip(".")
        what = f"rows of {dataset.inputs + 1} numbers were expected, and this was found: {found}"
        raise _refusal(dataset, dataset.urls, what) from error


def _lines(file: Path) -> Iterable[str]:
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        yield from opened


def fault(dataset: Dataset, values: Array) -> str | None:
    """What tells these values from those of the data set."""
    rows, columns = values.shape
    if rows and columns != dataset.inputs + 1:
        return f"{dataset.inputs} inputs and a target were expected, and {columns} columns came"
    if rows != dataset.rows:
        return f"{dataset.rows} rows were expected, and {'more' if rows > dataset.rows else rows} came"
    unknown = values.size - np.count_nonzero(np.isfinite(values))
    if unknown:
        return f"numbers were expected everywhere, and {unknown} missing or infinite ones came"
    if dataset.digest and digest_of(values) != dataset.digest:
        return f"values with the digest {dataset.digest} were expected, and some with {digest_of(values)} came"
    return None


def _store(values: Array, place: Path) -> None:
    names = [*(f"x{j}" for j in range(values.shape[1] - 1)), "y"]
    with writing_table(place) as write:
        for start in range(0, len(values), BATCH_ROWS):
            write(dict(zip(names, values[start : start + BATCH_ROWS].T, strict=True)))


# --- splits ---


class Split(NamedTuple):
    """Rows to train, test and validate on, in units of the training rows' deviations."""

    train: Table
    test: Table
    valid: Table


def split(table: Table, k: int) -> Split:
    """Split k of a table: a permutation seeded by k, cut in three, standardised by the training rows in float64.

    >>> parts = split(Table(np.arange(40.0).reshape(20, 2), np.arange(20.0)), 0)
    >>> [len(part.y) for part in parts], f"{parts.train.x.std():.3f}"
    ([15, 3, 2], '1.000')
    """
    n = len(table.y)
    order = np.random.default_rng(k).permutation(n)
    first, second = (int(share * n) for share in SHARES)
    parts = order[:first], order[first : first + second], order[first + second :]
    x, y = (_standardised(values, parts[0]) for values in table)
    return Split(*(Table(x[rows], y[rows]) for rows in parts))


def _standardised(values: Array, rows: NDArray[np.intp]) -> Array:
    known = values[rows]  # of equal numbers the mean is rounded, and the deviation then not quite zero
    return (values - known.mean(0)) / np.where(np.ptp(known, 0) == 0, 1.0, known.std(0))
