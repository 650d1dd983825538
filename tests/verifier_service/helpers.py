"""Drafters and ports of every character, and short ways to say what the engine's tests say often."""

import torch

from cluster.speculation.messages import DraftBlock, DrafterIdentity
from cluster.speculation.noise import DraftField
from cluster.speculation.proposal import SparseRow, pack, truncate
from cluster.speculation.sampling import target_probs
from verifier_service.batch import answer_all
from verifier_service.drafting.port import DraftReply

LONG = "the river rises in the hills " * 12
IDENTITY = DrafterIdentity("model", "kind", "replica")


class Scripted:
    """Drafts what `propose(committed, length)` says."""

    model, revision, kind = "scripted", "", "scripted"
    context, certain, longest, features = 0, True, 0, None

    def __init__(self, propose):
        self._propose = propose
        self._texts = {}

    def open(self, spec):
        self._texts[spec.sequence] = list(spec.prompt_ids)

    def draft(self, jobs):
        blocks = []
        for job in jobs:
            text = self._texts[job.sequence]
            text.extend(job.committed)
            tokens = tuple(self._propose(text, job.length))[: job.length]
            blocks.append(DraftBlock(tokens, (1.0,) * len(tokens)))
        return blocks

    def close(self, sequence):
        self._texts.pop(sequence, None)


class Rows:
    """Next-token distributions of a stock model, each computed once: [V] after the transforms."""

    def __init__(self, model, sampling):
        self._model, self._sampling, self._known = model, sampling, {}

    @torch.inference_mode()
    def __call__(self, text):
        if tuple(text) not in self._known:
            logits = self._model(torch.tensor([list(text)]), use_cache=False).logits[0, -1:].float()
            self._known[tuple(text)] = target_probs(logits, self._sampling)[0]
        return self._known[tuple(text)]


class Mimic:
    """Draws from the target's rows tilted towards low ids, and says so truly unless `recorded` changes it."""

    model, revision, kind = "mimic", "", "mimic"
    context, certain, longest, features = 0, False, 0, None

    def __init__(self, rows, tilt=4.0, recorded=lambda row: row):
        self._rows, self._tilt, self._recorded = rows, tilt, recorded
        self._sessions = {}

    def open(self, spec):
        self._sessions[spec.sequence] = (spec, list(spec.prompt_ids))

    def draft(self, jobs):
        return [self._draft(*self._sessions[job.sequence], job) for job in jobs]

    def _draft(self, spec, text, job):
        text.extend(job.committed)
        noise, drafts, rows = DraftField(spec.noise_key, len(text)), [], []
        for index in range(job.length):
            row = truncate(self._rows([*text, *drafts]), spec.proposal_entries)
            row = SparseRow(row.ids, (row.weights[0] * self._tilt, *row.weights[1:]))
            drafts.append(noise.draw(index, row))
            rows.append(self._recorded(row))
        return DraftBlock(tuple(drafts), tuple(max(row.probs) for row in rows), proposal=pack(rows))

    def close(self, sequence):
        self._sessions.pop(sequence, None)


class Port:
    """A port that answers as `reply(ticket)` says: with a reply, a list of replies, or never."""

    foresees, apart, at_once, reads = False, True, False, False

    def __init__(self, reply):
        self._reply = reply
        self.open_sequences = set()

    def hold(self):
        pass

    def send(self):
        pass

    def connect(self, deliver):
        self.deliver = deliver

    def open(self, spec):
        self.open_sequences.add(spec.sequence)

    def feed(self, sequence, rows):
        pass

    def request(self, ticket):
        for reply in self._reply(ticket):
            self.deliver(reply)
        return True

    def close(self, sequence, reason):
        self.open_sequences.discard(sequence)


def oracle(truth):
    """Drafts exactly what will be emitted."""
    return Scripted(lambda text, length: truth[len(text) :][:length])


def alone(engine, request):
    [answer] = answer_all(engine, [request])
    return answer


def accounted(answer):
    provenance = answer.finished.provenance
    assert provenance.emitted_tokens == len(answer.token_ids) == answer.finished.output_tokens
    assert provenance.accepted_tokens <= provenance.draft_tokens
    assert provenance.rounds >= 1
    return provenance


def answered(ticket, tokens=(), **fields):
    block = DraftBlock(tuple(tokens), (1.0,) * len(tokens))
    return DraftReply(ticket.sequence, ticket.plan_id, block, IDENTITY, **fields)
