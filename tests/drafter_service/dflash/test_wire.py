"""Blocks that come over gRPC are those that the same drafter makes in the verifier's process."""

import pytest
import torch

from cluster.drafting.drafter import DraftJob
from cluster.drafting.features import FeaturesInfo
from cluster.speculation.law import COUPLED, REJECTION
from cluster.speculation.proposal import unpack
from cluster.speculation.sampling import Sampling
from drafter_service.drafters.dflash.drafter import BlockDiffusionDrafter
from drafter_service.drafters.dflash.loading import Borrowed, load_network
from tests.drafter_service.dflash.checkpoints import HIDDEN, VOCAB, build_drafter
from tests.drafting.helpers import GREEDY, spec
from tests.verifier_service.drafting.wire import HELLO, server, side
from verifier_service.drafting.remote import HelloInfo

PROMPT = tuple(range(20, 32))
# What rounds commit: one token, some, and more than a block.
ROUNDS = ((), (5,), (6, 7, 8), tuple(range(40, 50)))
LENGTH = 6
WARM = Sampling(temperature=1.0)


@pytest.mark.parametrize(
    ("sampling", "law", "entries"),
    [(GREEDY, COUPLED, 0), (WARM, COUPLED, 0), (WARM, REJECTION, 8)],
    ids=["greedy", "coupled", "rejection"],
)
@pytest.mark.parametrize("selects", [False, True], ids=["dflash", "dflash2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_wire_changes_no_block(tmp_path, dtype, selects, sampling, law, entries):
    folder = build_drafter(tmp_path, selects=selects)
    generator = torch.Generator().manual_seed(2)
    kind, rounding = (torch.float32, 1e-4) if dtype == "float32" else (torch.bfloat16, 0.05)
    head, fused = (torch.randn(VOCAB, HIDDEN, generator=generator).to(kind) for _ in range(2))
    info = FeaturesInfo((1, 2, 4), "digest", dtype, HIDDEN)

    network, ids = load_network(folder, dtype, "cpu")
    near, far = (
        BlockDiffusionDrafter(network, Borrowed(head, head, ids), "d", "1", info, 512, VOCAB)
        for _ in range(2)
    )
    opened = spec(1, PROMPT, sampling, law=law, entries=entries)
    blocks, done, text = [], 0, len(PROMPT)
    near.open(opened)
    greeting = HelloInfo("hash", HELLO.vocab_size, "target", "1", "verifier-1", info)
    async with server(far) as running, side(running.address, greeting) as verifier:
        verifier.texts[1] = list(PROMPT)
        verifier.remote.open(opened)
        for committed in ROUNDS:
            text += len(committed)
            rows = fused[done : text - 1]
            done = text - 1
            verifier.remote.feed(1, rows)
            verifier.ask(committed=committed, length=LENGTH)
            [block] = near.draft([DraftJob(1, committed, LENGTH, fused=rows)])
            answer = (await verifier.reply()).block
            # Products may be rounded by how memory is aligned, which is not the same on both ways.
            assert answer.tokens == block.tokens
            assert answer.max_q == pytest.approx(block.max_q, rel=rounding)
            assert (answer.proposal is None) == (block.proposal is None) == (law == COUPLED)
            if block.proposal is not None:
                for there, here in zip(unpack(answer, VOCAB), unpack(block, VOCAB), strict=True):
                    assert there.ids == here.ids
                    assert there.probs == pytest.approx(here.probs, rel=rounding)
            blocks.append(block.tokens)
    # A drafter that heard nothing of what was committed would pass with blocks that are all alike.
    assert len(set(blocks)) == len(ROUNDS)
    assert all(len(tokens) == LENGTH for tokens in blocks)
