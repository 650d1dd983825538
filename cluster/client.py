"""A small client of InferenceService: what the `truedraft` command uses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict

from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc

# Of the service's own refusals.
_REASON_KEY = "truedraft-reason"
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0


class RequestFailedError(Exception):
    """The service did not answer: a gRPC status by name and one sentence.

    answered: the service itself says so, and not the channel.
    """

    def __init__(self, code: str, sentence: str, answered: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.answered = answered


@dataclass(slots=True)
class Answer:
    """An answer as it grows; `final` is None until it is whole."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    final: pb.Answer | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in the client's terms. None leaves a field to the deployment.

    messages: (role, content) pairs for the chat template; prompt: raw text instead of them; prompt_ids:
    tokens instead of either; law_params: the law's parameters by name.
    """

    messages: Sequence[tuple[str, str]] = ()
    prompt: str = ""
    prompt_ids: Sequence[int] = ()
    model: str = ""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    min_tokens: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    resumed_output_ids: Sequence[int] = ()
    seed: int | None = None
    law: str = ""
    law_params: Mapping[str, float] = field(default_factory=dict)
    domain: str = ""

    def to_proto(self) -> pb.GenerateRequest:
        """Raises RequestFailedError for a value that its field on the wire cannot hold."""
        try:
            return pb.GenerateRequest(
                model=self.model,
                prompt=self.prompt,
                prompt_ids=self.prompt_ids,
                messages=[pb.ChatMessage(role=role, content=content) for role, content in self.messages],
                sampling=pb.Sampling(
                    temperature=self.temperature,
                    top_k=self.top_k,
                    top_p=self.top_p,
                    min_p=self.min_p,
                    typical_p=self.typical_p,
                    eta_cutoff=self.eta_cutoff,
                    repetition_penalty=self.repetition_penalty,
                    frequency_penalty=self.frequency_penalty,
                    presence_penalty=self.presence_penalty,
                    logit_bias=self.logit_bias,
                ),
                bad_words=self.bad_words,
                min_tokens=self.min_tokens,
                max_tokens=self.max_tokens,
                stop=self.stop,
                stop_token_ids=self.stop_token_ids,
                ignore_eos=self.ignore_eos,
                top_logprobs=self.top_logprobs,
                resumed_output_ids=self.resumed_output_ids,
                seed=self.seed,
                law=self.law,
                law_params=self.law_params,
                domain=self.domain,
            )
        except (ValueError, TypeError) as error:
            sentence = f"The request cannot be sent: {self._culprit()}{error}."
            raise RequestFailedError("INVALID_ARGUMENT", sentence) from None

    def _culprit(self) -> str:
        """The field that its place on the wire cannot hold: protobuf does not name it."""
        for name in ("seed", "max_tokens", "min_tokens", "top_logprobs"):
            if not _holds(pb.GenerateRequest(), name, getattr(self, name)):
                return f"{name}: "
        return "top_k: " if not _holds(pb.Sampling(), "top_k", self.top_k) else ""


class Client:
    """Blocking calls on one channel. Use it as a context manager, or call `close`."""

    def __init__(
        self, endpoint: str, timeout: float | None = None, retries: int = 0, api_key: str = ""
    ) -> None:
        """endpoint: host:port of the gateway; timeout: seconds for a whole answer, retries included;
        retries: how often an answer is taken up again where it broke off, without progress in between;
        api_key: empty where none is asked for.
        """
        self._retries = retries
        self._api_key = api_key
        self._endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._timeout = timeout

    def stream(self, ask: Ask, traceparent: str = "") -> Iterator[pb.GenerateResponse]:
        """The service's messages as they come. Raises RequestFailedError; closing it cancels the request.

        A verifier or connection that is lost is not seen, if there are retries: the answer is resumed from
        the tokens received, with the same seed. Its provenance is then that of the last part.
        """
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        failures = 0
        while True:
            received: list[int] = []
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                for response in self._once(ask, traceparent, left):
                    if response.HasField("delta"):
                        received.extend(response.delta.token_ids)
                        ask = replace(ask, seed=response.delta.seed)
                    yield response
                return
            except RequestFailedError as error:
                failures = 1 if received else failures + 1
                # Where no service was ever seen, none is waited for.
                seen = error.answered or received or ask.resumed_output_ids
                if error.code != "UNAVAILABLE" or failures > self._retries or not seen:
                    raise
            ask = replace(ask, resumed_output_ids=[*ask.resumed_output_ids, *received])
            time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (failures - 1)))

    def _once(self, ask: Ask, traceparent: str, timeout: float | None) -> Iterator[pb.GenerateResponse]:
        call = self._stub.Generate(
            ask.to_proto(), metadata=_metadata(traceparent, self._api_key), timeout=timeout
        )
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._failed(error) from None
        finally:
            call.cancel()

    def answer(self, ask: Ask, traceparent: str = "") -> Answer:
        """The whole answer, streamed. Raises RequestFailedError."""
        answer = Answer()
        for response in self.stream(ask, traceparent):
            take(answer, response)
        return answer

    def _failed(self, error: grpc.RpcError) -> RequestFailedError:
        code, details = error.code(), error.details() or "The service gave no details."
        # What the channel itself says is a page about sockets.
        if code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details.lower():
            details = f"No service answers at {self._endpoint}."
        answered = any(entry.key == _REASON_KEY for entry in error.trailing_metadata() or ())
        return RequestFailedError(code.name, details, answered)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def take(answer: Answer, response: pb.GenerateResponse) -> None:
    """Adds a message of a stream to the answer."""
    if response.HasField("delta"):
        answer.text += response.delta.text
        answer.token_ids.extend(response.delta.token_ids)
    elif response.HasField("answer"):
        answer.final = response.answer


def as_dict(answer: Answer, ask: Ask) -> dict[str, Any]:
    """A whole answer for machines, and what was asked, with the field names of inference.proto; 64-bit
    integers are strings."""
    assert answer.final is not None
    content = MessageToDict(
        answer.final, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    content["finish_reason"] = _finish(answer.final)
    request = MessageToDict(ask.to_proto(), preserving_proto_field_name=True)
    return {"text": answer.text, "token_ids": answer.token_ids, **content, "request": request}


def provenance_block(final: pb.Answer) -> str:
    """The answer's provenance for people, a few lines."""
    provenance = final.provenance
    lossless = "lossless" if provenance.lossless else "not lossless"
    names = (
        each.kind if each.kind == each.model else f"{each.kind} {each.model}" for each in provenance.drafters
    )
    drafters = ", ".join(dict.fromkeys(names)) or "none"
    rounds = f"{provenance.rounds} rounds ({provenance.acceptance_length:.2f} a round)"
    drafts = f"drafted {provenance.draft_tokens}, accepted {provenance.accepted_tokens}"
    params = "".join(f" {name}={value:g}" for name, value in sorted(provenance.law_params.items()))
    lines = [
        f"law {provenance.effective_law}{params} · {lossless} · {provenance.claim}",
        f"{final.usage.output_tokens} tokens in {rounds} · {drafts} · drafter {drafters}",
        f"seed {provenance.seed} · trace {provenance.trace_id or 'none'} · finish {_finish(final)}",
    ]
    if provenance.HasField("distortion"):
        spent = provenance.distortion
        lines.append(
            f"total variation a token {spent.tv_mean:.4f}, at most {spent.tv_max:.4f} · "
            f"overshoot up to {spent.overshoot_max:.3g} times"
        )
    if provenance.fallbacks:
        counts = (f"{reason} {count}" for reason, count in sorted(provenance.fallbacks.items()))
        lines.append(f"rounds without their block: {', '.join(counts)}")
    return "\n".join([*lines, *provenance.reasons])


def _finish(final: pb.Answer) -> str:
    return pb.FinishReason.Name(final.finish_reason).removeprefix("FINISH_REASON_").lower()


def _holds(message: pb.GenerateRequest | pb.Sampling, name: str, value: int | None) -> bool:
    try:
        if value is not None:
            setattr(message, name, value)
    except (ValueError, TypeError):
        return False
    return True


def _metadata(traceparent: str, api_key: str) -> list[tuple[str, str]]:
    given = {"traceparent": traceparent, "authorization": f"Bearer {api_key}" if api_key else ""}
    return [(name, value) for name, value in given.items() if value]
