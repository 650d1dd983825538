"""Whether the cluster can serve: a verified token was generated, lately, and drafts come or do not."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.gateway.errors import Reason, RequestError
from cluster.speculation.law import NONE
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from truedraft.v1 import inference_pb2 as pb

# What a verifier says that has its drafters, or wants none.
_DRAFTING = ("connected", "in-process or off")
# A verdict is good for so long; probes come every few seconds, and each costs a token.
_FRESH_S = 10.0
_PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Status:
    """What probes and GetStatus are told. detail: in words, empty when ready and without an alarm; active,
    queued: of all verifiers; audit_alarm: of live audits, which does not make the cluster less ready."""

    state: pb.State
    detail: str = ""
    active: int = 0
    queued: int = 0
    audit_alarm: bool = False

    @property
    def ready(self) -> bool:
        """Degraded is ready: without drafts the answers are the same, and slower."""
        return self.state in (pb.STATE_READY, pb.STATE_DEGRADED)


class StatusProbe:
    """generate: takes a request to its end, raises RequestError; inspect: what each verifier says of
    itself."""

    def __init__(
        self,
        generate: Callable[[GenerationRequest], Awaitable[None]],
        inspect: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
    ) -> None:
        self._generate = generate
        self._inspect = inspect
        self._lock = asyncio.Lock()
        self._status = Status(pb.STATE_UNREADY, "No token was generated yet.")
        self._until = 0.0

    async def status(self) -> Status:
        """At most some seconds old; one probe at a time."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._status = await self._probe()
                # What is not ready is asked again at once.
                self._until = time.monotonic() + (_FRESH_S if self._status.ready else 0.0)
            return self._status

    async def _probe(self) -> Status:
        try:
            async with asyncio.timeout(_PROBE_S):
                await self._generate(_one_token())
                seen = await self._inspect()
        except RequestError as error:
            # Full queues are those of a cluster that serves.
            if error.reason is not Reason.OVERLOADED:
                return Status(pb.STATE_UNREADY, error.sentence)
            return Status(pb.STATE_READY, "The queues are full.")
        except Exception as error:
            what = "in time" if isinstance(error, TimeoutError) else "at all"
            return Status(pb.STATE_UNREADY, f"The verifiers do not answer {what}.")
        return _status(seen) if seen else Status(pb.STATE_UNREADY, "No verifier says how it is.")


def _status(seen: Sequence[Mapping[str, Any]]) -> Status:
    """Of a cluster that generates tokens."""
    active, queued = (sum(int(verifier[name]) for verifier in seen) for name in ("active", "queued"))
    drafting = all(verifier["drafting"] in _DRAFTING for verifier in seen)
    laws = {audit["law"] for verifier in seen for audit in verifier["audits"] if audit["alarm"]}
    sentences = []
    if not drafting:
        sentences.append("No drafter is in use: plain decoding until one comes.")
    if laws:
        sentences.append(f"Audit alarm: tokens served under {', '.join(sorted(laws))} do not fit the law.")
    state = pb.STATE_READY if drafting else pb.STATE_DEGRADED
    return Status(state, " ".join(sentences), active, queued, bool(laws))


def _one_token() -> GenerationRequest:
    return GenerationRequest(
        request_id=f"probe-{uuid.uuid4().hex}",
        prompt_ids=(0,),
        sampling=Sampling(temperature=0.0),
        law=NONE,
        requested_law=NONE,
        seed=0,
        max_tokens=1,
    )
