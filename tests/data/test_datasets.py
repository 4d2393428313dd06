"""Tables from PARAGP_DATA, from the cache and from a server on this machine, and their splits."""

import gzip
import hashlib
import io
import re
import socket
import struct
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paragp.data import datasets
from paragp.data.datasets import DATASETS, Dataset, Table, digest_of, load, present, split
from paragp.paper.reported import reported

VALUES = np.random.default_rng(7).normal(size=(40, 3)) * [1e-6, 1.0, 1e3]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no PARAGP_DATA, no proxy."""
    monkeypatch.delenv("PARAGP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache" / "paragp"


@pytest.fixture
def table(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    columns = {"x0": rng.normal(5, 2, 103), "y": rng.normal(-1, 3, 103), "x1": np.full(103, 7.0)}
    (tmp_path / "uci").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "uci" / "small.parquet")
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path))
    return columns


def csv(values):
    return "".join(",".join(map(repr, row)) + "\n" for row in values.tolist()).encode()


class Server(ThreadingHTTPServer):
    """A server of bodies by path; `answers` holds (status, headers, body), `asked` the paths requested."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = {}, []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    def put(self, body, path="/data.csv.gz", status=200, **headers):
        self.answers[path] = status, {"Content-Length": str(len(body))} | headers, body
        return f"http://127.0.0.1:{self.server_port}{path}"

    def stop(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        status, headers, body = self.server.answers[self.path]
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def publish(monkeypatch):
    """A data set "pol" of VALUES at these addresses."""

    def published(*urls, **changes):
        dataset = replace(Dataset("pol", 40, 2, "made up", urls, digest_of(VALUES)), **changes)
        monkeypatch.setitem(DATASETS, "pol", dataset)

    return published


def assert_values(found):
    np.testing.assert_array_equal(found.x, VALUES[:, :2])
    np.testing.assert_array_equal(found.y, VALUES[:, 2])


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


# --- tables that are here ---


def test_the_target_is_y_wherever_it_stands(table):
    found = load("small")
    np.testing.assert_array_equal(found.x, np.column_stack([table["x0"], table["x1"]]))
    np.testing.assert_array_equal(found.y, table["y"])


def test_single_precision_is_read_as_double(table, tmp_path):
    pq.write_table(pa.table({"x0": np.float32([0.1]), "y": np.float32([0.2])}), tmp_path / "uci" / "single.parquet")
    found = load("single")
    assert found.x.dtype == found.y.dtype == np.float64
    assert (found.x[0, 0], found.y[0]) == (np.float32(0.1), np.float32(0.2))


def test_the_own_folder_comes_before_the_cache_and_the_cache_before_the_network(table, tmp_path, cache):
    cache.mkdir(parents=True)
    pq.write_table(pa.table({"x0": [1.0], "y": [2.0]}), cache / "pol.parquet")
    assert load("pol") == Table(np.array([[1.0]]), np.array([2.0]))
    pq.write_table(pa.table({"x0": [3.0], "y": [4.0]}), tmp_path / "uci" / "pol.parquet")
    assert load("pol") == Table(np.array([[3.0]]), np.array([4.0]))


def test_the_cache_is_in_the_home_folder_unless_said_otherwise(tmp_path, monkeypatch, cache):
    assert datasets.cache_folder() == cache
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in (lambda: monkeypatch.setenv("XDG_CACHE_HOME", ""), lambda: monkeypatch.delenv("XDG_CACHE_HOME")):
        unset()
        assert datasets.cache_folder() == tmp_path / ".cache" / "paragp"


def test_what_is_unknown_is_said(table, monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no table 'poll'\. .* pol, .*electric; tables found in .*: small\."):
        load("poll")
    monkeypatch.delenv("PARAGP_DATA")
    with pytest.raises(FileNotFoundError, match=r"set PARAGP_DATA to the folder that holds uci/small\.parquet"):
        load("small")
    monkeypatch.setenv("PARAGP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match=r"PARAGP_DATA is .*nowhere, which is not a folder"):
        load("pol")


def test_a_damaged_table_is_named(table, tmp_path):
    bad = tmp_path / "uci" / "bad.parquet"
    bad.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=re.escape(f"{bad} cannot be read as Parquet")):
        load("bad")
    pq.write_table(pa.table({"x0": [1.0]}), bad)
    with pytest.raises(ValueError, match=r"lacks the column 'y'"):
        load("bad")


def test_present_says_where(table, tmp_path, cache):
    cache.mkdir(parents=True)
    for place in (cache / "song.parquet", cache / "bike.parquet", tmp_path / "uci" / "bike.parquet"):
        place.touch()
    found = {dataset.name: where for dataset, where in present()}
    assert list(found) == list(DATASETS)
    assert {name: where for name, where in found.items() if where} == {
        "bike": tmp_path / "uci" / "bike.parquet",
        "song": cache / "song.parquet",
    }


# --- the registry ---


def test_the_registry_holds_the_papers():
    assert set(DATASETS) >= {name for name, _, _ in reported()}
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert dataset.target
        assert all(re.fullmatch(rf"https://\S+/{name}/data1?\.csv\.gz", url) for url in dataset.urls)
        assert len(dataset.urls) == (2 if name == "song" else 1)
    known = {name for name, dataset in DATASETS.items() if re.fullmatch("[0-9a-f]{64}", dataset.digest or "")}
    assert known == {"pol", "elevators", "bike", "kin40k", "keggdirected"}


def test_a_digest_is_of_float32_rows():
    numbers = struct.pack("<4f", 0.1, -2.0, 3e7, 0.0)
    expected = hashlib.sha256(numbers).hexdigest()
    values = np.array([[0.1, -2.0], [3e7, 0.0]])
    assert digest_of(values) == digest_of(np.asfortranarray(values)) == digest_of(values.astype(">f4")) == expected
    assert digest_of(values.T) != expected
    assert digest_of(np.array([[1e300]])) == digest_of(np.array([[np.inf]]))  # without a warning


# --- downloads ---


def test_a_download_is_kept(server, publish, cache):
    publish(server.put(gzip.compress(csv(VALUES))))
    assert_values(load("pol"))
    assert files_in(cache) == [cache / "pol.parquet"]
    assert pq.read_schema(cache / "pol.parquet").names == ["x0", "x1", "y"]
    server.stop()
    assert_values(load("pol"))
    assert server.asked == ["/data.csv.gz"]


def test_many_rows_are_kept_in_order(server, publish, monkeypatch):
    monkeypatch.setattr(datasets, "BATCH_ROWS", 7)
    publish(server.put(gzip.compress(csv(VALUES))))
    assert_values(load("pol"))


def test_the_rows_of_two_files_follow_each_other(server, publish, cache):
    first = server.put(gzip.compress(csv(VALUES[:15]).rstrip(b"\n")))
    publish(first, server.put(gzip.compress(csv(VALUES[15:])), "/data1.csv.gz"))
    assert_values(load("pol"))
    assert server.asked == ["/data.csv.gz", "/data1.csv.gz"]


def test_a_data_set_without_a_digest_or_a_length_is_taken(server, publish):
    publish(server.put(gzip.compress(csv(VALUES)), **{"Content-Length": None}), digest=None)
    assert_values(load("pol"))


def without(values, value):
    values = values.copy()
    values[3, 1] = value
    return values


WHOLE = gzip.compress(csv(VALUES))
FLIPPED = {place: WHOLE[:place] + bytes([WHOLE[place] ^ 255]) + WHOLE[place + 1 :] for place in (60, len(WHOLE) - 6)}
FAULTS = {
    "digest": (
        gzip.compress(csv(VALUES * 2)),
        rf"{digest_of(VALUES)} were .*, and some with {digest_of(VALUES * 2)}",
    ),
    "columns": (gzip.compress(csv(VALUES[:, :2])), "2 inputs and a target were expected, and 2 columns came"),
    "ragged": (gzip.compress(csv(VALUES) + b"1,2\n"), "rows of 3 numbers were expected, .* changed from 3 to 2 at row"),
    "few rows": (gzip.compress(csv(VALUES[:-1])), "40 rows were expected, and 39 came"),
    "many rows": (gzip.compress(csv(VALUES[[*range(40), *range(40)]])), "40 rows were expected, and more came"),
    "nothing": (b"", "40 rows were expected, and 0 came"),
    "no rows": (gzip.compress(b"\n\n"), "40 rows were expected, and 0 came"),
    "missing": (gzip.compress(csv(without(VALUES, np.nan))), "expected everywhere, and 1 missing or infinite ones"),
    "infinite": (gzip.compress(csv(without(VALUES, np.inf))), "expected everywhere, and 1 missing or infinite ones"),
    "empty field": (gzip.compress(b"1,,2\n"), "rows of 3 numbers were expected, .* could not convert"),
    "header": (gzip.compress(b"a,b,c\n" + csv(VALUES)), "rows of 3 numbers were expected, .* could not convert"),
    "bytes": (gzip.compress(b"\xff\xfe" * 9), "rows of 3 numbers were expected, .* can't decode"),
    "no gzip": (b"<html>Sign in to this network</html>", "sound gzip file was expected, .* Not a gzipped file"),
    "half": (WHOLE[: len(WHOLE) // 2], "sound gzip file was expected, .* ended before the end"),
    "damage": (FLIPPED[60], "sound gzip file was expected"),
    "checksum": (FLIPPED[len(WHOLE) - 6], "sound gzip file was expected, .* CRC check failed"),
}


@pytest.mark.parametrize(("body", "sentence"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_file_is_refused_and_not_kept(body, sentence, server, publish, cache):
    url = server.put(body)
    publish(url)
    remedy = re.escape(f"Try again later, or put the file at {cache / 'pol' / 'data.csv.gz'}.")
    with pytest.raises(OSError, match=rf"^The data set pol cannot be had from {url}: .*{sentence}.*\. {remedy}$"):
        load("pol")
    assert not any(cache.iterdir())


def test_a_body_that_breaks_off_is_refused(server, publish, cache):
    publish(server.put(WHOLE, **{"Content-Length": str(len(WHOLE) + 10)}))
    with pytest.raises(OSError, match=rf": {len(WHOLE) + 10} bytes were expected, .* ended after {len(WHOLE)}\. Try"):
        load("pol")
    assert not any(cache.iterdir())


def test_the_servers_refusal_is_said(server, publish, cache):
    publish(server.put(b"", status=404))
    with pytest.raises(OSError, match=r"data\.csv\.gz: the server answered 404 Not Found\. Try again later"):
        load("pol")
    assert not any(cache.iterdir())


def closed(_):
    pass


def silent(port):
    port.listen()


def hanging_up(port):
    port.listen()
    threading.Thread(target=lambda: port.accept()[0].close()).start()


def babbling(port):
    def answer():
        caller, _ = port.accept()
        with caller:
            caller.recv(10_000)
            caller.sendall(b"220 welcome to another service\r\n")

    port.listen()
    threading.Thread(target=answer).start()


@pytest.mark.parametrize(
    ("behave", "timeout", "reason"),
    [
        (closed, 60, "Connection refused"),
        (silent, 0.2, "timed out"),
        (hanging_up, 60, "Remote end closed connection without response|Connection reset by peer"),
        (babbling, 60, "220 welcome to another service"),
    ],
)
def test_no_network_is_said(behave, timeout, reason, publish, cache, monkeypatch):
    monkeypatch.setattr(datasets, "TIMEOUT", timeout)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        behave(port)
        url = f"http://127.0.0.1:{port.getsockname()[1]}/data.csv.gz"
        publish(url)
        with pytest.raises(
            OSError, match=rf"from {url}: ({reason})\. Try again later, or put the file at {cache}/pol/"
        ):
            load("pol")
    assert not any(cache.iterdir())


def test_a_file_put_by_hand_is_taken(server, publish, cache):
    url = server.put(b"", status=503)
    publish(url)
    with pytest.raises(OSError, match="503") as refused:
        load("pol")
    place = Path(re.search(r"put the file at (.*)\.$", str(refused.value))[1])
    place.parent.mkdir()
    for content, fault in ((WHOLE[:-1], "sound gzip file"), (gzip.compress(csv(VALUES[1:])), "40 rows")):
        place.write_bytes(content)
        with pytest.raises(OSError, match=rf"{fault}.* expected, .*\. Replace or remove {place}\.$"):
            load("pol")
    place.write_bytes(WHOLE)
    assert_values(load("pol"))
    assert set(files_in(cache)) == {cache / "pol.parquet", place}
    assert len(server.asked) == 1


def test_an_interrupted_download_leaves_nothing(server, publish, cache, monkeypatch):
    def interrupted(*_):
        assert [path.read_bytes() for path in files_in(cache)] == [WHOLE]
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "_parsed", interrupted)
    publish(server.put(WHOLE))
    with pytest.raises(KeyboardInterrupt):
        load("pol")
    assert not any(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_found_before_the_download(server, publish, cache):
    cache.parent.write_text("a file, not a folder")
    publish(server.put(WHOLE))
    with pytest.raises(PermissionError, match=r"pol\.parquet cannot be written"):
        load("pol")
    assert not server.asked


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_progress_is_for_terminals(stream, server, publish, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", stream)
    publish(server.put(WHOLE))
    load("pol")
    assert bool(re.search(r"pol: 100%", stream.getvalue())) == stream.isatty()
    assert stream.isatty() or not stream.getvalue()
    assert not capsys.readouterr().out


# --- splits ---


def test_a_split_is_the_protocols(table):
    parts = split(load("small"), 2)
    order = np.random.default_rng(2).permutation(103)
    y = table["y"]
    mean, deviation = y[order[:77]].mean(), y[order[:77]].std()
    for part, rows in zip(parts, (order[:77], order[77:92], order[92:]), strict=True):
        np.testing.assert_allclose(part.y, (y[rows] - mean) / deviation)
    assert not np.concatenate([part.x[:, 1] for part in parts]).any()  # the constant column


def test_an_input_that_only_a_test_row_varies_in_is_not_blown_up():
    x = np.full((1000, 1), 0.3)
    order = np.random.default_rng(0).permutation(1000)
    x[order[800]] = 0.9
    assert x[order[:750]].std() > 0  # rounded
    parts = split(Table(x, np.arange(1000.0)), 0)
    assert np.abs(parts.test.x).max() == pytest.approx(0.6)


def test_splits_differ(table):
    assert not np.array_equal(split(load("small"), 0).train.y, split(load("small"), 1).train.y)


def test_a_table_is_left_as_it_is():
    table = Table(np.ones((40, 2)), np.arange(40.0))
    split(table, 0)
    np.testing.assert_array_equal(table.y, np.arange(40.0))
