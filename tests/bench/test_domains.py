"""Acceptance by domain: pooled counts, what is left out, traffic, and the command on a tiny target."""

import json

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.bench.domains.prompts import DOMAINS
from cluster.bench.domains.report import Size
from cluster.bench.domains.rounds import Round, Timed, Watched, acceptance, pooled, speed
from cluster.bench.domains.run import Asking, own_prompts, run_domains
from cluster.bench.domains.traffic import read_traffic, weighted
from cluster.checkpoints.tiny import build_tiny
from cluster.drafting import NgramDrafter
from cluster.scheduling import PlannerName
from cluster.speculation.request import GenerationRequest
from cluster.terminal import Output
from tests.drafter_service.dflash.checkpoints import HIDDEN, TARGET_LAYERS, build_drafter
from tests.verifier_service.helpers import alone, oracle
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.spec import VerifierSpec

SIZE = Size(per_domain=2, timed=1, tokens=16, block_length=3, temperatures=(0.0, 1.0))


def test_there_are_sixteen_prompts_in_each_of_eight_domains():
    assert len(DOMAINS) >= 8
    assert all(len(set(prompts)) >= 16 for prompts in DOMAINS.values())


def test_counts_are_pooled_over_rounds_that_had_a_draft():
    # A mean of the answers' ratios would be (4 + 1) / 2.
    found = acceptance([[Round(3, 4)], [Round(3, 1)] * 9 + [Round(0, 1)] * 5])
    assert (found.rounds, found.undrafted) == (10, 5)
    assert found.length.mean == 13 / 10
    assert found.overall.mean == 18 / 15
    assert found.undrafted_share == 5 / 15
    assert found.by_position == (0.1, 0.1, 0.1)
    assert found.length.low < 1.3 < found.length.high


def test_a_position_counts_in_rounds_that_drafted_it():
    found = acceptance([[Round(1, 2), Round(2, 2), Round(2, 3), Round(2, 1)]])
    assert found.by_position == (3 / 4, 1 / 3)


def test_nothing_drafted_is_no_length():
    found = acceptance([[Round(0, 1)], []])
    assert (found.length, found.overall.mean, found.by_position) == (None, 1.0, ())
    assert pooled([]) is None
    assert speed([]) is None


def test_speed_is_of_pooled_seconds():
    found = speed([Timed(10, 2.0, 1.0, 8, 2), Timed(30, 4.0, 3.0, 12, 3)])
    assert (found.plain, found.drafting) == (40 / 6, 10.0)
    assert found.ratio.mean == pytest.approx(1.5)
    assert found.switched_off_share == 5 / 20
    assert found.better is None


@pytest.mark.parametrize(("other", "better"), [(1.0, 4 / 4), (9.0, 6 / 4)])
def test_a_choice_is_compared_with_the_faster_of_none_and_n_grams(other, better):
    ngram = [Timed(10, 2.0, other, 8, 0), Timed(30, 4.0, 3.0, 12, 0)]
    found = speed([Timed(10, 2.0, 1.0, 8, 2), Timed(30, 4.0, 3.0, 12, 3)], ngram)
    assert found.better.mean == pytest.approx(better)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target") / "tiny"
    return build_tiny(folder, seed=1, layers=TARGET_LAYERS, hidden=HIDDEN)


@pytest.fixture(scope="module")
def loaded(target):
    return load_target(VerifierSpec(model=str(target), threads=1))


def test_the_rounds_written_down_are_those_of_the_answer(loaded):
    request = Asking(loaded, 30).request([("user", "one two three")], "chat", 0.0, 1)
    spec = VerifierSpec(model="", planner=PlannerName.FIXED, block_length=4, draft_deadline_s=30.0)
    plain = build_engine(loaded, spec, None, NoOpTracer())
    truth = [*request.prompt_ids, *alone(plain, request).token_ids]
    watched = Watched(LocalDrafting(oracle(truth)))
    alone(build_engine(loaded, spec, watched, NoOpTracer()), request)
    [rounds] = watched.rounds.values()
    # The first token comes with the prompt, the round that ends the answer is left out.
    assert rounds == [Round(4, 5)] * 5
    assert (len(watched.asked), watched.drafted) == (6, 6)


def test_of_a_tree_the_depth_is_written_down_and_answers_stay_what_they_are(loaded):
    request = Asking(loaded, 30).request([("user", "one two three one two four one two")], "chat", 1.0, 1)
    spec = VerifierSpec(model="", planner=PlannerName.FIXED, block_length=3, block_width=3)
    plain = build_engine(loaded, spec, None, NoOpTracer())
    watched = Watched(LocalDrafting(NgramDrafter(minimum=1)))
    engine = build_engine(loaded, spec, watched, NoOpTracer())
    assert alone(engine, request).token_ids == alone(plain, request).token_ids
    [rounds] = watched.rounds.values()
    assert 0 < max(each.drafted for each in rounds) <= 3
    assert all(each.emitted <= each.drafted + 1 for each in rounds)


@pytest.mark.parametrize(
    "text",
    [
        "domain,tokens\ncoding,300\nchat,100\npoetry,100\n",
        "coding,200\ncoding,100\n\nchat,100\npoetry,100\n",
        (
            "# TYPE truedraft_tokens_emitted counter\n"
            'truedraft_tokens_emitted_total{domain="coding",law="coupled",drafter="d"} 250\n'
            'truedraft_tokens_emitted_total{domain="coding",law="none",drafter="none"} 50\n'
            'truedraft_tokens_emitted_total{domain="chat",law="coupled",drafter="d"} 100\n'
            'truedraft_tokens_emitted_total{domain="poetry",law="coupled",drafter="d"} 100\n'
            'truedraft_rounds_total{domain="coding",law="coupled",drafter="d"} 90\n'
        ),
    ],
    ids=["header", "plain", "counters"],
)
def test_traffic_is_weighed_as_pooled_counters_would(tmp_path, text):
    path = tmp_path / "traffic"
    path.write_text(text)
    traffic = read_traffic(path)
    assert traffic == {"coding": 300.0, "chat": 100.0, "poetry": 100.0}
    found = weighted(traffic, {"coding": 3.0, "chat": 1.0, "agent": 5.0})
    assert found.measured == 400 / 500
    assert found.length == 400 / (100 + 100)
    assert weighted(traffic, {"agent": 5.0}).length is None


@pytest.mark.parametrize("text", ["", "coding\n", "coding,many\n", "# TYPE x counter\nx 3\n", "coding,0\n"])
def test_what_is_no_traffic_is_refused(tmp_path, text):
    (tmp_path / "traffic").write_text(text)
    with pytest.raises(ValueError, match="traffic"):
        read_traffic(tmp_path / "traffic")


def test_a_users_own_prompts_keep_their_domains(tmp_path):
    lines = [{"prompt": "a", "domain": "x"}, {"messages": [{"role": "user", "content": "b"}]}]
    (tmp_path / "own").write_text("\n".join(map(json.dumps, lines)))
    assert own_prompts(tmp_path / "own") == {"x": [(("user", "a"),)], "(none)": [(("user", "b"),)]}


def test_every_request_names_its_domain_and_can_be_repeated(loaded):
    asking = Asking(loaded, 9)
    first, again = (asking.request([("user", "hello")], "chat", 0.7, 3) for _ in range(2))
    assert isinstance(first, GenerationRequest)
    assert first == again
    assert (first.domain, first.seed, first.max_tokens) == ("chat", 3, 9)


def test_the_command_measures_every_drafter_and_the_choice(target, tmp_path, capsys):
    drafter = build_drafter(tmp_path / "drafter")
    lines = [{"prompt": f"one two three {k}", "domain": d} for d in ("coding", "chat") for k in range(2)]
    (tmp_path / "own").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "mix").write_text("coding,300\nstory,100\n")
    files = {"prompts": tmp_path / "own", "traffic": tmp_path / "mix"}
    picture = tmp_path / "picture.svg"
    run_domains(
        str(target),
        ["ngram", str(drafter)],
        SIZE,
        **files,
        output=Output(False, tmp_path / "out.json", picture),
    )
    told = capsys.readouterr().out
    assert "75% of the traffic's tokens" in told
    assert picture.read_text().startswith("<?xml")
    report = json.loads((tmp_path / "out.json").read_text())
    cells = {(each["drafter"], each["temperature"], each["domain"]): each for each in report["found"]}
    names = ("ngram", "drafter", "ngram or drafter")
    assert set(cells) == {(n, t, d) for n in names for t in (0.0, 1.0) for d in ("coding", "chat")}
    for (name, *_), cell in cells.items():
        assert cell["speed"]["plain"] > 0
        assert (cell["speed"]["better"] is not None) == (name == "ngram or drafter")
        assert (cell["acceptance"] is None) == (name == "ngram or drafter")
        if name == "drafter":
            # Random as it is, it drafts in every round.
            assert cell["acceptance"]["undrafted"] == 0
            assert cell["acceptance"]["length"]["mean"] >= 1
            assert len(cell["acceptance"]["by_position"]) == SIZE.block_length
    assert report["summaries"][0]["traffic"]["measured"] == 0.75
