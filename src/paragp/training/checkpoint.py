"""Checkpoints: where a training stands, on disk, so that one that was killed ends as if it had not been.

A checkpoint is one file, written whole or not at all; the last two are kept, and a damaged one is passed over for the
one before. It holds all that the rest of the training depends on, and nothing that a clock decides: a training that
goes on from it comes to the same model, to the bit, with the same number of threads.
"""

import hashlib
import io
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paragp.atomic import check_place, writing
from paragp.training.distributed import ALONE, Group

NAME = re.compile(r"checkpoint-(\d+)\.pt")
KEPT = 2
SECONDS = 300.0  # between two checkpoints within an epoch


class StoppedError(Exception):
    """The training was asked to stop (SIGTERM), and where it stood is on disk."""


class Checkpoint:
    """The checkpoints of one training in a folder.

    `identity` says what is trained on what: a training goes on only from its own checkpoints. Of a `group` of processes
    the first one writes.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        identity: dict[str, Any],
        *,
        resume: bool = False,
        seconds: float = SECONDS,
        group: Group = ALONE,
    ) -> None:
        self.folder, self.identity, self.seconds, self.group = Path(folder), identity, seconds, group
        self.threads = torch.get_num_threads() * group.count
        self.asked_to_stop = False
        self.last = time.monotonic()
        check_place(self.folder / "checkpoint")
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # torchrun has started us again
        found: list[Any] = [None]
        if group.rank == 0:
            found = [self._read()]
        self.state: dict[str, Any] | None = group.gather(found[0])[0]
        if self.state is None:
            if resume and not restarted:
                raise FileNotFoundError(f"There is no checkpoint in {self.folder} to go on from.")
            return
        if not (resume or restarted):
            if not self.state["done"]:
                raise FileExistsError(
                    f"{self.folder} holds the checkpoint of a training that has not ended. Go on with it (resume=True, "
                    "or --resume), or choose another folder."
                )
            self.state = None
            return
        self._check_identity(self.state)

    def _check_identity(self, state: dict[str, Any]) -> None:
        known = state["identity"]
        for name in dict.fromkeys([*known, *self.identity]):
            if known.get(name) != self.identity.get(name):
                raise ValueError(
                    f"The checkpoint in {self.folder} is of another training: {name} was {known.get(name)!r} and is "
                    f"{self.identity.get(name)!r} now. Start with what it was started with, or in another folder."
                )
        if state["threads"] != self.threads:
            warnings.warn(
                f"The checkpoint in {self.folder} was made with {state['threads']} threads in all, there are "
                f"{self.threads} now: sums may differ in their last digits.",
                RuntimeWarning,
                stacklevel=3,
            )

    @property
    def files(self) -> list[Path]:
        """From the oldest to the newest."""
        found = [path for path in self.folder.glob("checkpoint-*.pt") if NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(NAME.fullmatch(path.name)[1]))  # type: ignore[index]

    def _read(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole; what is not whole goes."""
        for part in self.folder.glob(".checkpoint-*"):  # was being written when its writer was killed
            part.unlink(missing_ok=True)
        for file in reversed(self.files):
            try:
                digest, _, content = file.read_bytes().partition(b"\n")
                if hashlib.sha256(content).hexdigest().encode() != digest:
                    raise ValueError("its checksum does not fit")
                state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
            except Exception as error:  # whatever is wrong with it
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                warnings.warn(f"{file} is damaged and passed over: {reason[:100]}", RuntimeWarning, stacklevel=3)
                file.unlink(missing_ok=True)
            else:
                return state
        return None

    def offer(self, state: Callable[[], dict[str, Any]], *, epoch: bool = False) -> None:
        """Between two steps: write if an epoch begins, if it has been long, or if one process was asked to stop."""
        late = self.group.rank == 0 and time.monotonic() - self.last > self.seconds
        stop, late = self.group.any(self.asked_to_stop, late)
        kept = self.write(state()) if epoch or stop or late else True
        if stop:
            where = f"{self.folder} is where it goes on (resume=True, or --resume)" if kept else "it was not kept"
            raise StoppedError(f"Stopped by a signal; {where}.")

    def write(self, state: dict[str, Any], *, done: bool = False) -> bool:
        """The newest checkpoint; a disk without room is reported, and the ones before stay. Whether it was written."""
        self.last = time.monotonic()
        if self.group.rank:
            return True
        files = self.files
        number = 1 + (int(NAME.fullmatch(files[-1].name)[1]) if files else 0)  # type: ignore[index]
        content = io.BytesIO()
        torch.save({**state, "identity": self.identity, "threads": self.threads, "done": done}, content)
        try:
            with writing(self.folder / f"checkpoint-{number}.pt") as part, part.open("wb") as opened:
                opened.write(hashlib.sha256(content.getbuffer()).hexdigest().encode() + b"\n")
                opened.write(content.getbuffer())
        except OSError as error:
            warnings.warn(
                f"No checkpoint could be written to {self.folder}: {error.strerror or error}. The training goes on; "
                "the one before is still there.",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        for file in files[: len(files) + 1 - KEPT]:
            file.unlink(missing_ok=True)
        return True

    @contextmanager
    def minding_signals(self) -> Iterator[None]:
        """SIGTERM asks for a checkpoint and an end at the next step, for a while."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(*_: object) -> None:
            self.asked_to_stop = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
