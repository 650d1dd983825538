"""The training loop: interrupted at any time, it goes on where its last state was written; in the end the
weights are those that did best on held-out texts, since a few texts are soon learned by heart."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from drafter_service.drafters.dflash.model import BlockDiffusionModel
from drafter_service.training.blocks import Blocks, anchors_of, blocks_at
from drafter_service.training.corpus import Text
from drafter_service.training.measuring import by_domain, pooled
from drafter_service.training.network import Frozen, loss

_STATE = "training.pt"
_CURVE = "curve.jsonl"
_WARM_UP = 0.02
_LAST_RATE = 0.02


@dataclass(frozen=True, slots=True)
class Recipe:
    """minutes: of training, the rate falls over them; texts: of a step, with `anchors` blocks each; every:
    seconds between measurements, each followed by a written state; looked_at: held-out texts of one."""

    minutes: float = 30.0
    rate: float = 1e-3
    texts: int = 8
    anchors: int = 16
    every: float = 60.0
    looked_at: int = 12
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """Of the learning curve. minutes: of training so far; loss: of drafts by themselves; held_out: that on
    held-out texts; acceptance: tokens a round of greedy ones."""

    minutes: float
    step: int
    loss: float
    held_out: float
    acceptance: float


class Trainer:
    """folder: where state and curve lie; a state that is there is gone on from."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        frozen: Frozen,
        texts: Sequence[Text],
        recipe: Recipe,
        folder: Path,
        device: str = "cpu",
    ) -> None:
        self._model, self._frozen, self._recipe = model, frozen, recipe
        self._folder, self._device = folder, device
        usable = [text for text in texts if len(anchors_of(text))]
        # Of like length side by side, so that little is computed for filling.
        self._texts = sorted((t for t in usable if not t.held_out), key=lambda text: len(text.tokens))
        self._held_out = [text for text in usable if text.held_out]
        if not self._texts:
            raise ValueError("no answer of two tokens or more is left to train on")
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
        self._spent, self._step = 0.0, 0
        self._best: dict[str, Any] = {"held_out": math.inf, "model": None}
        self._resume()

    def train(self, progress: Callable[[float, float], None]) -> list[Point]:
        """Trains for the minutes that are left; progress: told minutes done and the loss; the curve.
        The model then has the weights of its `kept` point."""
        limit, began, mean = 60 * self._recipe.minutes, time.monotonic(), math.nan
        spent, measured = self._spent, self._spent
        seen: list[float] = []
        while self._spent < limit:
            value = self._train_step(self._rate(self._spent / limit))
            seen.append(value)
            mean = value if math.isnan(mean) else 0.98 * mean + 0.02 * value
            self._spent = spent + time.monotonic() - began
            progress(self._spent / 60, mean)
            # After one step, at a rate of almost nothing, what training began from is measured.
            due = self._step == 1 or self._spent - measured >= self._recipe.every
            if due or self._spent >= limit:
                self._measure(sum(seen) / len(seen))
                self._write()
                seen, measured = [], self._spent
                # Measuring is no training.
                began, spent = time.monotonic(), self._spent
        if self._best["model"] is not None:
            self._model.load_state_dict(self._best["model"])
        return read_curve(self._folder)

    def _rate(self, done: float) -> float:
        if done < _WARM_UP:
            return self._recipe.rate * done / _WARM_UP + 1e-6
        along = (done - _WARM_UP) / (1 - _WARM_UP)
        return self._recipe.rate * (1 - (1 - _LAST_RATE) * along)

    def _train_step(self, rate: float) -> float:
        recipe, step = self._recipe, self._step
        # Which texts and anchors follows from the step alone, so that a resumed run sees what it would have.
        rng = random.Random(recipe.seed * 1_000_003 + step)
        first = rng.randrange(max(1, len(self._texts) - recipe.texts + 1))
        texts = self._texts[first : first + recipe.texts]
        anchors = [rng.choices(anchors_of(text), k=recipe.anchors) for text in texts]
        blocks = self._blocks(texts, anchors)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._model.train()
        with torch.autocast(self._device, dtype=torch.bfloat16):
            value = loss(self._model, self._frozen, blocks)
        self._optimizer.zero_grad(set_to_none=True)
        value.both.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._step += 1
        return float(value.rows.detach())

    def _blocks(self, texts: Sequence[Text], anchors: Sequence[Sequence[int]]) -> Blocks:
        config = self._model.config
        return blocks_at(texts, anchors, config.block_size, config.mask_id, self._device)

    def _measure(self, trained: float) -> None:
        self._model.eval()
        rng = random.Random(self._recipe.seed)
        some = rng.sample(self._held_out, min(self._recipe.looked_at, len(self._held_out)))
        losses = []
        with torch.inference_mode(), torch.autocast(self._device, dtype=torch.bfloat16):
            for text in some:
                anchors = [rng.choices(anchors_of(text), k=self._recipe.anchors)]
                losses.append(float(loss(self._model, self._frozen, self._blocks([text], anchors)).rows))
            greedy = [text for text in self._held_out if not text.temperature][: self._recipe.looked_at]
            accepted = pooled(by_domain(self._model, self._frozen, greedy)).length
        held_out = sum(losses) / len(losses) if losses else math.nan
        point = Point(self._spent / 60, self._step, trained, held_out, accepted)
        # Never so without held-out texts: nothing is less than NaN.
        if held_out < self._best["held_out"]:
            weights = {name: tensor.detach().clone() for name, tensor in self._model.state_dict().items()}
            self._best = {"held_out": held_out, "model": weights}
        with (self._folder / _CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")

    def _write(self) -> None:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "spent": self._spent,
            "step": self._step,
            "best": self._best,
        }
        unfinished = self._folder / f".{_STATE}"
        torch.save(state, unfinished)
        os.replace(unfinished, self._folder / _STATE)

    def _resume(self) -> None:
        path = self._folder / _STATE
        if path.exists():
            state: dict[str, Any] = torch.load(path, weights_only=True)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._spent, self._step = state["spent"], state["step"]
            self._best = state["best"]


def read_curve(folder: Path) -> list[Point]:
    """What has been measured so far."""
    path = folder / _CURVE
    if not path.exists():
        return []
    return [Point(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def kept(curve: Sequence[Point]) -> Point:
    """Where the weights are from: the first of the least held-out losses; the last without held-out texts."""
    known = [point for point in curve if not math.isnan(point.held_out)]
    return min(known, key=lambda point: point.held_out) if known else curve[-1]
