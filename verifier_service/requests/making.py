"""From a request to a sequence."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from opentelemetry.trace import Tracer
from transformers import PreTrainedTokenizerBase

from cluster.speculation.provenance import Numerics
from cluster.speculation.request import GenerationRequest
from cluster.telemetry.detail import Detail
from cluster.telemetry.sequence import SequenceTrace
from verifier_service.requests.grammar import Grammars
from verifier_service.requests.sequence import Sequence, Sink
from verifier_service.requests.text import TextStream


class Maker:
    """What all sequences of an engine have in common. From any thread. adapters: digests by name."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        stop_ids: frozenset[int],
        numerics: Numerics,
        tracer: Tracer,
        adapters: Mapping[str, str],
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._grammars = Grammars(tokenizer, vocab_size, stop_ids)
        # An adapted target is a target of its own.
        self._numerics = {"": numerics} | {
            name: replace(numerics, weights_hash=_adapted(numerics.weights_hash, digest))
            for name, digest in adapters.items()
        }
        self._tracer = tracer
        self._detail = Detail.from_environment()

    def __call__(self, request: GenerationRequest, sink: Sink) -> Sequence:
        """Raises GrammarError; KeyError for an adapter that is not loaded."""
        text = TextStream(self._tokenizer, request.stop, request.resumed_ids, request.controls.min_tokens)
        trace = SequenceTrace(self._tracer, request.traceparent, self._detail)
        ends = request.stop_ids if request.ignore_eos else request.stop_ids | self._stop_ids
        constraint = self._grammars.constraint(request.grammar) if request.grammar else None
        return Sequence(request, sink, text, trace, self._numerics[request.adapter], ends, constraint)


def _adapted(weights_hash: str, digest: str) -> str:
    return hashlib.sha256(f"{weights_hash}+{digest}".encode()).hexdigest()
