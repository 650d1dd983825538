"""Long measurements and checks in parts: the result of each is appended to a file, from which a stopped run
resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Record = dict[str, Any]


class Part(Protocol):
    """key: names the part in the file."""

    @property
    def key(self) -> str: ...


P = TypeVar("P", bound=Part)


class Progress(Generic[P]):
    """What is known of a check. records: by the key of their part; name: of the field that holds the key;
    setting: fields that a record must have to count, and gets."""

    def __init__(self, path: Path, name: str, setting: Mapping[str, Any] | None = None) -> None:
        self._path, self._name, self._setting = path, name, dict(setting or {})
        lines = path.read_text().splitlines() if path.exists() else []
        found = [record for record in map(json.loads, lines) if record.items() >= self._setting.items()]
        self.records: dict[str, Record] = {record[name]: record for record in found}
        self._began = time.monotonic()

    def run(self, parts: Iterable[P], minutes: float, check: Callable[[P], Record]) -> None:
        """Checks the parts that are left, starting none after `minutes`; check: makes a part's record."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as out:
            for part in parts:
                if part.key in self.records or time.monotonic() - self._began > 60 * minutes:
                    continue
                started = time.monotonic()
                found = check(part)
                seconds = round(time.monotonic() - started, 2)
                record = self._setting | {self._name: part.key} | found | {"seconds": seconds}
                self.records[part.key] = record
                out.write(json.dumps(record) + "\n")
                out.flush()

    @property
    def spent(self) -> str:
        """In words, the time of all records and of this run."""
        whole = sum(record["seconds"] for record in self.records.values())
        return f"({whole:.0f} s in all, {time.monotonic() - self._began:.0f} s now)"
