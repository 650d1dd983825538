"""What planners are shown can hold no token that is not verified."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import mypy.api
import pytest

import cluster.scheduling
from cluster.scheduling import History, Round

PLAIN = {int, float, bool, str, type(None)}


def leaves(kind):
    """The plain types that values of a type are made of; fails for a type that could hold anything."""
    if kind in PLAIN:
        return {kind}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return set().union(*(leaves(hints[field.name]) for field in fields(kind)))
    arguments = [each for each in get_args(kind) if each is not Ellipsis]
    assert arguments, f"{kind} could hold a token"
    return set().union(*(leaves(each) for each in arguments))


def test_a_history_is_made_of_counts_times_and_labels_and_cannot_be_changed():
    assert leaves(History) <= PLAIN
    # What may come in sequence are rounds, and of a round statistics that precede its tokens, and which of
    # siblings were accepted.
    hints = get_type_hints(Round)
    assert [name for name, kind in hints.items() if get_args(kind)] == ["max_q", "ranks"]
    assert get_args(hints["max_q"])[0] is float
    with pytest.raises(FrozenInstanceError):
        History(1, 2).committed = 3


PLANNER = """
from collections.abc import Sequence
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier

def plan(history: History) -> int:
    return history.{asked}

def admit(frontier: Frontier, budget: Budget) -> object:
    return frontier.{shown}
"""


def test_mypy_refuses_a_planner_that_asks_for_drafted_tokens(tmp_path):
    package = Path(cluster.scheduling.__file__).parent
    known = [str(package / f"{name}.py") for name in ("history", "planner", "cost", "calibration")]

    def complaints(asked, shown):
        snippet = tmp_path / f"planner_{asked}.py"
        snippet.write_text(PLANNER.format(asked=asked, shown=shown))
        # Nothing but these files is read: the types of drafts are not even within reach.
        flags = ["--strict", "--follow-imports=skip", "--explicit-package-bases"]
        flags += ["--cache-dir", str(tmp_path / "cache"), "--allow-subclassing-any"]
        return mypy.api.run([*flags, str(snippet), *known])[0]

    assert "Success" in complaints("committed", "next_max_q")
    refused = complaints("drafted_tokens", "tokens")
    assert '"History" has no attribute "drafted_tokens"' in refused
    assert '"Frontier" has no attribute "tokens"' in refused
