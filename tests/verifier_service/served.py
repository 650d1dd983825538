"""The gateway's service and its HTTP front over a real engine in a thread: all of a cluster but Ray."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace

import httpx2
import openai
from opentelemetry.trace import NoOpTracer

from cluster.gateway.http.app import create_app
from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors
from cluster.speculation.request import Committed
from tests.gateway.helpers import SPEC

SERVED = replace(
    SPEC,
    laws=("none", "coupled", "rejection", "block"),
    max_tokens=None,
    first_token_timeout_s=120.0,
    max_requests=1024,
)


class Events:
    """An engine's events of one request, handed over to the loop of whoever waits."""

    def __init__(self, engine, request):
        loop, self._events = asyncio.get_running_loop(), asyncio.Queue()
        self._engine, self._request = engine, request
        engine.submit(request, lambda event: loop.call_soon_threadsafe(self._events.put_nowait, event))

    async def __aiter__(self):
        event = await self._events.get()
        while isinstance(event, Committed):
            yield event
            event = await self._events.get()
        yield event

    def cancel(self):
        self._engine.cancel(self._request.request_id)


class Served:
    """service: the gateway's; engine: the verifier's; client: OpenAI's, over the HTTP front."""

    def __init__(self, engine, loaded):
        prompting = TokenizerPrompting(loaded.tokenizer, loaded.model.vocab_size, loaded.model.context)
        self.engine = engine
        self.service = GatewayService(
            SERVED, prompting, lambda request: Events(engine, request), NoOpTracer(), Doors(None)
        )
        app = create_app(self.service, StatusProbe(self.service.generate, self._inspect))
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        self.client = openai.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="none", http_client=http, max_retries=0
        )

    async def _inspect(self):
        load = self.engine.load()
        return [{"drafting": "connected", "active": load.active, "queued": load.queued, "audits": []}]


@contextmanager
def served(engine, loaded):
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        yield Served(engine, loaded)
    finally:
        engine.stop()
        thread.join()
