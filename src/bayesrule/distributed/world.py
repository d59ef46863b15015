"""The processes that train together, as ``torchrun`` started them."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

STARTED_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_alone = 0


@dataclass(frozen=True)
class World:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0


def join() -> World:
    """Join the other processes of ``torchrun``, the first time it is called; one process is a world of its own.

    On a machine with GPUs the process takes the one of its local rank: call it before anything is moved to ``"cuda"``.
    """
    if _alone:
        return World()
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    announced = announced_world()
    if announced.size == 1:
        return announced
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    _start()
    atexit.register(_leave)
    return World(dist.get_rank(), dist.get_world_size())


def announced_world() -> World:
    """What the environment says, whether or not the processes have joined."""
    if any(name not in os.environ for name in STARTED_BY_TORCHRUN):
        return World()
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


@contextmanager
def alone() -> Iterator[None]:
    """Inside, every process trains for itself: for members of an ensemble, or where only one process works."""
    global _alone  # noqa: PLW0603, the process has one world
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def restarted() -> bool:
    """Whether ``torchrun`` started the processes again after one had failed: a run then goes on from its checkpoint."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _start() -> None:
    """As torch does by itself, but that processes which were started again do not find the addresses of the dead ones.

    The agent of a single machine keeps one store for all attempts, in which those still stand; on several machines a
    new attempt has a new store, and the machines may count their attempts differently.
    """
    if not restarted() or os.environ.get("GROUP_WORLD_SIZE") != "1":
        dist.init_process_group()
        return
    store, rank, size = next(iter(dist.rendezvous("env://")))
    attempt = f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}"
    dist.init_process_group(store=dist.PrefixStore(attempt, store), rank=rank, world_size=size)


def _leave() -> None:
    if dist.is_initialized():
        gc.collect()  # what refers to the group, as torch's DDP in cycles of references, must not outlive it
        dist.destroy_process_group()
