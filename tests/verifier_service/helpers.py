"""Drafters and ports of every character, and short ways to say what the engine's tests say often."""

from cluster.speculation.messages import DraftBlock
from verifier_service.batch import answer_all


class Scripted:
    """Drafts what `propose(committed, length)` says."""

    model, revision, kind = "scripted", "", "scripted"

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


class Port:
    """A port that answers as `reply(ticket)` says: with a reply, a list of replies, or never."""

    def __init__(self, reply):
        self._reply = reply
        self.open_sequences = set()

    def connect(self, deliver):
        self._deliver = deliver

    def open(self, spec):
        self.open_sequences.add(spec.sequence)

    def request(self, ticket):
        for reply in self._reply(ticket):
            self._deliver(reply)

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
