"""The long equality check: speculation changes no token.

For 20 prompts, four temperatures, three block lengths and two drafters: `coupled` equals `none` with the
same seed, alone and in batches of eight mixed requests; `none` at temperature 0 equals transformers' greedy
generate. Results are appended to a file case by case, so that a stopped run goes on where it was:

    python -m cluster.checks.equality --out bench-results/equality.jsonl --minutes 10
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from opentelemetry.trace import NoOpTracer
from transformers import PreTrainedModel

from cluster.bench.encoding import chat
from cluster.bench.prompts import VARIED
from cluster.bench.resumable import Progress, Record
from cluster.checkpoints import load_model, resolve
from cluster.checks.arguments import arguments
from cluster.drafting import Drafter, NgramDrafter
from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from drafter_service.drafters.causal_lm import CausalLmDrafter
from verifier_service.batch import answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.spec import VerifierSpec

TEMPERATURES = (0.0, 0.7, 1.0, 1.5)
BLOCK_LENGTHS = (1, 4, 16)
DRAFTERS = ("ngram", "causal_lm")
BATCH = 8
TOKENS = 32


@dataclass(frozen=True, slots=True)
class Case:
    """One set of requests answered under one configuration; `requests` index prompts × temperatures."""

    drafter: str
    block_length: int
    requests: tuple[tuple[int, float], ...]

    @property
    def key(self) -> str:
        members = ",".join(f"{prompt}@{temperature:g}" for prompt, temperature in self.requests)
        return f"{self.drafter}/k{self.block_length}/{members}"


def cases() -> Iterator[Case]:
    """References first, then every configuration alone and in mixed batches."""
    everything = [(prompt, t) for prompt in range(len(VARIED)) for t in TEMPERATURES]
    # A stride that is coprime to their number mixes prompts and temperatures in every batch.
    mixed = [everything[(17 * i) % len(everything)] for i in range(len(everything))]
    for prompt in range(len(VARIED)):
        yield Case("transformers", 0, ((prompt, 0.0),))
    for block_length in BLOCK_LENGTHS:
        for drafter in DRAFTERS:
            for start in range(0, len(mixed), BATCH):
                yield Case(drafter, block_length, tuple(mixed[start : start + BATCH]))
            for request in everything:
                yield Case(drafter, block_length, (request,))


class Checker:
    """Answers cases and compares them with `none`; loads what it needs when it is first needed."""

    def __init__(self, model: str, known: dict[str, list[int]]) -> None:
        self._spec = VerifierSpec(model=model, draft_deadline_s=600.0, planner=PlannerName.FIXED)
        self._loaded: LoadedTarget = load_target(self._spec)
        self._stock: PreTrainedModel = load_model(resolve(model), "float32", "cpu")
        self.references = known

    def check(self, case: Case) -> list[str]:
        """The differences found, as sentences; empty when all tokens are equal."""
        if case.drafter == "transformers":
            [(prompt, _)] = case.requests
            return self._difference(prompt, 0.0, self._greedy(prompt), "transformers generate")
        spec = replace(self._spec, block_length=case.block_length)
        drafting = LocalDrafting(self._drafter(case.drafter))
        engine = build_engine(self._loaded, spec, drafting, NoOpTracer())
        answers = answer_all(engine, [self._request(p, t, COUPLED) for p, t in case.requests])
        found = []
        for (prompt, temperature), answer in zip(case.requests, answers, strict=True):
            found += self._difference(prompt, temperature, answer.token_ids, case.key)
        return found

    def reference(self, prompt: int, temperature: float) -> list[int]:
        """The tokens of plain decoding, alone."""
        key = f"{prompt}@{temperature:g}"
        if key not in self.references:
            engine = build_engine(self._loaded, self._spec, None, NoOpTracer())
            [answer] = answer_all(engine, [self._request(prompt, temperature, NONE)])
            self.references[key] = answer.token_ids
        return self.references[key]

    def _difference(self, prompt: int, temperature: float, tokens: list[int], what: str) -> list[str]:
        expected = self.reference(prompt, temperature)
        if tokens == expected:
            return []
        at = next(
            (i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b),
            min(len(tokens), len(expected)),
        )
        margin = self._margin([*self._prompt_ids(prompt), *expected[:at]])
        return [f"{what}: prompt {prompt}, T {temperature:g}, token {at}; stock logits' margin {margin:.2e}"]

    @torch.inference_mode()
    def _margin(self, tokens: list[int]) -> float:
        """How far the two most probable next tokens lie apart, in the stock model's logits."""
        top = torch.topk(self._stock(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1], 2).values
        return float(top[0] - top[1])

    def _greedy(self, prompt: int) -> list[int]:
        ids = torch.tensor([self._prompt_ids(prompt)])
        out = self._stock.generate(  # type: ignore[operator] # transformers leaves the mixin untyped
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False
        )
        tokens = out[0, ids.shape[1] :].tolist()
        return [token for token in tokens if token not in self._loaded.stop_ids]

    def _drafter(self, kind: str) -> Drafter:
        if kind == "ngram":
            return NgramDrafter()
        vocab = len(self._loaded.tokenizer)
        return CausalLmDrafter(self._stock, self._spec.model, "self", self._loaded.model.context, vocab)

    def _prompt_ids(self, prompt: int) -> list[int]:
        return list(chat(self._loaded, VARIED[prompt]))

    def _request(self, prompt: int, temperature: float, law: Law) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"{prompt}@{temperature:g}",
            prompt_ids=tuple(self._prompt_ids(prompt)),
            sampling=Sampling(temperature=temperature),
            law=law,
            requested_law=law,
            seed=1000 + prompt,
            max_tokens=TOKENS,
        )


def main(given: Sequence[str] | None = None) -> int:
    """Runs what is left of the check for at most --minutes. Returns 1 if a token differed, 0 if none did."""
    options = arguments(__doc__, Path("bench-results/equality.jsonl")).parse_args(given)
    progress: Progress[Case] = Progress(options.out, "case")
    known = {k: tokens for record in progress.records.values() for k, tokens in record["references"].items()}
    every = list(cases())
    checker: Checker | None = None

    def check(case: Case) -> Record:
        nonlocal checker
        checker = checker or Checker(options.model, known)
        before = set(checker.references)
        differences = checker.check(case)
        for sentence in differences:
            sys.stdout.write(f"DIFFERENT {sentence}\n")
        fresh = {k: v for k, v in checker.references.items() if k not in before}
        return {"requests": len(case.requests), "differences": differences, "references": fresh}

    progress.run(every, options.minutes, check)
    records = progress.records.values()
    compared = sum(record["requests"] for record in records)
    differing = sum(len(record["differences"]) for record in records)
    sys.stdout.write(
        f"{len(records)} of {len(every)} cases, {compared} answers compared, {differing} differ "
        f"{progress.spent}\n"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
