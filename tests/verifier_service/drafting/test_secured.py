"""The drafting channel under mutual TLS: who is refused, that decoding goes on, and that files may rotate."""

import asyncio
import contextlib
import os
import shutil
from dataclasses import replace

import grpc.aio
import psutil
import pytest
from opentelemetry.trace import NoOpTracer

from cluster.channel.spec import CHANNEL_NAME, LOOPBACK, Channel
from cluster.drafting import NgramDrafter
from cluster.speculation.law import Claim
from drafter_service.server import DraftingServer
from tests.drafting.certificates import Authority
from tests.verifier_service.helpers import accounted, alone, oracle
from truedraft.v1 import drafting_pb2_grpc
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "pki")


@pytest.fixture
def stranger(tmp_path):
    return Authority(tmp_path / "stranger")


@contextlib.asynccontextmanager
async def serving(loaded, channel, host="127.0.0.1", drafter=None):
    vocab_size = len(loaded.tokenizer)
    server = DraftingServer(
        drafter or NgramDrafter(), loaded.tokenizer_hash, vocab_size, "drafter-1", NoOpTracer(), channel
    )
    await server.start(host)
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def drafting(loaded, address, channel):
    hello = HelloInfo(loaded.tokenizer_hash, len(loaded.tokenizer), "target", "1", "verifier-1")
    remote = RemoteDrafting(StaticResolver(address), hello, asyncio.get_running_loop(), channel)
    try:
        yield remote
    finally:
        await remote.aclose()


async def until(remote, state):
    async with asyncio.timeout(15):
        while not remote.state.startswith(state):
            await asyncio.sleep(0.01)


CLOSED = "refused: certificate: the drafter ended the handshake; it may not accept this verifier's"
REJECTED = "refused: certificate: the drafter's certificate is not accepted: "
NAMELESS = "refused: certificate: the verifier's certificate is not made out to drafting.truedraft.internal"


def good(ours, theirs):
    return ours.issue("drafter"), ours.issue("verifier")


def verifier_with(make):
    return lambda ours, theirs: (ours.issue("drafter"), make(ours, theirs))


def drafter_with(make):
    return lambda ours, theirs: (make(ours, theirs), ours.issue("verifier"))


# Each makes the channels of drafter and verifier from the authority that both trust, and another.
REFUSED = {
    "verifier without": (verifier_with(lambda ours, theirs: LOOPBACK), CLOSED),
    "verifier of a stranger": (
        verifier_with(lambda ours, theirs: theirs.issue("verifier", trusted=ours)),
        CLOSED,
    ),
    "verifier expired": (verifier_with(lambda ours, theirs: ours.issue("verifier", expired=True)), CLOSED),
    "verifier of another name": (
        verifier_with(lambda ours, theirs: ours.issue("verifier", "web.example")),
        NAMELESS,
    ),
    "verifier's file is gone": (
        verifier_with(lambda ours, theirs: replace(ours.issue("verifier"), certificate="/absent")),
        "refused: certificate: /absent cannot be read: No such file or directory",
    ),
    "drafter without": (drafter_with(lambda ours, theirs: LOOPBACK), f"{REJECTED}wrong version number"),
    "drafter of a stranger": (
        drafter_with(lambda ours, theirs: theirs.issue("drafter", trusted=ours)),
        f"{REJECTED}certificate verify failed",
    ),
    "drafter expired": (
        drafter_with(lambda ours, theirs: ours.issue("drafter", expired=True)),
        f"{REJECTED}certificate verify failed: certificate has expired",
    ),
    "drafter of another name": (
        drafter_with(lambda ours, theirs: ours.issue("drafter", "web.example")),
        f"{REJECTED}hostname verification check failed",
    ),
}


async def answer(engine_with, request_for, remote=None):
    return await asyncio.to_thread(alone, engine_with(remote), request_for())


async def test_two_that_trust_each_other_draft(loaded, engine_with, request_for, authority, stranger):
    plain = await answer(engine_with, request_for)
    drafter, verifier = good(authority, stranger)
    truth = oracle([*request_for().prompt_ids, *plain.token_ids])
    async with (
        serving(loaded, drafter, drafter=truth) as server,
        drafting(loaded, server.address, verifier) as remote,
    ):
        engine = engine_with(remote)
        await until(remote, "connected")
        drafted = await asyncio.to_thread(alone, engine, request_for())
    provenance = accounted(drafted)
    assert provenance.accepted_tokens > 0
    assert not provenance.fallbacks
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("kind", REFUSED)
async def test_others_are_refused_and_the_answer_is_decoded_plainly_and_says_why(
    loaded, engine_with, request_for, authority, stranger, kind
):
    channels, words = REFUSED[kind]
    drafter, verifier = channels(authority, stranger)
    plain = await answer(engine_with, request_for)
    async with serving(loaded, drafter) as server, drafting(loaded, server.address, verifier) as remote:
        engine = engine_with(remote)
        await until(remote, "refused")
        refused = await asyncio.to_thread(alone, engine, request_for())
        assert server.healthy
    provenance = accounted(refused)
    assert refused.token_ids == plain.token_ids
    assert provenance.draft_tokens == 0
    assert provenance.fallbacks[Fallback.NO_DRAFTER] > 0
    assert provenance.claim is Claim.IDENTICAL_TOKENS
    assert any(reason.startswith(words) for reason in provenance.reasons), provenance.reasons


async def test_a_client_that_shows_no_certificate_is_refused(loaded, authority):
    async with serving(loaded, authority.issue("drafter")) as server:
        trusting = grpc.ssl_channel_credentials(authority.file.read_bytes())
        options = [("grpc.ssl_target_name_override", CHANNEL_NAME)]
        async with grpc.aio.secure_channel(server.address, trusting, options=options) as channel:
            call = drafting_pb2_grpc.DraftingServiceStub(channel).Draft()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_files_are_read_again_when_they_rotate(loaded, authority, stranger):
    drafter, verifier = authority.issue("drafter", expired=True), authority.issue("verifier")
    async with serving(loaded, drafter) as server:
        async with drafting(loaded, server.address, verifier) as remote:
            remote.connect(lambda reply: None)
            await until(remote, "refused")
            assert authority.issue("drafter") == drafter
            await until(remote, "connected")
            # The authority too: whoever connects from now on needs its new one.
            authority.file.write_bytes(stranger.file.read_bytes())
            stranger.issue("drafter", into=authority)
            await asyncio.sleep(0.05)
            assert remote.state == "connected"
            async with drafting(loaded, server.address, verifier) as late:
                late.connect(lambda reply: None)
                await until(late, "refused")
                stranger.issue("verifier", into=authority)
                await until(late, "connected")


async def test_half_of_a_rotation_keeps_what_was_there(loaded, authority):
    drafter, verifier = authority.issue("drafter"), authority.issue("verifier")
    async with serving(loaded, drafter) as server:
        key = drafter.private_key
        for spoil in (lambda: shutil.copy(verifier.private_key, key), lambda: os.remove(key)):
            spoil()
            async with drafting(loaded, server.address, verifier) as remote:
                remote.connect(lambda reply: None)
                await until(remote, "connected")


async def test_plain_text_beyond_loopback_needs_the_flag(loaded, authority):
    addresses = [each.address for every in psutil.net_if_addrs().values() for each in every]
    try:
        host = next(
            each for each in addresses if each.count(".") == 3 and not LOOPBACK.allows_plaintext(each)
        )
    except StopIteration:
        pytest.skip("this machine has no address but loopback")
    server = DraftingServer(NgramDrafter(), "hash", 1, "drafter-1", NoOpTracer())
    with pytest.raises(ValueError, match=f"no drafting in plain text on {host}"):
        await server.start(host)
    async with drafting(loaded, f"{host}:1", LOOPBACK) as remote:
        remote.connect(lambda reply: None)
        await until(remote, f"refused: certificate: no drafting in plain text with {host}:1")
    loud = Channel(plaintext=True)
    async with (
        serving(loaded, loud, host) as server,
        drafting(loaded, server.address, loud) as remote,
    ):
        remote.connect(lambda reply: None)
        await until(remote, "connected")
