"""Answers and features on disk, a file a batch: made once, read as often as the training goes over them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from drafter_service.training.answers import Answered


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One answer as it is trained on; the tensors as in Answered, views of a mapped file."""

    domain: str
    held_out: bool
    temperature: float
    prompt: int
    tokens: Tensor
    features: Tensor
    top_ids: Tensor
    top_probs: Tensor


class Corpus:
    """The shards in a folder, named by number. A shard is whole or is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.safetensors"

    def write(
        self, number: int, answers: Sequence[Answered], domains: Sequence[str], held_out: Sequence[bool]
    ) -> None:
        """Raises OSError."""
        texts = [
            {
                "domain": domain,
                "held_out": held,
                "temperature": each.temperature,
                "prompt": each.prompt,
                "tokens": len(each.tokens),
            }
            for each, domain, held in zip(answers, domains, held_out, strict=True)
        ]
        tensors = {
            name: torch.cat([getattr(each, name) for each in answers])
            for name in ("tokens", "features", "top_ids", "top_probs")
        }
        unfinished = self._folder / f".{number}.unfinished"
        save_file(tensors, unfinished, metadata={"texts": json.dumps(texts)})
        os.replace(unfinished, self.path(number))

    def texts(self) -> list[Text]:
        """All texts of all shards, in order; nothing is read before it is used."""
        return [text for path in sorted(self._folder.glob("shard-*.safetensors")) for text in _read(path)]


def _read(path: Path) -> Iterator[Text]:
    with safe_open(path, framework="pt") as file:
        texts = json.loads(file.metadata()["texts"])
        whole = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    at = {"tokens": 0, "features": 0, "answer": 0}
    for text in texts:
        count, prompt = text["tokens"], text["prompt"]
        answer = slice(at["answer"], at["answer"] + count - prompt)
        yield Text(
            domain=text["domain"],
            held_out=text["held_out"],
            temperature=text["temperature"],
            prompt=prompt,
            tokens=whole["tokens"][at["tokens"] : at["tokens"] + count],
            features=whole["features"][at["features"] : at["features"] + count - 1],
            top_ids=whole["top_ids"][answer],
            top_probs=whole["top_probs"][answer],
        )
        at["tokens"] += count
        at["features"] += count - 1
        at["answer"] += count - prompt
