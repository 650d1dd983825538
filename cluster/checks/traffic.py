"""Requests by chance: of all laws and lengths, from several tenants, and some that no client should send."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from cluster.bench.encoding import prompting
from cluster.bench.prompts import VARIED
from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.spec import GatewaySpec
from cluster.gateway.validation import Identity, validate
from cluster.speculation.catalogue import LAWS
from cluster.speculation.request import GenerationRequest
from truedraft.v1 import inference_pb2 as pb
from verifier_service.build import LoadedTarget

_TEXTS = 24
_TENANTS = ("", "a", "b")
# For the laws that need some.
_PARAMETERS = {
    "collaborative:lenience": {"lenience": 0.5},
    "collaborative:interpolation": {"lambda": 0.5, "ceiling": 2.0},
    "collaborative:mentored": {"max_kl": 0.1},
    "collaborative:cactus": {"delta": 0.5, "ceiling": 2.0},
}
_INVALID = (
    pb.GenerateRequest(prompt=""),
    pb.GenerateRequest(prompt="x", law="unheard of"),
    pb.GenerateRequest(prompt="x", max_tokens=-1),
    pb.GenerateRequest(prompt="x", max_tokens=10**6),
    pb.GenerateRequest(prompt="x", sampling=pb.Sampling(temperature=-2.0)),
    pb.GenerateRequest(prompt_ids=[2**31]),
)


class Traffic:
    """As the gateway makes requests of messages. longest, answers: tokens of prompts and of what follows, at
    most. There are few texts, each with its own temperature, seed and length of the answer, so that requests
    come that have come before.
    """

    def __init__(self, loaded: LoadedTarget, longest: int, answers: int, seed: int) -> None:
        self.chance = random.Random(seed)
        target = loaded.model
        self._prompting = prompting(loaded)
        self._spec = GatewaySpec(
            model="",
            served_name="target",
            cache_dir=None,
            laws=tuple(LAWS),
            default_law="coupled",
            default_max_tokens=answers,
            max_tokens=answers,
            max_stop_strings=4,
            max_context=target.context,
            first_token_timeout_s=60.0,
            max_requests=1000,
        )
        self._answers = answers
        text = self._prompting.encode("\n\n".join(VARIED))
        text = text * (2 + longest // len(text))
        lengths = [1, longest, *(round(longest ** self.chance.random()) for _ in range(_TEXTS - 2))]
        self._texts = [text[start:][:length] for start, length in zip(itertools.count(0, 7), lengths)]

    def invalid(self) -> bool:
        """A message that cannot be served; whether it was found out."""
        try:
            self._request(self.chance.choice(_INVALID))
        except InvalidRequestError:
            return True
        return False

    def request(self, request_id: str) -> GenerationRequest:
        number = self.chance.randrange(_TEXTS)
        law = self.chance.choice(["none", "coupled", "coupled", *LAWS])
        message = pb.GenerateRequest(
            prompt_ids=self._texts[number],
            max_tokens=1 + number * (self._answers - 1) // _TEXTS,
            law=law,
            law_params=_PARAMETERS.get(law, {}),
            seed=number,
            sampling=pb.Sampling(temperature=number % 3 / 2),
        )
        tenant = self.chance.choice(_TENANTS)
        return replace(self._request(message), request_id=request_id, tenant=tenant)

    def _request(self, message: pb.GenerateRequest) -> GenerationRequest:
        return validate(message, self._spec, self._prompting, Identity(""))
