"""What is counted of the stream to a drafter."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from cluster.telemetry import instruments as names
from cluster.telemetry.observing import counter, gauge
from verifier_service.drafting.remote import RemoteDrafting


def register_drafting(meter: Meter, drafting: RemoteDrafting) -> None:
    """The instruments of the stream to a drafter."""
    gauge(
        meter,
        names.DRAFTER_CONNECTED,
        "1 with a stream to some drafter",
        lambda: [(float(drafting.state == "connected"), {})],
    )
    counter(
        meter,
        names.DROPPED,
        "Messages of drafters that answered nothing that was asked",
        lambda: [(count, {names.REASON: reason}) for reason, count in list(drafting.dropped.items())],
    )
    counter(
        meter,
        names.AHEAD,
        "Tokens drafted before they were asked for",
        lambda: [(count, {names.OUTCOME: outcome}) for outcome, count in list(drafting.ahead.items())],
    )
    counter(
        meter,
        names.WIRE_BYTES,
        "Bytes of messages between verifier and drafter",
        lambda: [
            (count, {names.DIRECTION: direction}) for direction, count in list(drafting.traffic.items())
        ],
    )
