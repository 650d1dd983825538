"""What all commands share: where figures go, what is said meanwhile, and errors as one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


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


def fail(code: str, sentence: str, as_json: bool, exit_code: int) -> NoReturn:
    """Ends the command: the sentence on standard error, or both in an object on standard output."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": sentence}}, ensure_ascii=False))
    else:
        print(sentence, file=sys.stderr)
    raise typer.Exit(exit_code)


@contextmanager
def failures(as_json: bool, bad: str = "INVALID_ARGUMENT", stopped: str = "stopped") -> Iterator[None]:
    """Ends the command with one sentence on expected failures: a model that cannot be loaded, a cluster that
    does not start, an unusable argument or file, Ctrl-C.

    bad: the error code of arguments and files; stopped: the sentence for Ctrl-C.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        if _is(error, "cluster.checkpoints.errors", "CheckpointError") or _is(
            error, "cluster.app", "StartError"
        ):
            fail("START_FAILED", _sentence(error), as_json, 1)
        if isinstance(error, RuntimeError):
            raise
        fail(bad, _sentence(error), as_json, 2)
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        raise typer.Exit(130) from None


def _is(error: Exception, module: str, name: str) -> bool:
    """Of a type whose module takes seconds to import, and has been imported if the error is of it."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    return text if text.endswith((".", "!", "?")) else f"{text}."
