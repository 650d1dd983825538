"""The target model: one ragged forward over rows of many sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import torch
from llvmlite import binding
from numba.core import config
from torch import Tensor
from transformers import PreTrainedModel

from cluster.checkpoints.adapters import Adapter
from cluster.drafting.block_diffusion import Fusing
from cluster.drafting.features import LayerTaps
from cluster.kernels import packed
from cluster.kernels.attention import PAGE
from cluster.speculation.provenance import Numerics
from verifier_service.cache.kv_cache import KVPool, SequenceCache
from verifier_service.layers import attention
from verifier_service.layers.adapting import adapt
from verifier_service.layers.attention import Batch, Segment
from verifier_service.layers.decoder import Decoder, can_decode
from verifier_service.spec import INT8
from verifier_service.target.fusing import Fuser, check_fusing
from verifier_service.tensor_parallel.orders import Leader
from verifier_service.tensor_parallel.sharding import Shards

log = logging.getLogger(__name__)

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_MOVING_ROPE = {"longrope", "dynamic"}
# Rows on which our own decoder is compared with transformers.
_PROBE_ROWS = 40
_CHECKED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence to compute: `tokens` after the first `start` of its text, in slots start.. of its
    cache; the last `wanted` need logits. above: as of Segment, None where each row follows the one before;
    adapter: its name, empty for the target itself."""

    cache: SequenceCache
    tokens: Sequence[int]
    start: int
    wanted: int
    above: tuple[int, ...] | None = None
    adapter: str = ""


class TargetModel:
    """A transformers causal LM over paged keys and values, on a CPU through our own kernels.

    model: loaded, in evaluation mode; it is changed in place. threads: CPU threads, 0 for all cores;
    integers: the weights were rounded by `quantize` and are to be kept as int8; fusing: what drafters read,
    to be kept beside keys and values; shards: where it is a share of the model, for which this process is one
    rank of several, of which rank 0 has the others do what it does; adapters: that rows may go through, for
    which layers are transformers'. pool: of a few thousand tokens, for
    checks and measurements; an engine has one of its own. Raises ValueError for a model that cannot
    run so: at once, or at its first forward for attention with a feature that is not implemented;
    CheckpointError for a drafter of another target.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        weights_hash: str,
        threads: int = 0,
        integers: bool = False,
        fusing: Fusing | None = None,
        shards: Shards | None = None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        _refuse_unsupported(model)
        most: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self._threads = min(threads or most, most)
        torch.set_num_threads(self._threads)
        self._model = model
        self._shards = shards
        self._leader = Leader(shards.ranks) if shards is not None and shards.ranks.rank == 0 else None
        self._device, self._dtype = model.device, model.dtype
        self._weights_hash = weights_hash
        text = model.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.context: int = text.max_position_embeddings
        self.fuser: Fuser | None = None
        if fusing is not None:
            check_fusing(fusing, text.num_hidden_layers, text.hidden_size)
            self.fuser = Fuser(fusing, self._device, self._dtype)
        self.pool = self.new_pool(_CHECKED_TOKENS)
        self._ours = self._device.type == "cpu" and model.dtype == torch.float32
        self._integers = integers
        if integers and not self._ours:
            raise ValueError("weights in int8 run on a CPU alone")
        taps = fusing.info.layers if fusing is not None else ()
        # It runs all layers in one call, in which nothing could be gathered from other ranks or added.
        own = self._ours and shards is None and not adapters
        self._decoder = self._own_decoder(taps) if own else None
        self._taps: LayerTaps | None = None
        if self._decoder is None:
            if taps:
                self._taps = LayerTaps(model, taps)
            attention.register()
            model.set_attn_implementation(attention.NAME)
            if self._ours:
                packed.pack(model, integers)
        else:
            # Its weights were taken over.
            model.model.layers = None
        self.adapters = {adapter.name: adapter.digest for adapter in adapters}
        self._chosen = adapt(model, adapters, self._ours) if adapters else None

    def new_pool(self, tokens: int, shared: bool = True) -> KVPool:
        """Room for the keys and values of so many tokens; shared: see KVPool."""
        kv_heads = self._shards.kv_heads if self._shards is not None else None
        pool = _pool(self._model, tokens, self.fuser, shared, kv_heads)
        if self._leader is not None:
            self._leader.made(pool, tokens)
        return pool

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows], ready: Callable[[], None] = lambda: None) -> list[Tensor]:
        """Logits of the wanted rows: float32 [wanted, V] for each sequence, in order; their caches are of one
        pool. ready: called when all is prepared and computing begins, during which other threads may run.

        Writes the keys and values of all rows, and what drafters read of them; the caller sets the caches'
        lengths. Raises OutOfPagesError; RankLostError when another process that it needs does not answer.
        """
        tokens: list[int] = []
        segments: list[Segment] = []
        keep: list[int] = []
        for rows in batch:
            count = len(rows.tokens)
            segments.append(Segment(rows.cache, len(tokens), count, rows.start, rows.above))
            keep.extend(range(len(tokens) + count - rows.wanted, len(tokens) + count))
            tokens.extend(rows.tokens)
        if self._chosen is not None:
            self._chosen.by_adapter = self._rows_by_adapter(batch)
        places = Batch(segments)
        ids, positions, wanted = (
            torch.as_tensor(values, dtype=torch.long, device=self._device)
            for values in (tokens, places.positions, keep)
        )
        if self._leader is not None:
            self._leader.step(places, ids, positions, wanted)
        ready()
        logits, features = self.run(ids, positions, places, wanted)
        if self.fuser is not None and features is not None and places.pool.fused is not None:
            pages, within = map(torch.from_numpy, places.written)
            places.pool.fused.put(pages, within, features)
        return list(logits.split([rows.wanted for rows in batch]))

    def _rows_by_adapter(self, batch: Sequence[Rows]) -> dict[str, Tensor]:
        found: dict[str, list[int]] = {}
        row = 0
        for rows in batch:
            end = row + len(rows.tokens)
            if rows.adapter:
                found.setdefault(rows.adapter, []).extend(range(row, end))
            row = end
        return {name: torch.tensor(rows, device=self._device) for name, rows in found.items()}

    @torch.inference_mode()
    def run(
        self, tokens: Tensor, positions: Tensor, places: Batch, wanted: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The forward as every rank runs it; tokens, positions: int64 [rows]; wanted: rows that need logits.
        Returns those, float32 [n, V], and what drafters read of the rows, where they do."""
        numba.set_num_threads(self._threads)
        run = self._decoder.forward if self._decoder is not None else self._through_transformers
        device = self._device
        return run(tokens.to(device), positions.to(device), places, wanted.to(device))

    def close(self) -> None:
        """Lets the other ranks of this target go; there is no forward after it."""
        if self._shards is not None:
            self._shards.ranks.close()

    def score(self, texts: Sequence[Sequence[int]], wanted: int) -> list[Tensor]:
        """Logits of the last `wanted` positions of whole texts: float32 [wanted, V] each; nothing is kept."""
        pool = self.new_pool(sum(len(text) + PAGE for text in texts))
        return self.forward([Rows(pool.open(), text, 0, wanted) for text in texts])

    def _through_transformers(
        self, tokens: Tensor, positions: Tensor, batch: Batch, keep: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=keep,
            batch=batch,
        )
        logits: Tensor = output.logits[0].float()
        return logits, self._taps.take()[0] if self._taps is not None else None

    @torch.inference_mode()
    def _own_decoder(self, taps: Sequence[int]) -> Decoder | None:
        """A decoder that gives this model's logits, if there is one."""
        if not can_decode(self._model):
            return None
        positions = torch.arange(min(_PROBE_ROWS, self.context))
        probe = (37 * positions * positions + 11) % self.vocab_size
        expected = self._model(probe[None]).logits[0]
        decoder = Decoder(self._model, self.pool.dim, self._integers, taps)
        cache = self.pool.open()
        segments = [Segment(cache, 0, len(probe), 0)]
        got, _ = decoder.forward(probe, positions, Batch(segments), positions)
        cache.release()
        if torch.allclose(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
            return decoder
        log.warning(
            "our own kernels differ from transformers on this %s model", self._model.config.model_type
        )
        return None

    def numerics(self, row_invariant: bool) -> Numerics:
        """What bitwise equality of this model's tokens is relative to."""
        if self._ours:
            layers = "own" if self._decoder is not None else "transformers"
            kernels = f"numba-{numba.__version__}/{binding.get_host_cpu_name()}/{layers}-layers"
        else:
            kernels = f"torch-{torch.__version__}/{self._device.type}/sdpa"
        if self._shards is not None:
            kernels += f"/{self._shards.ranks.size}-ranks"
        return Numerics(
            weights_hash=self._weights_hash,
            dtype=INT8 if self._integers else str(self._dtype).removeprefix("torch."),
            kernels=kernels,
            threads=self._threads,
            row_invariant=row_invariant,
        )


def _pool(
    model: PreTrainedModel,
    tokens: int,
    fuser: Fuser | None,
    shared: bool,
    kv_heads: int | None,
) -> KVPool:
    config = model.config.get_text_config()
    heads: int = config.num_attention_heads
    kv_heads = kv_heads or getattr(config, "num_key_value_heads", None) or heads
    dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    return KVPool(layers, kv_heads, dim, tokens, model.dtype, model.device, fuser, shared)


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
