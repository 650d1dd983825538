"""The one table of errors, and the document that shows it."""

from http import HTTPStatus
from pathlib import Path

import grpc

from cluster.gateway.errors import CAUSES, Reason, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_reason_has_its_cause():
    assert set(CAUSES) == set(Reason)


def test_the_document_shows_the_table():
    assert table() in DOCUMENT.read_text(encoding="utf-8")


def test_the_two_statuses_agree_on_whose_fault_it_is():
    blameless = {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    for cause in CAUSES.values():
        assert (cause.grpc in blameless) == (cause.http >= HTTPStatus.TOO_MANY_REQUESTS)
    retried = {reason for reason, cause in CAUSES.items() if cause.retry_after is not None}
    passing = {Reason.OVERLOADED, Reason.RATE_LIMITED, Reason.VERIFIER_UNAVAILABLE, Reason.VERIFIER_LOST}
    assert retried == passing
