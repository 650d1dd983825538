"""Rows of SmolLM2 and of the same model cut to fewer layers, along answers that the former samples; recorded
once, into a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from opentelemetry.trace import NoOpTracer
from torch import Tensor

from cluster.bench.audit.simulation import Places
from cluster.bench.encoding import chat
from cluster.bench.prompts import VARIED
from cluster.checkpoints import load_model
from cluster.speculation.law import NONE
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.batch import answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.spec import DraftingMode, VerifierSpec
from verifier_service.target.target import Rows

# Tokens of an answer, and the most probable tokens that are kept of each row.
TOKENS = 160
KEPT = 1024


def recorded(path: Path, model: str, layers: int, say: Callable[[str], None]) -> Places:
    """Reads the rows, or records them first. layers: that the drafter keeps. Raises CheckpointError."""
    if not path.exists():
        places = _record(model, layers, say)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, p=places.p.numpy(), q=places.q.numpy())
        partial.replace(path)
    with np.load(path) as rows:
        return Places(torch.from_numpy(rows["p"]), torch.from_numpy(rows["q"]))


def _record(model: str, layers: int, say: Callable[[str], None]) -> Places:
    spec = VerifierSpec(model=model, audit=False, drafting=DraftingMode.OFF)
    loaded = load_target(spec)
    say("answers of the target")
    texts = _answers(loaded, spec)
    say("rows of target and drafter")
    drafter = _cut(cast(Any, load_model(loaded.checkpoint, spec.dtype, spec.device)), layers)
    rows = [
        _both(*pair)
        for prompt, text in texts
        for pair in zip(_target_rows(loaded, prompt, text), _drafter_rows(drafter, prompt, text), strict=True)
    ]
    return Places(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _answers(loaded: LoadedTarget, spec: VerifierSpec) -> list[tuple[list[int], list[int]]]:
    """Prompts and what follows them, as tokens."""
    prompts = [chat(loaded, text) for text in VARIED]
    requests = [
        GenerationRequest(str(seed), prompt, Sampling(), NONE, NONE, seed, TOKENS)
        for seed, prompt in enumerate(prompts)
    ]
    answers = answer_all(build_engine(loaded, spec, None, NoOpTracer()), requests)
    return [(list(prompt), answer.token_ids) for prompt, answer in zip(prompts, answers, strict=True)]


def _target_rows(loaded: LoadedTarget, prompt: list[int], text: list[int]) -> Tensor:
    tokens = [*prompt, *text]
    cache = loaded.model.pool.open()
    [logits] = loaded.model.forward([Rows(cache, tokens, 0, len(text) + 1)])
    cache.release()
    return target_probs(logits, Sampling())


def _cut(model: Any, layers: int) -> Any:
    """The model with `layers` of its layers, the first and the last ones: it misses those between least.
    Nothing is trained."""
    kept = list(model.model.layers)
    del kept[layers // 2 : len(kept) - (layers - layers // 2)]
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    return model


@torch.inference_mode()
def _drafter_rows(model: Any, prompt: list[int], text: list[int]) -> Tensor:
    tokens = torch.tensor([[*prompt, *text]])
    logits = model(tokens, use_cache=False, logits_to_keep=len(text) + 1).logits[0].float()
    return target_probs(logits, Sampling())


def _both(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The two rows on the most probable tokens of either, [2 · KEPT], each summing to 1."""
    first = torch.topk(p, KEPT).indices
    others = q.clone()
    others[first] = -1.0
    ids = torch.cat((first, torch.topk(others, KEPT).indices))
    kept_p, kept_q = p[ids].double(), q[ids].double()
    return (kept_p / kept_p.sum()).float(), (kept_q / kept_q.sum()).float()
