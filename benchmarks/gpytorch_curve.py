"""GPyTorch trained as the paper trained it, scored after epochs: the curve that `quality.py` compares with.

    PARAGP_DATA=... python benchmarks/gpytorch_curve.py pol

One file per data set and method under baselines/, with machine and date; a run that was stopped goes on where it was.
As the paper trained: k-means, M points, batches of a thousand, Adam at .01 that drops tenfold at half and at three
quarters of the epochs, the first beta_reg of the grid (.05 for PPGPR), and the last epoch's state, without validation
rows. The scores do not depend on what else the machine does, the seconds do: they are the median of a few epochs timed
by `--time`, with nothing else running, times the epoch. There an epoch of ours follows each of GPyTorch's, so that both
see the same machine: its speed wanders by a third from minute to minute.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import time

import gpytorch
import machine
import torch
from peers import PEERS, PeerGP

from paragp.atomic import writing
from paragp.data.datasets import load, split
from paragp.data.rows import Data, batches
from paragp.gp.methods import METHODS
from paragp.paper.uci import scores, tensors
from paragp.predictive import PredictiveDistribution
from paragp.training.inducing import kmeans
from paragp.training.loop import DECAY, MILESTONES
from paragp.training.recipe import Settings
from paragp.training.train import train as train_ours

FOLDER = pathlib.Path(__file__).parent / "baselines"
SCORED = (1, 2, 3, 5, 7, *range(10, 401, 5))  # epochs after which the model is scored
BATCH, M, SEED, RATE = 1000, 1000, 0, 0.01
TIMED = 5  # epochs of each side, after ours has started


def place(name: str, method: str) -> pathlib.Path:
    return FOLDER / f"gpytorch-{method}-{name}.json"


class Peer:
    """GPyTorch's model, objective, optimizer and schedule, as its tutorials put them together."""

    def __init__(self, method: str, train: Data, epochs: int) -> None:
        self.train = train
        self.generator = torch.Generator().manual_seed(SEED)
        start = time.perf_counter()
        Z = kmeans(train.x, M, generator=self.generator)
        self.start_seconds = time.perf_counter() - start
        self.model = PeerGP(PEERS[method], Z)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.objective = PEERS[method].objective(
            self.likelihood, self.model, num_data=len(train.y), beta=METHODS[method].beta[0]
        )
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.likelihood.parameters()], lr=RATE)
        drops = [round(fraction * epochs) for fraction in MILESTONES]
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, drops, gamma=DECAY)

    def epoch(self) -> None:
        self.model.train()
        self.likelihood.train()
        for batch in batches(self.train, BATCH, self.generator):
            self.optimizer.zero_grad()
            loss = -self.objective(self.model(batch.x), batch.y)
            loss.sum().backward()
            self.optimizer.step()
        self.schedule.step()

    def scores(self, test: Data) -> dict[str, float]:
        self.model.eval()
        self.likelihood.eval()
        with torch.no_grad():
            parts = [self.likelihood(self.model(x)) for x in test.x.split(500)]
            mean = torch.cat([part.mean.reshape(-1) for part in parts]).double().numpy()
            var = torch.cat([part.variance.reshape(-1) for part in parts]).double().numpy()
            noise = float(self.likelihood.noise)
        return scores(PredictiveDistribution(mean, (var - noise).clip(0), noise), test.y.double().numpy())

    def state(self) -> dict:
        parts = ("model", "likelihood", "optimizer", "schedule")
        return {part: getattr(self, part).state_dict() for part in parts} | {"generator": self.generator.get_state()}

    def restore(self, state: dict) -> None:
        for part in ("model", "likelihood", "optimizer", "schedule"):
            getattr(self, part).load_state_dict(state[part])
        self.generator.set_state(state["generator"])


def run(name: str, method: str, epochs: int, last: int, *, anew: bool = False) -> dict:
    """The curve up to epoch `last` of a training of `epochs`, stored after each score."""
    parts = [tensors(part) for part in split(load(name), 0)]
    train, test = parts[0], parts[1]
    peer = Peer(method, train, epochs)
    found = {
        "dataset": name, "method": method, "split": 0, "seed": SEED, "M": M, "B": BATCH, "epochs": epochs,
        "beta": METHODS[method].beta[0], "machine": machine.describe(), "curve": [],
    }  # fmt: skip
    file, saved = place(name, method), place(name, method).with_suffix(".pt")
    done = 0
    if file.exists() and saved.exists() and not anew:
        state = torch.load(saved, weights_only=True)
        peer.restore(state)
        done = state["epoch"]
        found |= json.loads(file.read_text(encoding="utf-8"))
        found["curve"] = [point for point in found["curve"] if point["epoch"] <= done]
    elif file.exists() and not anew:
        raise FileExistsError(f"{file} is there, but not the state to go on from ({saved.name}). --rerun starts anew.")
    for epoch in range(done + 1, last + 1):
        peer.epoch()
        if epoch not in SCORED and epoch != last:
            continue
        found["curve"].append({"epoch": epoch, **peer.scores(test)})
        store(found)
        with writing(saved) as part:
            torch.save(peer.state() | {"epoch": epoch}, part)
        print(name, found["curve"][-1], flush=True)
    return found


class Enough(Exception):
    """So many epochs were timed."""


def timing(name: str, method: str, epochs: int) -> None:
    """Adds the seconds of both sides to a stored curve: of the start, and of epochs taken in turns."""
    found = json.loads(place(name, method).read_text(encoding="utf-8"))
    rows, _, valid = (tensors(part) for part in split(load(name), 0))
    peer = Peer(method, rows, epochs)
    peer.epoch()  # warm
    theirs: list[float] = []
    ours: list[float] = []
    clock = time.perf_counter()

    def take_turns(_: object) -> None:
        nonlocal clock
        ours.append(time.perf_counter() - clock)
        theirs.append(machine.timed(peer.epoch))
        if len(ours) > TIMED:
            raise Enough
        clock = time.perf_counter()

    with contextlib.suppress(Enough):
        generator = torch.Generator().manual_seed(SEED)
        train_ours(Settings(METHODS[method]), rows, valid, generator=generator, on_epoch=take_turns)
    found["timing"] = {
        "start_seconds": peer.start_seconds, "epoch_seconds": statistics.median(theirs), "epochs_timed": theirs,
        "ours": {"first_seconds": ours[0], "epoch_seconds": statistics.median(ours[1:]), "epochs_timed": ours[1:]},
        "machine": machine.describe(),
    }  # fmt: skip
    store(found)
    print(name, found["timing"])


def by_seconds(found: dict) -> list[dict]:
    """The curve's scores with the seconds at which they were reached."""
    if "timing" not in found:
        name = found["dataset"]
        raise ValueError(
            f"The curve of {name} was not timed. Run, with nothing beside: gpytorch_curve.py {name} --time"
        )
    first, each = found["timing"]["start_seconds"], found["timing"]["epoch_seconds"]
    return [point | {"seconds": first + point["epoch"] * each} for point in found["curve"]]


def ours_by_seconds(curve: list[dict], found: dict) -> list[dict]:
    """Our curve's scores with the seconds at which epochs taken in turns with GPyTorch's reach them."""
    ours = found["timing"]["ours"]
    return [point | {"seconds": ours["first_seconds"] + i * ours["epoch_seconds"]} for i, point in enumerate(curve)]


def store(found: dict) -> None:
    with writing(place(found["dataset"], found["method"])) as file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--method", default="ppgpr-mfd", choices=list(PEERS))
    parser.add_argument("--epochs", type=int, default=400, help="that the learning rate's schedule is made for")
    parser.add_argument("--last", type=int, help="the epoch to stop at, if not the end")
    parser.add_argument("--rerun", action="store_true", help="from the first epoch, over the stored curve")
    parser.add_argument("--time", action="store_true", help="time a few epochs instead, in turns with ours")
    options = parser.parse_args()
    for name in options.datasets:
        if options.time:
            timing(name, options.method, options.epochs)
        else:
            run(name, options.method, options.epochs, options.last or options.epochs, anew=options.rerun)


if __name__ == "__main__":
    main()
