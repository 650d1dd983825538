"""A collector that is down is asked less and less often, and one that is back at once."""

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from cluster.telemetry.patience import Patient

UP, DOWN = SpanExportResult.SUCCESS, SpanExportResult.FAILURE


class Scripted(SpanExporter):
    def __init__(self, *results):
        self._results = iter(results)

    def export(self, spans):
        return next(self._results)


class Waits:
    """Stands for the event: how long was waited for it."""

    def __init__(self):
        self.seconds = []

    def wait(self, seconds):
        self.seconds.append(seconds)


def test_pauses_grow_and_are_over_with_the_first_success():
    patient = Patient(Scripted(DOWN, DOWN, DOWN, DOWN, DOWN, DOWN, UP, DOWN))
    waits = patient._hurried = Waits()
    results = [patient.export([]) for _ in range(8)]
    assert results == [DOWN] * 6 + [UP, DOWN]
    assert waits.seconds == [2, 4, 8, 16, 30, 30, 2]


def test_at_the_end_nothing_is_waited_for():
    patient = Patient(Scripted(*[DOWN] * 20))
    patient.hurry()
    # Minutes, if it did.
    assert [patient.export([]) for _ in range(20)] == [DOWN] * 20
