"""The proxy that delays, and both benches of the scheduler on a model of no size."""

import asyncio
import contextlib
import time

import pytest

from cluster.bench.load import measuring as load
from cluster.bench.load import run as run_load
from cluster.bench.network import measuring as network
from cluster.bench.network import run as run_network
from cluster.bench.network.delay import DelayingProxy
from cluster.bench.statistics import Ratio
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec


@contextlib.asynccontextmanager
async def echo():
    """A server that says what it is told."""

    async def answer(reader, writer):
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = DelayingProxy(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield proxy
    finally:
        proxy.close()
        server.close()


async def test_what_is_sent_comes_whole_in_order_and_not_before_its_round_trip():
    async with echo() as proxy:
        proxy.delay(0.2)
        host, port = proxy.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        sent = [f"{n:06}".encode() * 100 for n in range(50)]
        began = time.monotonic()
        for each in sent:
            writer.write(each)
            await writer.drain()
        # All of them travel at once, or this would take ten seconds and not 0.2.
        assert await reader.readexactly(600 * 50) == b"".join(sent)
        assert 0.2 <= time.monotonic() - began < 10.0
        writer.write_eof()
        assert await reader.read() == b""


@pytest.fixture(scope="module")
def tiny(tiny_path):
    spec = VerifierSpec(model=str(tiny_path), threads=1, kv_tokens=4096, audit=False)
    return load_target(spec), spec


def test_every_contestant_of_the_network_bench_answers_the_same(tiny, tmp_path):
    outcome = network.measure(*tiny, concurrent=2, tokens=8, pairs=1, say=lambda what: None)
    assert len(outcome.rows) == 3 + len(network.TRIPS)
    assert all(row["tokens_per_second"] > 0.0 for row in outcome.rows.values())
    assert network.as_dict([outcome])[0]["verify_step_seconds"] == outcome.step > 0.0
    run_network.draw([outcome, outcome], tmp_path / "network.svg")
    assert (tmp_path / "network.svg").stat().st_size > 1000


def test_the_load_bench_compares_with_the_best_fixed_length(tiny):
    chosen = load.choices(*tiny, tokens=8, pairs=1, say=lambda what: None)
    assert [each.kind for each in chosen] == [load.GOOD, load.USELESS]
    for each in chosen:
        fixed = {name: row["tokens_per_second"] for name, row in each.rows.items() if name != load.CHOSEN}
        assert each.best == max(fixed, key=fixed.get)


def test_a_picture_and_verdicts_of_loads(tmp_path):
    row = {"tokens_per_second": 9.0, "tokens_per_round": 1.0, "drafts_per_round": 0.0}
    loads = [
        load.Load(
            n, {load.OFF: row, load.LOCAL: row}, {}, {load.LOCAL: Ratio(1.0, 0.9 if n == 4 else 0.99, 1.1)}
        )
        for n in (1, 4)
    ]
    assert [each.verdicts for each in loads] == [
        {"drafter in process: ≥ 0.98 of off": "met"},
        {"drafter in process: ≥ 0.98 of off": "not resolved"},
    ]
    run_load.draw(loads, tmp_path / "load.svg")
    assert (tmp_path / "load.svg").stat().st_size > 1000
