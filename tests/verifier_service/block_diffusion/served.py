"""Block-diffusion drafters served: a real engine, gRPC, and drafters of both kinds on a tiny target.

The target's head has rows for a few tokens only, so that a random drafter, which borrows it, is right now and
then; the recording drafter holds all features that it reads against the stock model's hidden states.
"""

import contextlib
import threading
from dataclasses import replace

import torch
from opentelemetry.trace import NoOpTracer
from safetensors.torch import load_file, save_file

from cluster.checkpoints import load_model
from cluster.checkpoints.tiny import build_tiny
from cluster.drafting.block_diffusion import read_config, read_fusing
from cluster.speculation.law import NONE
from cluster.speculation.sampling import Sampling
from drafter_service.deployment import load
from drafter_service.server import DraftingServer
from drafter_service.spec import DrafterSpec
from tests.drafter_service.dflash.checkpoints import HIDDEN, TARGET_LAYERS
from verifier_service.batch import answer_all
from verifier_service.build import build_engine
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver
from verifier_service.target.target import TargetModel

SPOKEN = range(300, 308)
# Flat enough that the noise, which both sides share under coupled, decides often.
WARM = Sampling(temperature=2.0, top_k=4)
TEXTS = ["one two three one two", "the river rises in the hills above", "a b c " * 12, "def add("]


def few_words(folder, hidden=HIDDEN, layers=TARGET_LAYERS):
    """A target that says few words."""
    build_tiny(folder, seed=1, layers=layers, hidden=hidden)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = torch.zeros_like(tensors["lm_head.weight"])
    head[list(SPOKEN)] = tensors["lm_head.weight"][list(SPOKEN)]
    save_file(tensors | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    return folder


class Made:
    """A drafter's folder, the target that makes its features, and what drafts with it."""

    def __init__(self, folder, spec, loaded, dtype="float32"):
        self.folder, self.dtype = folder, dtype
        self.spec = replace(spec, block_length=5)
        model = load_model(loaded.checkpoint, "float32", "cpu")
        target = TargetModel(model, "w", threads=1, fusing=read_fusing(folder, dtype))
        self.loaded = replace(loaded, model=target)

    def drafter(self):
        return load(
            DrafterSpec(
                self.loaded.checkpoint.path,
                kind="dflash",
                model=str(self.folder),
                dtype=self.dtype,
                threads=1,
            )
        )

    def engine(self, drafting=None, **fields):
        return build_engine(self.loaded, replace(self.spec, **fields), drafting, NoOpTracer())


class Recording:
    """A drafter that keeps what it reads, by text, and how much it drafted."""

    def __init__(self, drafter):
        self._drafter = drafter
        self.read, self._texts, self.drafted = {}, {}, 0

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def open(self, spec):
        self._texts[spec.sequence] = list(spec.prompt_ids), []
        self._drafter.open(spec)

    def draft(self, jobs):
        for job in jobs:
            text, rows = self._texts[job.sequence]
            text.extend(job.committed)
            if job.fused is not None:
                rows.extend(job.fused)
            assert len(rows) == len(text) - 1
            self.read[tuple(text)] = torch.stack(rows)
        blocks = self._drafter.draft(jobs)
        self.drafted += sum(len(block.tokens) for block in blocks)
        return blocks


@contextlib.contextmanager
def serving(loaded, loop, ports=None):
    """A drafter's server on a loop; its address and what its drafter reads."""
    drafter = Recording(loaded.drafter)
    server = DraftingServer(drafter, loaded.tokenizer_hash, loaded.vocab_size, "drafter", NoOpTracer())
    address = loop.do(server.start("127.0.0.1", ports))
    try:
        yield address, drafter
    finally:
        loop.do(server.stop())


def connected(remote):
    """Waits until it is."""
    deadline = threading.Event()
    for _ in range(1000):
        if remote.state == "connected":
            break
        deadline.wait(0.01)
    assert remote.state == "connected", remote.state


@contextlib.contextmanager
def verifying(made, address, loop, **fields):
    """An engine on a thread that drafts over gRPC; address: of the drafter, or what gives it."""
    loaded = made.loaded
    hello = HelloInfo(
        loaded.tokenizer_hash,
        len(loaded.tokenizer),
        "target",
        "",
        "verifier",
        features=loaded.model.fuser.info,
    )
    remote = RemoteDrafting(StaticResolver(address), hello, loop.loop)
    engine = made.engine(remote, **fields)
    try:
        connected(remote)
        yield engine, remote
    finally:
        loop.do(remote.aclose())


def truths(made, requests):
    return [a.token_ids for a in answer_all(made.engine(), [replace(each, law=NONE) for each in requests])]


def holds_what_the_stock_model_says(made, drafter):
    """All that a drafter read is the projection of the stock model's hidden states."""
    stock = load_model(made.loaded.checkpoint, "float32", "cpu")
    layers, projection = read_config(made.folder).layer_ids, read_fusing(made.folder, "float32").projection
    assert drafter.read
    near = 1e-4 if made.dtype == "float32" else 0.05
    # A block may still be drafted when its answer ends.
    for text, rows in dict(drafter.read).items():
        with torch.inference_mode():
            states = stock(torch.tensor([text]), output_hidden_states=True).hidden_states
            features = torch.cat([states[layer + 1][0, :-1] for layer in layers], dim=-1)
            torch.testing.assert_close(rows.float(), projection(features), atol=near, rtol=near)
