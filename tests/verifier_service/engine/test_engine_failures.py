"""Failing steps and listeners, cancelled requests, the end of an engine."""

import threading

import torch

from cluster.drafting import NgramDrafter
from cluster.speculation.request import Committed, Failed, Finished
from tests.verifier_service.helpers import LONG, Port, alone, answered
from verifier_service.batch import Answer
from verifier_service.drafting.local import LocalDrafting


def test_a_failing_step_fails_its_batch_and_no_waiting_request(engine_with, request_for, loaded, monkeypatch):
    port = Port(lambda ticket: [answered(ticket)])
    engine = engine_with(port, max_active=2)
    requests = [request_for(max_tokens=8), request_for("a", max_tokens=8), request_for(LONG, max_tokens=8)]
    plain = alone(engine_with(), requests[2]).token_ids
    forward, steps = loaded.model.forward, iter(range(100))

    def failing(batch, ready):
        if next(steps) == 3:
            raise torch.OutOfMemoryError("no room")
        return forward(batch, ready)

    monkeypatch.setattr(loaded.model, "forward", failing)
    events = [[], [], []]
    for request, log in zip(requests, events, strict=True):
        engine.submit(request, log.append)
    while not any(isinstance(event, Finished) for event in events[2]):
        engine.step()
    for log in events[:2]:
        assert log[-1] == Failed("the verifier's forward failed: OutOfMemoryError")
        assert len([event for event in log if isinstance(event, Failed | Finished)]) == 1
    assert [t for event in events[2] if isinstance(event, Committed) for t in event.token_ids] == plain
    assert (engine.load().active, engine.load().kv_tokens, port.open_sequences) == (0, 0, set())


def test_a_listener_that_fails_ends_its_own_request_alone(engine_with, request_for):
    engine = engine_with(LocalDrafting(NgramDrafter()))
    heard, kept = [], Answer()

    def fail(event):
        heard.append(event)
        raise ConnectionError("nobody is there")

    thread = threading.Thread(target=engine.run)
    thread.start()
    engine.submit(request_for(max_tokens=30), fail)
    over = threading.Event()
    engine.submit(request_for("a", 1.0), lambda event: (kept.take(event), kept.finished and over.set()))
    assert over.wait(60)
    engine.stop()
    thread.join(60)
    assert len(heard) == 1
    assert kept.token_ids == alone(engine_with(), request_for("a", 1.0)).token_ids
    assert engine.load().kv_tokens == 0


def test_a_request_that_waits_is_cancelled_without_a_trace(engine_with, request_for):
    engine = engine_with(max_active=1)
    running, waiting = Answer(), []
    engine.submit(request_for(max_tokens=6), running.take)
    engine.submit(request_for("a"), waiting.append)
    engine.step()
    assert engine.load().queued == 1
    engine.cancel(request_for("a").request_id)
    while running.finished is None:
        engine.step()
    assert waiting == []
    assert (engine.load().queued, engine.load().kv_tokens) == (0, 0)


def test_a_request_beside_a_cancelled_one_keeps_its_tokens(engine_with, request_for):
    plain = alone(engine_with(), request_for("a", 1.0)).token_ids
    engine = engine_with(LocalDrafting(NgramDrafter()))
    kept, dropped = Answer(), []
    engine.submit(request_for("a", 1.0), kept.take)
    engine.submit(request_for(LONG), dropped.append)
    while len(dropped) < 3:
        engine.step()
    engine.cancel(request_for(LONG).request_id)
    engine.cancel("a request that nobody made")
    engine.step()
    seen = len(dropped)
    assert engine.load().active == 1
    assert 0 < engine.load().kv_tokens < len(request_for(LONG).prompt_ids)
    while kept.finished is None:
        engine.step()
    assert len(dropped) == seen
    assert kept.token_ids == plain


def test_an_engine_in_its_thread_serves_and_stops_and_leaves_nobody_waiting(engine_with, request_for):
    engine = engine_with(LocalDrafting(NgramDrafter()))
    thread = threading.Thread(target=engine.run)
    thread.start()
    done, began, over = threading.Event(), threading.Event(), threading.Event()
    first, endless = Answer(), []

    def take(event):
        first.take(event)
        if first.finished is not None:
            done.set()

    def listen(event):
        endless.append(event)
        began.set()
        if isinstance(event, Failed):
            over.set()

    engine.submit(request_for(max_tokens=5), take)
    assert done.wait(60)
    assert first.token_ids == alone(engine_with(), request_for(max_tokens=5)).token_ids
    engine.submit(request_for("a", 1.0, max_tokens=400, request_id="endless"), listen)
    assert began.wait(60)
    engine.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert over.is_set() or isinstance(endless[-1], Finished)
    late = []
    engine.submit(request_for(), late.append)
    assert late == [Failed("the verifier is shutting down", leaving=True)]
    assert engine.load().kv_tokens == 0
