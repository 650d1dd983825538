"""The routes, for events of a made-up verifier."""

import pytest

from tests.gateway.http.front import ANSWER, Front


@pytest.fixture
def front():
    return lambda *events: Front(*(events or ANSWER))
