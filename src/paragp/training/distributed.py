"""More than one process: each takes its share of every batch, and sums are made over all of them.

    torchrun --nproc-per-node 2 -m paragp fit ...

Every process holds the whole model and repeats what no row enters (factorisations, the optimizer's step, validation);
only gradients, and the sums of the closed-form solves, are sent. What a batch holds does not depend on the number of
processes, so neither does the result, up to the order of sums.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True)
class Group:
    """The processes that train one model; alone, nothing is sent."""

    rank: int = 0
    count: int = 1

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its sum over all processes, in one message."""
        if self.count > 1:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.all_reduce(flat)
            _scatter(flat, tensors)

    def agree(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes that of the first process."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def any(self, *asked: bool) -> list[bool]:
        """Whether any process says so, of each."""
        found = torch.tensor([float(one) for one in asked])
        self.add([found])
        return [bool(one) for one in found > 0]

    def gather(self, item: Any) -> list[Any]:
        """The items of all processes, in their order."""
        if self.count == 1:
            return [item]
        items: list[Any] = [None] * self.count
        dist.all_gather_object(items, item)
        return items


ALONE = Group()


def _scatter(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def current() -> Group:
    """The processes that this one was started with and has joined."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Group(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that torchrun started with this one, if it did, for a while."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current()
        return
    if torch.cuda.is_available():  # each process its own
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # The store outlives a restart. Without a name of their own, restarted processes may find where those before them
    # listened, and wait for ever for the dead.
    store, rank, count = next(rendezvous("env://"))
    named = PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=named, rank=rank, world_size=count)
    try:
        with _own_cores():
            yield current()
    finally:
        dist.destroy_process_group()


@contextmanager
def _own_cores() -> Iterator[None]:
    """Keep to this process's share of the machine's cores for a while, unless someone has assigned cores already.

    Each step waits for the slowest process, and processes that move between cores take turns at being that.
    """
    here, local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    all_cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not 1 < here <= len(all_cores) or len(all_cores) != os.cpu_count():
        yield
        return
    os.sched_setaffinity(0, all_cores[local * len(all_cores) // here : (local + 1) * len(all_cores) // here])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)
