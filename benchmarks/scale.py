"""What streaming costs, how memory grows with the rows, and what a second process brings.

    PARAGP_DATA=... python benchmarks/scale.py stream --json       houseelectric from files against the same in memory
    python benchmarks/scale.py growth --rows 10000000,100000000    a made table, written once and deleted afterwards
    PARAGP_DATA=... python benchmarks/scale.py processes --json    two processes of one thread against one
    PARAGP_DATA=... python benchmarks/scale.py constants --json    of the cost model: computing, reading, sending

Each figure comes from a process of its own that makes the statistics (where it streams), starts a model at random rows
and times one epoch of Algorithm 1, reading included; `--steps` ends it earlier. Peak memory is above what the process
had after its imports. The two sides of a comparison take turns, `--repeats` times. What is measured is kept in
results/scale.json, each part by its name.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

import machine
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from paragp.atomic import writing
from paragp.data.files import read_table
from paragp.data.parquet import Source
from paragp.data.rows import Data, Rows, Share, bounds
from paragp.data.stream import Stream, plan, survey
from paragp.data.tables import encode, fit_columns, fit_target
from paragp.gp.methods import METHODS
from paragp.gp.model import ParametricGP
from paragp.training.distributed import Group, joined
from paragp.training.loop import Config, Standing, fit

OUT = Path(__file__).parent / "results" / "scale.json"
METHOD, BETA, SEED = "ppgpr-mfd", 0.05, 0
SMALL_BATCH = 100  # rows: a step that has hardly any
CHUNK = 1_000_000  # rows of a made table that are written at once


# --- in a process of its own ---


def in_memory(place: Path, target: str, group: Group) -> Rows:
    table = read_table(place)
    X = table.drop_columns([target])
    y = table[target].to_numpy().astype(np.float64)
    columns, record = fit_columns(X), fit_target(y, target)
    data = Data(*(torch.from_numpy(part).float() for part in (encode(columns, X), record.encode(y))))
    return Share(data, group.rank, group.count) if group.count > 1 else data


def streamed(place: Path, target: str, group: Group) -> Rows:
    source = Source(place)
    wanted = plan(source, target, None, (), "from_dtype")
    generator = torch.Generator().manual_seed(SEED)
    found = survey(
        source, wanted, start_rows=50_000, validation_rows=0, generator=generator, rank=group.rank, count=group.count,
        gather=group.gather,
    )  # fmt: skip
    return Stream(source, wanted, found, torch.float32, torch.device("cpu"), rank=group.rank, count=group.count)


class _EnoughError(Exception):
    pass


def started(rows: Rows, M: int) -> ParametricGP:
    """A model whose points are random rows."""
    Z = rows.sample.x[torch.randperm(len(rows.sample.y), generator=torch.Generator().manual_seed(SEED))]
    return METHODS[METHOD].model("matern52", Z[:M].clone(), Z[M : 2 * M].clone())


def epoch(rows: Rows, M: int, B: int, steps: int | None, group: Group) -> dict:
    """Seconds of an epoch, or of its first steps after the first."""
    model, method = started(rows, M), METHODS[METHOD]
    times: list[float] = []

    def after(at: Standing) -> None:
        times.append(time.perf_counter())
        if steps is not None and at.step > steps:
            raise _EnoughError

    config = Config(epochs=1, batch_size=B, beta=BETA)
    generator = torch.Generator().manual_seed(SEED)
    with suppress(_EnoughError):
        fit(model, method.objective, rows, config, generator=generator, group=group, on_step=after)
    sizes = np.diff(bounds(rows.size, B))[1 : len(times) - 1]
    seconds = times[-1] - times[1]  # the first step warms up
    return {"rows": rows.size, "steps": len(sizes), "seconds": seconds, "rows_per_s": float(sizes.sum()) / seconds}


def reading(rows: Stream, B: int, blocks: int = 40) -> dict:
    """Seconds a row to decode the files, and to make batches of them on top of that, without reading ahead."""
    block_rows, seconds = 0, time.perf_counter()
    for block in islice(rows.source.read(rows.wanted.all_names), blocks):
        block_rows += len(block.table)
    decode = (time.perf_counter() - seconds) / block_rows
    batch_rows, seconds = 0, time.perf_counter()
    for part in islice(rows._share(), blocks):
        batch_rows += len(part.y)
    whole = (time.perf_counter() - seconds) / batch_rows
    order = torch.randperm(len(rows.sample.y), generator=torch.Generator().manual_seed(SEED))
    taking = machine.timed(lambda: rows.sample.take(order[:B])) / min(B, len(order))
    return {"decode_row_seconds": decode, "encode_row_seconds": max(whole - decode, 0.0) + taking}


def sending(rows: Rows, M: int, group: Group, repeats: int = 50) -> dict:
    """Seconds to add up a gradient, and the numbers it has."""
    parts = [torch.zeros_like(parameter) for parameter in started(rows, M).parameters()]
    seconds = [machine.timed(lambda: group.add(parts)) for _ in range(repeats)]
    return {"numbers": sum(part.numel() for part in parts), "send_seconds": statistics.median(seconds)}


def child(options: argparse.Namespace) -> None:
    base = machine.peak_mb()
    with joined() as group:
        if options.side == "constants":
            rows = streamed(Path(options.place), options.target, group)
            found = sending(rows, options.M, group) if group.count > 1 else reading(rows, options.B)
            if not group.rank:
                print(json.dumps(found))
            return
        start = time.perf_counter()
        rows = (streamed if options.side == "stream" else in_memory)(Path(options.place), options.target, group)
        prepared = time.perf_counter() - start
        found = epoch(rows, options.M, options.B, options.steps, group)
        if not group.rank:
            print(json.dumps(found | {"prepared_seconds": prepared, "extra_mb": machine.peak_mb() - base}))


# --- from outside ---


def measure(options: argparse.Namespace, side: str, place: Path, target: str, *, processes: int = 0) -> dict:
    words = [__file__, "child", "--side", side, "--place", str(place), "--target", target]
    words += ["--M", str(options.M), "--B", str(options.B), *(["--steps", str(options.steps)] if options.steps else [])]
    environment = dict(os.environ)
    start = [sys.executable]
    if processes:
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run([*start, *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def in_turns(calls: dict, repeats: int) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(call())
            row = found[name][-1]
            print(f"{name:<14} {row['rows_per_s'] / 1e3:8.1f} k rows/s   {row['extra_mb']:7.0f} MB", flush=True)
    return found


def middle(rows: list[dict], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def houseelectric() -> tuple[Path, str]:
    place = Path(os.environ["PARAGP_DATA"]) / "uci" / "houseelectric.parquet"
    return place, pq.read_schema(place).names[-1]


def stream(options: argparse.Namespace) -> dict:
    place, target = houseelectric()
    found = in_turns(
        {side: lambda side=side: measure(options, side, place, target) for side in ("memory", "stream")},
        options.repeats,
    )
    tax = middle(found["memory"], "rows_per_s") / middle(found["stream"], "rows_per_s") - 1
    print(
        f"streaming costs {tax:+.1%}; at most {max(row['extra_mb'] for row in found['stream']):.0f} MB beyond imports"
    )
    return {"runs": found, "tax": tax}


def growth(options: argparse.Namespace) -> dict:
    found = {}
    for count in map(int, options.rows.split(",")):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            place = Path(folder) / "made.parquet"
            make(place, count)
            found[count] = measure(options, "stream", place, "y")
            print(count, found[count], flush=True)
    return {"runs": found}


def make(place: Path, rows: int, inputs: int = 10) -> None:
    """A table of smooth functions with noise, written a part at a time."""
    rng = np.random.default_rng(SEED)
    names = [f"x{i}" for i in range(inputs)]
    with pq.ParquetWriter(place, pa.schema([(name, pa.float32()) for name in (*names, "y")])) as writer:
        for start in range(0, rows, CHUNK):
            x = rng.standard_normal((min(CHUNK, rows - start), inputs), dtype=np.float32)
            y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * rng.standard_normal(len(x), dtype=np.float32)
            columns = {name: x[:, i] for i, name in enumerate(names)} | {"y": y.astype(np.float32)}
            writer.write_table(pa.table(columns), row_group_size=CHUNK)


def processes(options: argparse.Namespace) -> dict:
    """The speed-up, and the bound that what every process repeats leaves of two."""
    place, target = houseelectric()
    sides = {f"{count} process": lambda count=count: measure(options, "stream", place, target, processes=count)
             for count in (1, 2)}  # fmt: skip
    found = in_turns(sides, options.repeats)
    one, two = (middle(rows, "rows_per_s") for rows in found.values())
    repeated = step_without_rows(options)
    whole = options.B / one
    bound = whole / (repeated + (whole - repeated) / 2)
    print(
        f"speed-up {two / one:.2f} of {bound:.2f}: a step takes {whole:.2f} s, of which {repeated:.2f} s are repeated"
    )
    return {"runs": found, "speed_up": two / one, "step_seconds": whole, "repeated_seconds": repeated, "bound": bound}


def step_without_rows(options: argparse.Namespace) -> float:
    """Seconds of what every process repeats in a step."""
    small = argparse.Namespace(**{**vars(options), "B": SMALL_BATCH, "steps": 30})
    return SMALL_BATCH / measure(small, "stream", *houseelectric(), processes=1)["rows_per_s"]


def constants(options: argparse.Namespace) -> dict:
    """Of the cost model, for one thread, and what it says of one process and of two."""
    place, target = houseelectric()
    found = {"repeated_seconds": step_without_rows(options)}
    for processes in (1, 2):
        found |= measure(options, "constants", place, target, processes=processes)
    one = statistics.median(
        options.B / measure(options, "stream", place, target, processes=1)["rows_per_s"] for _ in range(options.repeats)
    )
    reading = found["decode_row_seconds"] + found["encode_row_seconds"]
    found["row_seconds"] = (one - found["repeated_seconds"]) / (options.B - SMALL_BATCH) - reading
    found["step_seconds"] = {k: step_seconds(found, options.B, k) for k in (1, 2)}
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    return found


def step_seconds(found: dict, B: int, processes: int) -> float:
    """The cost model: a step of B rows by so many processes of one thread each.

    All repeat what no row enters; each reads, encodes and trains on its share; sending takes as long as between two,
    twice that where there are many (a ring sends each number about twice).
    """
    row = found["row_seconds"] + found["encode_row_seconds"] + found["decode_row_seconds"]
    sent = {1: 0.0, 2: found["send_seconds"]}.get(processes, 2 * found["send_seconds"])
    return found["repeated_seconds"] + B / processes * row + sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["stream", "growth", "processes", "constants", "child"])
    parser.add_argument("--M", type=int, help="1000, for growth 500")
    parser.add_argument("--B", type=int, default=10_000)
    parser.add_argument("--steps", type=int, help="of an epoch; all if left out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default="10000000,100000000", help="of the made tables")
    parser.add_argument("--folder", help="for the made tables")
    parser.add_argument("--out", default=str(OUT), help="where what is measured is kept")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    for name in ("--side", "--place", "--target"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.M = options.M or (500 if options.what == "growth" else 1000)
    if options.what == "child":
        child(options)
        return
    report = {"machine": machine.describe(), "M": options.M, "B": options.B}
    measures = {"stream": stream, "growth": growth, "processes": processes, "constants": constants}
    report |= measures[options.what](options)
    known = json.loads(Path(options.out).read_text(encoding="utf-8")) if Path(options.out).exists() else {}
    with writing(Path(options.out)) as part:
        part.write_text(json.dumps(known | {options.what: report}, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
