"""Where Serve has drafter replicas."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from ray.serve.exceptions import DeploymentUnavailableError

from verifier_service.drafting.resolver import Address

_log = logging.getLogger(__name__)


class _Answers(Protocol):
    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]: ...


class Broadcaster(Protocol):
    """The part of Serve's DeploymentHandle that is used here."""

    def broadcast(self, method_name: str) -> _Answers:
        """Calls a method of every replica."""


class ServeResolver:
    """Asks every replica that Serve's router knows. One that does not answer hides the others for as long as
    it is there, which its health check ends."""

    def __init__(self, handle: Broadcaster, timeout_s: float = 2.0) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    async def replicas(self) -> list[Address] | None:
        try:
            answers = await self._handle.broadcast("whereabouts").results_async(
                timeout_s=self._timeout_s, return_exceptions=True
            )
        except DeploymentUnavailableError:
            return []
        except TimeoutError:
            return None
        except Exception as error:
            _log.debug("no drafter replicas: %s: %s", type(error).__name__, error)
            return None
        # One that has just died answers with its error.
        told = [each for each in answers if not isinstance(each, BaseException)]
        return [Address(str(each["address"]), str(each["replica"]), int(each["sessions"])) for each in told]
