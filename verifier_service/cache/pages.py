"""Which pages of a pool are free, which are held by sequences, and which are kept for sequences to come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class OutOfPagesError(RuntimeError):
    """The pool holds no further token."""


class Pages:
    """Pages by their numbers, 0 to count - 1.

    A page is held by one sequence or several, or else kept, if it has a name under which it can be had again,
    or else free. Kept pages make room for others, the ones longest without use first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(reversed(range(count)))
        self._holders = [0] * count
        self._by_name: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        # Longest without use first.
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Pages that can be taken: free ones and kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def held(self) -> int:
        """Pages that sequences hold, each counted once."""
        return self.count - self.free

    def is_held(self, page: int) -> bool:
        return self._holders[page] > 0

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """`count` pages for one sequence, and those of them that still have what they were kept for.

        Raises OutOfPagesError, and takes none then.
        """
        if count > self.free:
            raise OutOfPagesError(f"{count} pages are asked for and {self.free} can be had")
        fresh = min(count, len(self._free))
        taken = [self._free.pop() for _ in range(fresh)]
        evicted = [self._kept.popitem(last=False)[0] for _ in range(count - fresh)]
        self.forget(evicted)
        taken += evicted
        for page in taken:
            self._holders[page] = 1
        return taken, evicted

    def share(self, page: int) -> None:
        """One more sequence holds a page that is held or kept."""
        self._holders[page] += 1
        self._kept.pop(page, None)

    def drop(self, pages: Iterable[int]) -> list[int]:
        """A sequence no longer holds these; which of them are free now. The last ones make room first."""
        freed = []
        for page in reversed([*pages]):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._names:
                    self._kept[page] = None
                else:
                    self._free.append(page)
                    freed.append(page)
        return freed

    def name(self, page: int, name: bytes) -> None:
        """What a held page contains can be had under this name, unless another page has it already."""
        if name not in self._by_name and page not in self._names:
            self._by_name[name] = page
            self._names[page] = name

    def find(self, name: bytes) -> int | None:
        """The page of this name."""
        return self._by_name.get(name)

    def forget(self, pages: Iterable[int]) -> None:
        """Takes the names away of pages that are not kept."""
        for page in pages:
            name = self._names.pop(page, None)
            if name is not None:
                del self._by_name[name]
