"""The drafting protocol as both of its sides read it: version, limits, the conversion of messages."""

from __future__ import annotations

from typing import Final

from cluster.speculation.law import STRICT_LAWS, Law
from cluster.speculation.messages import SessionSpec
from cluster.speculation.sampling import Sampling
from truedraft.v1 import drafting_pb2, inference_pb2

PROTOCOL_VERSION: Final = 1

# Tokens that one Plan may ask for.
MAX_BLOCK_LENGTH: Final = 256

# A peer that is stopped or cut off without a word is noticed within interval + timeout.
KEEPALIVE_INTERVAL_MS: Final = 2000
KEEPALIVE_TIMEOUT_MS: Final = 2500


class UnsupportedLawError(ValueError):
    """An Open under a law that this drafter cannot serve."""


def open_message(spec: SessionSpec, epoch: int, tokens: list[int]) -> drafting_pb2.Open:
    """Opens a sequence at `tokens`: its prompt and whatever has been committed since."""
    sampling = spec.sampling
    return drafting_pb2.Open(
        sequence=spec.sequence,
        epoch=epoch,
        prompt_ids=tokens,
        sampling=inference_pb2.Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        ),
        law=spec.law.name,
        noise_key=spec.noise_key,
    )


def session_spec(message: drafting_pb2.Open) -> SessionSpec:
    """What an Open says. Raises UnsupportedLawError, and ValueError for sampling that is out of range."""
    if message.law not in STRICT_LAWS:
        raise UnsupportedLawError(f"unknown law {message.law!r}; known: {', '.join(STRICT_LAWS)}")
    given = message.sampling
    fields = {name: getattr(given, name) for name in Sampling.__slots__ if given.HasField(name)}
    return SessionSpec(
        sequence=message.sequence,
        prompt_ids=tuple(message.prompt_ids),
        sampling=Sampling(**fields),
        law=Law(message.law),
        noise_key=message.noise_key,
    )
