"""What is timed side by side: each answers the same prompt with the same number of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from opentelemetry.trace import NoOpTracer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cluster.bench.prompts import KINDS
from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.loading import end_of_sequence_ids, load_tokenizer
from cluster.client import Ask, Client
from cluster.drafting import NgramDrafter
from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.tools.conversation import Turn
from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from verifier_service.batch import answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.spec import VerifierSpec

_LOOKUP_TOKENS = 10


class Contestant(Protocol):
    """Answers greedily; `tokens` is a cap that the end of an answer may undercut."""

    @property
    def name(self) -> str: ...

    def answer(self, kind: str, tokens: int) -> list[int]:
        """The token ids of the answer to a kind of KINDS, prompt and end of sequence left out."""


class Transformers:
    """`generate` of the stock model, with prompt lookup or without."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lookup: int = 0) -> None:
        self.name = "transformers prompt lookup" if lookup else "transformers generate"
        self._model = model
        config = model.config
        self._prompting = TokenizerPrompting(tokenizer, config.vocab_size, config.max_position_embeddings)
        self._stop_ids = end_of_sequence_ids(model, tokenizer)
        self._options = {"prompt_lookup_num_tokens": lookup} if lookup else {}

    def answer(self, kind: str, tokens: int) -> list[int]:
        ids = torch.tensor([self._prompting.encode_chat([Turn("user", KINDS[kind])])])
        out = self._model.generate(  # type: ignore[operator] # transformers leaves the mixin untyped
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **self._options
        )
        return [t for t in out[0, ids.shape[1] :].tolist() if t not in self._stop_ids]


class InProcess:
    """Our engine without a cluster."""

    def __init__(self, loaded: LoadedTarget, spec: VerifierSpec, law: Law) -> None:
        self.name = f"in-process {law}" + (" n-gram" if law == COUPLED else "")
        if spec.dtype != "float32":
            self.name += f", {spec.dtype}"
        self._law = law
        self._prompting = TokenizerPrompting(loaded.tokenizer, loaded.model.vocab_size, loaded.model.context)
        self._engine = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), NoOpTracer())

    def answer(self, kind: str, tokens: int) -> list[int]:
        request = GenerationRequest(
            request_id=kind,
            prompt_ids=tuple(self._prompting.encode_chat([Turn("user", KINDS[kind])])),
            sampling=Sampling(temperature=0.0),
            law=self._law,
            requested_law=self._law,
            seed=0,
            max_tokens=tokens,
        )
        [answer] = answer_all(self._engine, [request])
        return answer.token_ids


class Cluster:
    """The whole cluster, asked as a client asks it."""

    def __init__(self, client: Client, law: Law) -> None:
        self.name = f"cluster {law}" + (" n-gram" if law == COUPLED else "")
        self._client = client
        self._law = law

    def answer(self, kind: str, tokens: int) -> list[int]:
        messages = [("user", KINDS[kind])]
        ask = Ask(messages=messages, temperature=0.0, max_tokens=tokens, seed=0, law=self._law.name)
        return self._client.answer(ask).token_ids


def stock(spec: VerifierSpec) -> list[Contestant]:
    """What transformers has, on one copy of the weights."""
    checkpoint = resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)
    tokenizer = load_tokenizer(checkpoint)
    model = load_model(checkpoint, spec.dtype, spec.device)
    return [Transformers(model, tokenizer), Transformers(model, tokenizer, lookup=_LOOKUP_TOKENS)]


def in_process(spec: VerifierSpec) -> list[Contestant]:
    """Our engine without speculation and with it, on one copy of the weights."""
    loaded = load_target(spec)
    return [InProcess(loaded, spec, law) for law in (NONE, COUPLED)]


def plain(spec: VerifierSpec) -> list[Contestant]:
    """Our engine without speculation."""
    return [InProcess(load_target(spec), spec, NONE)]
