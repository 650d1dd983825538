"""Instruments that read plain numbers when they are collected: counting costs no more than adding."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

Labels = dict[str, str]
Read = Callable[[], Iterable[tuple[float, Labels]]]


def _observe(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(value, labels) for value, labels in read()]


def counter(meter: Meter, name: str, what: str, read: Read) -> None:
    meter.create_observable_counter(name, [_observe(read)], description=what)


def gauge(meter: Meter, name: str, what: str, read: Read, unit: str = "") -> None:
    meter.create_observable_gauge(name, [_observe(read)], unit=unit, description=what)
