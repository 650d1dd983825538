"""Verification laws and the claims that an answer can make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class Law:
    """A verification law by its name in the field, such as "coupled"; params: (name, value) pairs."""

    name: str
    params: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return self.name

    def param(self, name: str) -> float | None:
        """A parameter's value, None if the law was not given it."""
        return dict(self.params).get(name)


NONE = Law("none")
COUPLED = Law("coupled")
REJECTION = Law("rejection")
BLOCK = Law("block")

# What a deployment serves unless it says otherwise; all that are known: cluster/speculation/catalogue.py.
STRICT_LAWS: dict[str, Law] = {law.name: law for law in (NONE, COUPLED, REJECTION, BLOCK)}


class Claim(IntEnum):
    """What an answer may say of itself, from weakest to strongest; a request's claim is the minimum."""

    LOSSY = 0
    UNPROVEN = 1
    EXACT_LAW = 2
    IDENTICAL_TOKENS = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")

    @property
    def lossless(self) -> bool:
        return self >= Claim.EXACT_LAW
