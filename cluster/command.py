"""What every command of `truedraft` has in common: its answer for machines, and errors as one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


def fail(code: str, sentence: str, as_json: bool, exit_code: int) -> NoReturn:
    """Ends the command: the sentence on standard error, or both in an object on standard output."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": sentence}}, ensure_ascii=False))
    else:
        print(sentence, file=sys.stderr)
    raise typer.Exit(exit_code)


@contextmanager
def failures(as_json: bool, bad: str = "INVALID_ARGUMENT", stopped: str = "stopped") -> Iterator[None]:
    """Ends the command in one sentence for what may go wrong: a model that cannot be had, a cluster that does
    not start, an argument or file that will not do, Ctrl-C.

    bad: the code of wrong arguments and files; stopped: what Ctrl-C is answered with.
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
    return text if text.endswith((".", "!", "?")) else f"{text}."
