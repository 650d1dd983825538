"""What the authors' package computes; run by itself with the package on its path, and none of our code.

    python reference_run.py CHECKPOINT CASE RESULT [CHECKPOINT CASE RESULT ...]

CASE has embedding and head [V, d], features [n, m·d], rounds [r, 3]: new context rows, anchor, block rows.
"""

from __future__ import annotations

import sys

import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel, _make_cache, _sampling_probs
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig


@torch.inference_mode()
def main(folder: str, case_path: str, result_path: str) -> None:
    case = load_file(case_path)
    dtype = case["embedding"].dtype
    selects = "DFlash2DraftModel" in AutoConfig.from_pretrained(folder).architectures
    kind = DFlash2DraftModel if selects else DFlashDraftModel
    model = kind.from_pretrained(folder, dtype=dtype).eval()
    head = nn.Linear(*case["head"].T.shape, bias=False).to(dtype)
    head.weight.data = case["head"]
    cache, length, found = _make_cache(model.config), 0, {}
    scale = float(getattr(model.config, "dflash_config", {}).get("input_embedding_scale", 1.0))
    for number, (new, anchor, rows) in enumerate(case["rounds"].tolist()):
        ids = torch.full((1, rows), model.mask_token_id)
        ids[0, 0] = anchor
        hidden = model(
            target_hidden=case["features"][None, length : length + new],
            noise_embedding=nn.functional.embedding(ids, case["embedding"]) * scale,
            position_ids=torch.arange(length, length + new + rows)[None],
            past_key_values=cache,
            use_cache=True,
        )[:, 1:]
        length += new
        cache.crop(length - cache.get_seq_length())
        logits = model.compute_logits(hidden, head)
        found[f"hidden{number}"] = hidden[0].float()
        found[f"q{number}"] = _sampling_probs(logits, 1.0)[0]
        found[f"tokens{number}"] = logits.argmax(dim=-1)[0]
        if selects:
            start = torch.tensor([anchor])
            found[f"tokens{number}"] = model.propose(hidden, start, head, 0.0)[0][0]
            torch.manual_seed(number)
            path, candidates, q = model.propose(hidden, start, head, 1.0)
            found |= {f"path{number}": path[0], f"candidates{number}": candidates[0], f"q{number}": q[0]}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, result_path)


if __name__ == "__main__":
    for triple in zip(*[iter(sys.argv[1:])] * 3, strict=True):
        main(*triple)
