"""The target model: one ragged forward over rows of many sequences."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cluster.speculation.provenance import Numerics
from verifier_service import attention, packing
from verifier_service.attention import Batch, Segment
from verifier_service.decoder import Decoder, can_decode
from verifier_service.kv_cache import SequenceCache

log = logging.getLogger(__name__)

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_MOVING_ROPE = {"longrope", "dynamic"}
# Rows on which the lean decoder is compared with transformers.
_PROBE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence to compute: `tokens` at positions start.., of a prompt of `prompt` tokens.

    wanted: how many of the last rows need logits.
    """

    cache: SequenceCache
    tokens: Sequence[int]
    start: int
    prompt: int
    wanted: int


class TargetModel:
    """A transformers causal LM behind the ragged attention, its linears packed on a CPU.

    model: loaded, in evaluation mode; threads: CPU threads, 0 for all cores. The model is changed in
    place. Raises ValueError for a model that cannot run so: at once, or at its first forward for
    attention with a feature that is not implemented.
    """

    def __init__(self, model: PreTrainedModel, weights_hash: str, threads: int = 0) -> None:
        _refuse_unsupported(model)
        torch.set_num_threads(threads or os.cpu_count() or 1)
        self._model = model
        self._device = model.device
        self._weights_hash = weights_hash
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self._packed = self._device.type == "cpu" and model.dtype == torch.float32
        if self._packed:
            packing.pack(model)
        self._decoder = self._lean_decoder() if self._packed else None
        text = model.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.context: int = text.max_position_embeddings

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> list[Tensor]:
        """Logits of the wanted rows: float32 [wanted, V] for each sequence, in order.

        Writes the keys and values of all rows; the caller sets the caches' lengths.
        """
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        keep: list[int] = []
        for rows in batch:
            count = len(rows.tokens)
            # The prompt's last row decides a token, so it is computed like every deciding row.
            segments.append(Segment(rows.cache, len(tokens), count, rows.start, rows.prompt - 1))
            keep.extend(range(len(tokens) + count - rows.wanted, len(tokens) + count))
            tokens.extend(rows.tokens)
            positions.extend(range(rows.start, rows.start + count))
        run = self._decoder.forward if self._decoder is not None else self._through_transformers
        ids, places, wanted = (
            torch.tensor(values, dtype=torch.long, device=self._device)
            for values in (tokens, positions, keep)
        )
        logits = run(ids, places, Batch(segments, self._device), wanted)
        return list(logits.split([rows.wanted for rows in batch]))

    def _through_transformers(self, tokens: Tensor, positions: Tensor, batch: Batch, keep: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
            batch=batch,
        )
        logits: Tensor = output.logits[0].float()
        return logits

    @torch.inference_mode()
    def _lean_decoder(self) -> Decoder | None:
        """A decoder that gives this model's logits, if there is one."""
        if not can_decode(self._model):
            return None
        decoder = Decoder(self._model)
        positions = torch.arange(_PROBE_ROWS)
        probe = (37 * positions * positions + 11) % self._model.config.get_text_config().vocab_size
        expected, got = (
            run(
                probe,
                positions,
                Batch([Segment(SequenceCache(_PROBE_ROWS), 0, _PROBE_ROWS, 0, 4)], self._device),
                positions,
            )
            for run in (self._through_transformers, decoder.forward)
        )
        if torch.allclose(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
            return decoder
        log.warning(
            "the lean decoder differs from transformers on this %s model", self._model.config.model_type
        )
        return None

    def numerics(self, row_invariant: bool) -> Numerics:
        """What bitwise equality of this model's tokens is relative to."""
        kernels = "+".join(
            (
                "onednn-packed" if self._packed else "stock",
                "sdpa-tiles",
                "lean" if self._decoder is not None else "transformers",
            )
        )
        return Numerics(
            weights_hash=self._weights_hash,
            dtype=str(self._model.dtype).removeprefix("torch."),
            kernels=f"torch-{torch.__version__}/{self._device.type}/{kernels}",
            threads=torch.get_num_threads(),
            row_invariant=row_invariant,
        )


def _rope_types(value: object) -> set[str]:
    """The types of rotary embedding in a configuration, also where layers differ in theirs."""
    if not isinstance(value, dict):
        return set()
    found = {str(value[key]) for key in ("rope_type", "type") if key in value}
    return found.union(*(_rope_types(inner) for inner in value.values()))


def _refuse_unsupported(model: PreTrainedModel) -> None:
    """Raises ValueError for models that would run over a ragged batch without a word, and wrongly."""
    family = model.config.model_type
    if not model._supports_attention_backend or model._is_stateful:
        raise ValueError(f"models of type {family!r} cannot run through a custom attention alone")
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if others := kinds - _LAYER_TYPES:
        raise ValueError(f"models of type {family!r} have unsupported layers: {', '.join(sorted(others))}")
    # They turn every row of a batch by factors that follow from its largest position.
    if moving := _rope_types(getattr(model.config.get_text_config(), "rope_parameters", None)) & _MOVING_ROPE:
        raise ValueError(
            f"rotary embedding of type {moving.pop()!r} makes a row depend on the rest of its batch"
        )
