"""Whatever the OpenAPI document allows, and what it does not, is answered or refused: nothing is a fault."""

import os

import schemathesis
from hypothesis import HealthCheck, settings
from opentelemetry.trace import NoOpTracer

from cluster.gateway.http.app import create_app
from cluster.gateway.http.guard import operators_only
from cluster.gateway.http.metrics import metrics_router
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors
from cluster.speculation.request import Committed
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents


async def inspect():
    return [{"drafting": "connected", "active": 0, "queued": 0, "audits": []}]


async def collect():
    return b"# HELP a b"


def app():
    events = (Committed("he", (1,)), FINISHED)
    doors = Doors(None)
    service = GatewayService(SPEC, Characters(), lambda request: FakeEvents(*events), NoOpTracer(), doors)
    made = create_app(service, StatusProbe(service.generate, inspect))
    made.include_router(metrics_router(collect, operators_only(doors)))
    return made


schema = schemathesis.openapi.from_asgi("/openapi.json", app())
checks = schemathesis.checks
CHECKS = [
    checks.not_a_server_error,
    checks.CHECKS.get_one("status_code_conformance"),
    checks.CHECKS.get_one("content_type_conformance"),
    checks.CHECKS.get_one("response_schema_conformance"),
]


@schema.parametrize()
@settings(
    # Many more with `make verify`.
    max_examples=int(os.environ.get("TRUEDRAFT_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_nothing_is_a_fault(case):
    case.call_and_validate(checks=CHECKS)
