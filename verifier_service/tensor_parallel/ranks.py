"""The processes that share a target, and what they say to each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# All ranks must have met by then, and so long after have loaded: a rank may have to be scheduled first.
_START = timedelta(minutes=15)
# Those that follow have no say in when the next step begins.
_EVER = timedelta(days=365)


class RankLostError(RuntimeError):
    """A process that holds a share of the target does not answer any more: no step is possible without it."""


def free_port() -> int:
    """A port of this machine on which ranks can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Ranks:
    """This process among `size` of one machine, of which rank 0 leads; they meet at rank 0's `port` of the
    loopback interface. device: where the target runs; patience_s: how long a rank that others wait for may be
    silent once all are `ready`, one whose process is gone being found at once. Tensors go over gloo on a CPU
    and over NCCL between GPUs, orders over gloo. A process can be in one such group at a time.

    Raises RankLostError, as every method does, when a rank is gone or stands still.
    """

    def __init__(self, rank: int, size: int, port: int, device: torch.device, patience_s: float) -> None:
        self.rank = rank
        self.size = size
        # What ranks say to each other is not for the network.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        patience = timedelta(seconds=patience_s)
        with _lost("the ranks of the target did not come together"):
            dist.init_process_group(
                backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=_START
            )
            self._steps = dist.new_group(backend=backend, timeout=patience)
            self._orders = dist.new_group(backend="gloo", timeout=_EVER if rank else patience)

    def ready(self) -> None:
        """Waits until all have loaded their share."""
        with _lost("the ranks of the target did not load it together"):
            dist.all_reduce(torch.zeros(1))

    def gather(self, part: Tensor) -> Tensor:
        """Every rank's [rows, n] side by side, the bits as they are: [rows, size * n]."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with _lost():
            dist.all_gather(parts, part, group=self._steps)
        return torch.cat(parts, dim=-1)

    def total(self, part: Tensor) -> Tensor:
        """The sum of every rank's tensor, which is overwritten."""
        with _lost():
            dist.all_reduce(part, group=self._steps)
        return part

    def tell(self, order: object) -> None:
        """Rank 0 alone: has all others hear it."""
        with _lost():
            dist.broadcast_object_list([order], src=0, group=self._orders)

    def hear(self) -> Any:
        """What rank 0 tells next; None when it leaves."""
        orders: list[Any] = [None]
        with _lost():
            dist.broadcast_object_list(orders, src=0, group=self._orders)
        return orders[0]

    def close(self) -> None:
        """Leaves the group; if it is rank 0 the others are told."""
        if self.rank == 0:
            with suppress(RankLostError):
                self.tell(None)
        # Connections last as long as what speaks through them.
        del self._steps, self._orders
        dist.destroy_process_group()


@contextmanager
def _lost(what: str = "a process that holds a share of the target does not answer") -> Iterator[None]:
    """Errors of communication in one type; DistBackendError and DistNetworkError are RuntimeErrors."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(what) from error
