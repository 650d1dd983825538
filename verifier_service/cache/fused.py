"""What drafters read of the tokens: fused features, in pages as keys and values are."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cluster.kernels.attention import PAGE


class Fuses(Protocol):
    """Makes rows of features. width, dtype: of a row; together: so many take hardly longer than one."""

    width: int
    dtype: torch.dtype
    together: int

    def fuse(self, features: Tensor) -> Tensor:
        """[rows, m·d] -> [rows, width], each row by itself."""


class FusedRows:
    """A row for each place of the pages; none is read before it was put. Features wait for company or for a
    reader: while nobody drafts from them they cost next to nothing."""

    def __init__(self, pages: int, fuser: Fuses, device: torch.device) -> None:
        self._fuser = fuser
        self._rows = torch.empty((pages, PAGE, fuser.width), dtype=fuser.dtype, device=device)
        # Pages, places and features of steps, oldest first: a place may be put again.
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._count = 0

    def put(self, pages: Tensor, places: Tensor, features: Tensor) -> None:
        """Of a step's rows: int64 [rows], on any device, and [rows, m·d], not changed from here on."""
        self._waiting.append((pages, places, features))
        self._count += len(features)
        if self._count >= self._fuser.together:
            self._settle()

    def of(self, pages: Tensor, places: Tensor) -> Tensor:
        """[rows, width], the caller's own."""
        self._settle()
        device = self._rows.device
        return self._rows[pages.to(device), places.to(device)]

    def move(
        self,
        pages: tuple[int, ...],
        places: tuple[int, ...],
        to_pages: tuple[int, ...],
        to_places: tuple[int, ...],
    ) -> None:
        """All are read before any is written."""
        self._settle()
        self._rows[to_pages, to_places] = self._rows[pages, places]

    def _settle(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._count = self._waiting, [], 0
        fused = self._fuser.fuse(torch.cat([features for _, _, features in waiting]))
        device, row = self._rows.device, 0
        for pages, places, features in waiting:
            end = row + len(features)
            self._rows[pages.to(device), places.to(device)] = fused[row:end]
            row = end
