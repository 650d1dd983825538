"""Clients of InferenceService, blocking and for asyncio: what the `truedraft` command uses."""

from cluster.client.answer import Answer, as_dict, provenance_block, take
from cluster.client.ask import Ask
from cluster.client.awaiting import AsyncClient
from cluster.client.blocking import Client
from cluster.client.errors import RequestFailedError

__all__ = [
    "Answer",
    "Ask",
    "AsyncClient",
    "Client",
    "RequestFailedError",
    "as_dict",
    "provenance_block",
    "take",
]
