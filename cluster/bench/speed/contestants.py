"""What is timed side by side: each answers the same prompts with the same number of tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from opentelemetry.trace import NoOpTracer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cluster.bench.encoding import chat
from cluster.bench.prompts import KINDS
from cluster.bench.speed.peer import Reply
from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.loading import end_of_sequence_ids, load_tokenizer
from cluster.client import Ask, Client
from cluster.drafting import Drafter, NgramDrafter
from cluster.drafting.drafter_checkpoints import SHIPPED
from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.tools.conversation import Turn
from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from drafter_service.deployment import load
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.batch import answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.pools import Pools
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
        # Prompt lookup takes one prompt at a time.
        self.most = 1 if lookup else 0

    def answer(self, kind: str, tokens: int) -> list[int]:
        [answer] = self._generate([KINDS[kind]], tokens)
        return answer

    def ask(self, prompts: Sequence[str], tokens: int) -> list[Reply]:
        """See Peer; one batch, padded on the left, which ends together."""
        began = time.perf_counter()
        answers = self._generate(prompts, tokens)
        seconds = time.perf_counter() - began
        return [Reply(len(answer), None, seconds) for answer in answers]

    def _generate(self, prompts: Sequence[str], tokens: int) -> list[list[int]]:
        encoded = [self._prompting.encode_chat([Turn("user", prompt)]) for prompt in prompts]
        longest = max(map(len, encoded))
        padding = min(self._stop_ids)
        ids = torch.tensor([[padding] * (longest - len(each)) + each for each in encoded])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in encoded])
        out = self._model.generate(  # type: ignore[operator] # transformers leaves the mixin untyped
            ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **self._options
        )
        return [[t for t in row if t not in self._stop_ids] for row in out[:, longest:].tolist()]


class InProcess:
    """Our engine without a cluster; drafters: by name, the planner chooses among them."""

    def __init__(
        self,
        loaded: LoadedTarget,
        spec: VerifierSpec,
        law: Law,
        drafters: Mapping[str, Drafter] | None = None,
    ) -> None:
        drafters = drafters or {"n-gram": NgramDrafter()}
        self.name = f"in-process {law}" + (f" {' or '.join(drafters)}" if law == COUPLED else "")
        if spec.dtype != "float32":
            self.name += f", {spec.dtype}"
        self.most = 0
        self._law = law
        self._loaded = loaded
        pools = Pools({name: LocalDrafting(drafter) for name, drafter in drafters.items()})
        self._engine = build_engine(loaded, spec, pools, NoOpTracer())

    def answer(self, kind: str, tokens: int) -> list[int]:
        [answer] = answer_all(self._engine, [self._request(KINDS[kind], tokens, 0)])
        return answer.token_ids

    def ask(self, prompts: Sequence[str], tokens: int) -> list[Reply]:
        """See Peer; timed as one."""
        began = time.perf_counter()
        answers = answer_all(self._engine, [self._request(each, tokens, i) for i, each in enumerate(prompts)])
        seconds = time.perf_counter() - began
        return [Reply(len(answer.token_ids), None, seconds) for answer in answers]

    def _request(self, prompt: str, tokens: int, number: int) -> GenerationRequest:
        return GenerationRequest(
            request_id=str(number),
            prompt_ids=chat(self._loaded, prompt),
            sampling=Sampling(temperature=0.0),
            law=self._law,
            requested_law=self._law,
            seed=0,
            max_tokens=tokens,
        )


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


def stock(spec: VerifierSpec) -> list[Transformers]:
    """What transformers has, on one copy of the weights."""
    checkpoint = resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)
    tokenizer = load_tokenizer(checkpoint)
    model = load_model(checkpoint, spec.dtype, spec.device)
    return [Transformers(model, tokenizer), Transformers(model, tokenizer, lookup=_LOOKUP_TOKENS)]


def in_process(spec: VerifierSpec) -> list[InProcess]:
    """Our engine without speculation and with it, on one copy of the weights."""
    loaded = load_target(spec)
    return [InProcess(loaded, spec, law) for law in (NONE, COUPLED)]


def trained(spec: VerifierSpec) -> list[InProcess]:
    """Our engine with the shipped drafter beside n-grams, for the default target."""
    drafter = load(DrafterSpec(spec.model, DrafterKind.DFLASH, SHIPPED)).drafter
    drafters = {"shipped drafter": drafter, "n-gram": NgramDrafter()}
    return [InProcess(load_target(replace(spec, drafter=SHIPPED)), spec, COUPLED, drafters)]


def plain(spec: VerifierSpec) -> list[InProcess]:
    """Our engine without speculation."""
    return [InProcess(load_target(spec), spec, NONE)]
