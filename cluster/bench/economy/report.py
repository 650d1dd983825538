"""`truedraft plan`: the table on the terminal, as JSON and as a picture."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.economy.costs import Economy, break_even, over_round_trips, ways
from cluster.pictures import drawing

_PRICES = [0.05 * k for k in range(1, 101)]


def as_dict(given: Economy) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "given": asdict(given),
        "acceptance_length": given.acceptance_length,
        "drafters_per_verifier": given.drafters,
        "groups": given.groups,
        "ways": [asdict(way) | {"dollars_per_million": way.million} for way in ways(given)],
        "break_even_drafter_price": break_even(given),
    }


def render(given: Economy, console: Console) -> None:
    """A table of the ways, and the price below which drafting apart pays."""
    table = Table("", "tokens/s, each request", "tokens/s, saturated", "$/hour", "$/million tokens")
    for way in ways(given):
        cells = (f"{way.stream:.1f}", f"{way.total:.0f}", f"{way.hourly:.2f}", f"{way.million:.3f}")
        table.add_row(way.name, *cells)
    console.print(table)
    console.print(
        f"{given.acceptance_length:.2f} tokens a round; {given.drafters:.2f} drafter GPUs for each verifier, "
        f"whose sequences keep it busy in {given.groups} groups."
    )
    price = break_even(given)
    if price == 0.0:
        console.print("Drafters on GPUs of their own do not pay here, whatever they cost.")
    else:
        verdict = "pays" if given.drafter_price < price else "does not pay"
        console.print(
            f"Drafting apart {verdict} at ${given.drafter_price:.2f}: it does below ${price:.2f} an hour."
        )


def draw(given: Economy, path: Path) -> None:
    """Cost over the price of a drafter's GPU, and each request's speed over the round trip."""
    with drawing(path, 10, 3.8) as figure:
        left, right = figure.subplots(1, 2)
        every = [ways(replace(given, drafter_price=price)) for price in _PRICES]
        for index, way in enumerate(ways(given)):
            left.plot(_PRICES, [each[index].million for each in every], label=way.name)
        left.axvline(given.drafter_price, color="grey", linewidth=0.8, linestyle=":")
        left.set(xlabel="price of a drafter's GPU, $/hour", ylabel="$ per million tokens", ylim=(0, None))
        left.legend()
        trips = [given.verify_ms * k / 20 for k in range(101)]
        right.plot(*zip(*over_round_trips(given, trips), strict=True))
        right.axhline(1.0, color="grey", linewidth=0.8)
        right.axvline(given.round_trip_ms, color="grey", linewidth=0.8, linestyle=":")
        right.set(xlabel="round trip, ms", ylabel="each request, times the verifier alone", ylim=(0, None))
