"""What evidence is kept apart by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """drafter: its model; domain: from the deployment's list, so that there are few."""

    law: str
    drafter: str
    domain: str
