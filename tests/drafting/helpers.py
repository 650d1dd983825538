"""A drafter whose blocks tell what it was given, and short ways to say what tests say often."""

import asyncio
import threading

from cluster.drafting.drafter import DraftJob
from cluster.speculation.law import COUPLED
from cluster.speculation.messages import DraftBlock, SessionSpec
from cluster.speculation.proposal import SparseRow, pack
from cluster.speculation.sampling import Sampling

GREEDY = Sampling(temperature=0.0)
VOCAB = 1000


def spec(sequence=1, prompt=(1, 2, 3), sampling=GREEDY, noise_key=7, law=COUPLED, entries=0):
    return SessionSpec(sequence, tuple(prompt), sampling, law, noise_key, entries)


async def until(condition, seconds=10):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def expected(tokens, length):
    """What ScriptedDrafter drafts after `tokens`: a function of all of them and of their order."""
    state = 0
    for token in tokens:
        state = (31 * state + token) % VOCAB
    return tuple((state + k) % VOCAB for k in range(length))


class ScriptedDrafter:
    """Drafts `expected`, with a proposal of two entries if it is asked for any; fails when a sequence's last
    token is in `poison`; waits for `gate`."""

    model = "scripted"
    revision = "r1"
    kind = "scripted"
    context = 0
    certain = False
    longest = 0
    features = None

    def __init__(self):
        self.texts = {}
        self.proposing = set()
        self.calls = []
        self.poison = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def open(self, spec):
        self.texts[spec.sequence] = list(spec.prompt_ids)
        if spec.proposal_entries:
            self.proposing.add(spec.sequence)

    def draft(self, jobs):
        self.calls.append(list(jobs))
        self.entered.set()
        assert self.gate.wait(10)
        return [self._draft(job) for job in jobs]

    def _draft(self, job: DraftJob):
        text = self.texts[job.sequence]
        text.extend(job.committed)
        if text[-1] in self.poison:
            raise RuntimeError("poisoned")
        tokens, proposal = expected([*text, *job.guess], job.length), None
        if job.sequence in self.proposing:
            proposal = pack([SparseRow((token, token + VOCAB), (0.75, 0.25)) for token in tokens])
        return DraftBlock(tokens, (0.5,) * job.length, proposal=proposal)

    def close(self, sequence):
        self.texts.pop(sequence, None)
