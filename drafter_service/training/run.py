"""Puts `truedraft train-drafter` together: answers, features, training, and what came of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from cluster.checkpoints import end_of_sequence_ids, load_model, load_tokenizer, resolve
from cluster.drafting.block_diffusion import DRAFT_IDS, read_config
from cluster.drafting.drafter_checkpoints import resolve_drafter
from cluster.drafting.features import default_layer_ids
from drafter_service.drafters.dflash.loading import published_name
from drafter_service.drafters.dflash.model import BlockDiffusionModel
from drafter_service.training.beginning import begin, go_on, pair, published_config, read_start
from drafter_service.training.corpus import Corpus
from drafter_service.training.measuring import Accepted, by_domain, ngram_by_domain, pooled
from drafter_service.training.network import Frozen, freeze, frozen_with
from drafter_service.training.prompts import Prompt
from drafter_service.training.regenerate import Answering, regenerate
from drafter_service.training.trainer import Point, Recipe, Trainer, kept

# Hidden states that are read: of layers from an early to a late one.
_FEATURES = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """target: a checkpoint's reference; layers: of the drafter; block: rows, one more than its drafts;
    vocabulary: ids that it can draft, 0 for all; start: a drafter whose shape and weights it has at first."""

    target: str
    layers: int = 2
    block: int = 8
    vocabulary: int = 8192
    device: str = "cpu"
    start: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """answers, tokens: that were trained or measured on; too_long: prompts that were left out; drafter,
    ngram: acceptance on held-out greedy texts by domain."""

    answers: int
    tokens: int
    too_long: int
    curve: list[Point]
    drafter: dict[str, Accepted]
    ngram: dict[str, Accepted]


@dataclass(frozen=True, slots=True)
class Told:
    """answering: told batches done and in all; training: minutes done and the mean loss."""

    answering: Callable[[int, int], None]
    training: Callable[[float, float], None]


def train(
    wanted: Wanted,
    prompts: Sequence[Prompt],
    answering: Answering,
    recipe: Recipe,
    out: Path,
    told: Told,
) -> Trained:
    """Makes a drafter in `out`, in the published layout, and goes on there if it was interrupted.

    Raises CheckpointError for a target that cannot be had or read; ValueError for nothing to train on, and
    for a folder that was begun with other prompts or another drafter.
    """
    checkpoint = resolve(wanted.target)
    tokenizer = load_tokenizer(checkpoint)
    target: Any = load_model(checkpoint, _dtype(wanted.device), wanted.device)
    count = target.config.get_text_config().num_hidden_layers
    start = read_start(Path(resolve_drafter(wanted.start).path), target) if wanted.start else None
    layer_ids = default_layer_ids(count, min(_FEATURES, max(1, count - 3)))
    if start is not None:
        layer_ids = start.network.config.layer_ids
    work = out / "work"
    corpus = Corpus(work)
    _claim(work, wanted, answering, prompts)
    ends = end_of_sequence_ids(target, tokenizer)
    too_long = regenerate(target, tokenizer, ends, layer_ids, prompts, answering, corpus, told.answering)
    texts = corpus.texts()
    if start is not None and start.draft_ids is not None:
        frozen = frozen_with(target, start.draft_ids)
    else:
        frozen = freeze(target, texts, wanted.vocabulary if start is None else 0)
    if start is not None:
        fields = start.fields
    else:
        fields = published_config(target, layer_ids, wanted.layers, wanted.block, mask_id(tokenizer, frozen))
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    config = read_config(out)
    model = begin(config, target, recipe.seed)
    if start is None or not start.network.config.selects:
        pair(model, frozen, target)
    if start is not None:
        go_on(model, start)
    model = model.to(wanted.device)
    del target
    curve = Trainer(model, frozen, texts, recipe, work, wanted.device).train(told.training)
    model.eval()
    save(model, frozen, out)
    greedy = [text for text in texts if text.held_out and not text.temperature]
    return Trained(
        answers=len(texts),
        tokens=sum(len(text.tokens) - text.prompt for text in texts),
        too_long=too_long,
        curve=curve,
        drafter=by_domain(model, frozen, greedy),
        ngram=ngram_by_domain(greedy, config.block_size - 1),
    )


def _claim(work: Path, wanted: Wanted, answering: Answering, prompts: Sequence[Prompt]) -> None:
    """Answers and state that are there must be of these prompts and this drafter."""
    told = json.dumps(
        [asdict(wanted) | {"device": ""}, asdict(answering), [asdict(each) for each in prompts]]
    )
    own, path = hashlib.sha256(told.encode()).hexdigest(), work / "begun"
    if not path.exists():
        path.write_text(own, encoding="ascii")
    elif path.read_text(encoding="ascii") != own:
        raise ValueError(f"{work} was begun with other prompts or for another drafter; take another folder")


def save(model: BlockDiffusionModel, frozen: Frozen, out: Path) -> None:
    """The weights in half precision; ids that can be drafted beside them where they are not all."""
    tensors = {
        published_name(name): tensor.to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    if len(frozen.draft_ids) < len(frozen.embedding):
        tensors[DRAFT_IDS] = frozen.draft_ids.to(torch.int32)
    unfinished = out / ".model.unfinished"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    os.replace(unfinished, out / "model.safetensors")


def mask_id(tokenizer: Any, frozen: Frozen) -> int:
    """A special token that text seldom has: the last one that ends nothing, or the padding's."""
    ending = {tokenizer.eos_token_id, tokenizer.bos_token_id}
    special = [i for i in tokenizer.all_special_ids if i not in ending and i < len(frozen.embedding)]
    return int(special[-1] if special else tokenizer.eos_token_id)


def summary(trained: Trained) -> dict[str, Any]:
    """For machines."""
    domains = {
        name: {
            "acceptance_length": each.length,
            "rounds": each.rounds,
            "ngram_tokens_a_round": trained.ngram[name].overall,
            "ngram_undrafted": trained.ngram[name].undrafted,
            "ngram_rounds": trained.ngram[name].rounds,
        }
        for name, each in trained.drafter.items()
    }
    return {
        "answers": trained.answers,
        "answer_tokens": trained.tokens,
        "prompts_too_long": trained.too_long,
        "curve": [asdict(point) for point in trained.curve],
        "kept_step": kept(trained.curve).step,
        "held_out": domains,
        "acceptance_length": pooled(trained.drafter).length,
    }


def _dtype(device: str) -> str:
    """bfloat16 where it is computed fast."""
    fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if device != "cpu" or fast else "float32"
