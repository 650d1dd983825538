"""Where the figures of a measurement go, and what is said while they are taken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True)
class Output:
    """as_json: one JSON object on standard output, instead of tables; out: a file for the same object;
    picture: a file to draw to, .svg or .png."""

    as_json: bool
    out: Path | None = None
    picture: Path | None = None

    def give(
        self,
        figures: object,
        render: Callable[[Console], None],
        draw: Callable[[Path], None] | None = None,
    ) -> None:
        """figures: everything, as JSON takes it. Raises ValueError or OSError for a file that cannot be
        written or drawn."""
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        if self.picture is not None and draw is not None:
            draw(self.picture)
        if self.as_json:
            sys.stdout.write(json.dumps(figures) + "\n")
        else:
            render(Console())


def say(what: str) -> None:
    """A line on standard error."""
    print(what, file=sys.stderr)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being measured, and disappears."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Drawn only when told to: a thread that redraws would be timed as well.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as shown:
        task = shown.add_task("starting")

        def tell(what: str) -> None:
            shown.update(task, description=what)
            shown.refresh()

        yield tell
