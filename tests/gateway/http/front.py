"""The HTTP front over a service whose verifier is made up."""

import json

import httpx2
from opentelemetry.trace import NoOpTracer

from cluster.gateway.http.app import create_app
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors
from cluster.speculation.request import Committed
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents

ANSWER = (Committed("he", (1,)), Committed("llo", (2,)), FINISHED)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Front:
    """The routes, and the requests that reached the verifier."""

    def __init__(self, *events, spec=SPEC):
        self.events, self.sent, self.drafting = FakeEvents(*events), [], "connected"
        self.audits = []
        service = GatewayService(spec, Characters(), self._verify, NoOpTracer(), Doors(None))
        app = create_app(service, StatusProbe(service.generate, self._inspect))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://gateway")

    def _verify(self, request):
        self.sent.append(request)
        return self.events

    async def _inspect(self):
        quiet = {"drafting": "connected", "active": 1, "queued": 0, "audits": []}
        return [quiet, {"drafting": self.drafting, "active": 1, "queued": 2, "audits": self.audits}]

    async def post(self, path, body=None, **options):
        return await self.client.post(
            f"/v1/{path}", **({"json": body} if body is not None else {}), **options
        )

    async def chunks(self, path, body):
        answer = await self.post(path, body | {"stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return answer, [json.loads(line) for line in lines]
