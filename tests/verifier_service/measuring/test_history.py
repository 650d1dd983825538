from verifier_service.measuring import history
from verifier_service.measuring.history import STEP_S, History, RoundTimes


def test_a_history_has_a_step_for_each_time_with_rounds(monkeypatch):
    now = [1000 * STEP_S + 3.0]
    monkeypatch.setattr(history.time, "time", lambda: now[0])
    kept = History()
    kept.add("chat", 3)
    kept.add("chat", 1)
    now[0] += 2 * STEP_S
    kept.add("coding", 5)
    assert kept.state() == [
        {"time": 1000 * STEP_S, "domains": {"chat": [2, 4]}},
        {"time": 1002 * STEP_S, "domains": {"coding": [1, 5]}},
    ]


def test_an_old_step_makes_way(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(history.time, "time", lambda: now[0])
    kept = History()
    for _ in range(500):
        kept.add("chat", 1)
        now[0] += STEP_S
    assert len(kept.state()) == 120
    assert kept.state()[0]["time"] == 380 * STEP_S


def test_break_even_is_how_much_longer_a_round_with_drafts_takes():
    times = RoundTimes()
    times.add(True, 0.3)
    assert times.break_even is None
    times.add(False, 0.2)
    assert times.break_even == 0.3 / 0.2
