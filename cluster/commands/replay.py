"""`truedraft replay`: decodes a saved answer again, here and without drafts, and compares the tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.trace import NoOpTracer

from cluster.gateway import wire
from cluster.gateway.grammar import grammar_of
from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.parameters import controls_of, sampling_of, stop_ids_of
from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.validation import prompt_ids_of
from cluster.speculation.catalogue import LAWS
from cluster.speculation.provenance import Numerics, Provenance
from cluster.speculation.request import GenerationRequest
from truedraft.v1 import inference_pb2 as pb
from verifier_service.audit.replay import Replay, Replayed
from verifier_service.audit.subject import Subject
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.spec import DraftingMode, VerifierSpec
from verifier_service.target.uncertainty import logit_discrepancy

# Logits of a float32 model by other kernels, or more threads, were seen to differ by as much.
_OTHER_KERNELS = 1e-4


class ReplayError(ValueError):
    """The answer cannot be replayed; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Saved:
    """An answer as `truedraft generate --json` printed it."""

    model: str
    token_ids: tuple[int, ...]
    request: pb.GenerateRequest
    provenance: Provenance


def read(path: Path) -> Saved:
    """Raises ReplayError for a file that holds no answer, or one that cannot be compared."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReplayError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ReplayError(f"{path} is not JSON.") from None
    try:
        saved = _saved(content)
    except (ParseError, KeyError, TypeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise ReplayError(f"{path} is not an answer as generate --json prints it: {what}.") from None
    law = saved.provenance.effective_law.name
    if LAWS[law].sends_rows:
        raise ReplayError(
            f"An answer under {law} cannot be decoded again without drafts: its tokens follow from the "
            "blocks that came as well as from the seed."
        )
    if not saved.token_ids:
        raise ReplayError("The answer has no tokens to compare.")
    return saved


def _saved(content: Mapping[str, Any]) -> Saved:
    provenance = ParseDict(content["provenance"], pb.Provenance(), ignore_unknown_fields=True)
    return Saved(
        model=str(content["model"]),
        token_ids=tuple(int(token) for token in content["token_ids"]),
        request=ParseDict(content["request"], pb.GenerateRequest(), ignore_unknown_fields=True),
        provenance=wire.from_proto(provenance),
    )


def decode_again(saved: Saved, loaded: LoadedTarget, spec: VerifierSpec) -> Replayed:
    """Raises ReplayError where the model is another one than that of the answer."""
    served, here = saved.provenance.numerics, loaded.numerics
    if served.weights_hash != here.weights_hash:
        raise ReplayError(
            f"The answer is of other weights ({served.weights_hash[:12]}) than this model's "
            f"({here.weights_hash[:12]}); name its model with --model."
        )
    law = saved.provenance.effective_law
    prompting = TokenizerPrompting(loaded.tokenizer, loaded.model.vocab_size, loaded.model.context)
    try:
        prompt, sampling = prompt_ids_of(saved.request, prompting), sampling_of(saved.request)
        controls, grammar = controls_of(saved.request, prompting), grammar_of(saved.request)
        stop_ids = stop_ids_of(saved.request, prompting.vocab_size)
    except InvalidRequestError as error:
        raise ReplayError(f"The answer's request cannot be asked again: {error}") from None
    resumed = tuple(saved.request.resumed_output_ids)
    tokens = (*resumed, *saved.token_ids)
    request = GenerationRequest(
        request_id="replay",
        prompt_ids=prompt,
        sampling=sampling,
        law=law,
        requested_law=law,
        seed=saved.provenance.seed,
        max_tokens=len(tokens),
        controls=controls,
        stop_ids=stop_ids,
        ignore_eos=saved.request.ignore_eos,
        resumed_ids=resumed,
        grammar=grammar,
    )
    engine = build_engine(_with_numerics(loaded, served), spec, None, NoOpTracer())
    results: list[Replayed] = []
    engine.replay(Replay(request, tokens, Subject(law.name, "", ""), results.append))
    while not results:
        engine.step()
    return results[0]


def _with_numerics(loaded: LoadedTarget, served: Numerics) -> LoadedTarget:
    """With the discrepancy of logits that explains a near tie: none where rows are invariant and the kernels
    are those that served."""
    here = loaded.numerics
    if (served.kernels, served.dtype, served.threads) == (here.kernels, here.dtype, here.threads):
        error = max(served.logit_discrepancy, here.logit_discrepancy)
    else:
        error = max(served.logit_discrepancy, logit_discrepancy(loaded.model), _OTHER_KERNELS)
    return replace(loaded, numerics=replace(here, logit_discrepancy=error))


def run(path: Path, model: str | None, threads: int) -> dict[str, Any]:
    """The outcome, for machines. model: a reference, by default the name that the answer gives; threads: of
    the CPU, 0 for as many as served the answer. Raises ReplayError, CheckpointError."""
    saved = read(path)
    served = saved.provenance.numerics
    spec = VerifierSpec(
        model=model or saved.model,
        dtype=served.dtype,
        threads=threads or served.threads,
        drafting=DraftingMode.OFF,
    )
    loaded = load_target(spec)
    result = decode_again(saved, loaded, spec)
    difference = result.difference
    outcome: dict[str, Any] = {
        "equal": difference is None,
        "tokens": len(saved.token_ids),
        "compared": result.tokens,
        "same_kernels": served.kernels == loaded.numerics.kernels,
    }
    if difference is not None:
        outcome["difference"] = {
            "index": difference.index,
            "served": difference.served,
            "decoded": difference.decoded,
            "served_text": loaded.tokenizer.decode([difference.served]),
            "decoded_text": loaded.tokenizer.decode([difference.decoded]),
            "margin": difference.margin,
            "near_tie": difference.near_tie,
        }
    return outcome


def sentence(outcome: Mapping[str, Any]) -> str:
    """The outcome for people."""
    if outcome["equal"]:
        return f"equal: all {outcome['tokens']} tokens are those of plain decoding with the same seed"
    found = outcome["difference"]
    kind = (
        "a near tie, which rounding explains" if found["near_tie"] else "no near tie: the answer is at fault"
    )
    return (
        f"different at token {found['index']} of {outcome['tokens']}: served {found['served']} "
        f"{found['served_text']!r}, plain decoding gives {found['decoded']} {found['decoded_text']!r} by a "
        f"margin of {found['margin']:.3g}; {kind}"
    )
