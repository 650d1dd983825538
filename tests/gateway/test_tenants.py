"""Keys and tenants: who is let in, to what, and how often."""

import dataclasses
import hashlib
import os

import httpx2
import pytest
import yaml
from opentelemetry.trace import NoOpTracer

from cluster.gateway import tenants
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.http.app import create_app
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors, KeysError, Tenant, limited
from cluster.speculation.request import Committed
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def written(path, *given):
    path.write_text(yaml.safe_dump({"tenants": list(given)}), encoding="utf-8")
    return path


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


@pytest.fixture
def keys(tmp_path):
    return written(
        tmp_path / "keys.yaml",
        {"name": "a", "keys": [digest("alpha"), digest("old")], "max_concurrent": 1},
        {"name": "b", "keys": [digest("beta")], "laws": ["none"], "requests_per_minute": 2, "max_tokens": 8},
    )


def test_what_tells_of_all_tenants_is_for_operators(tmp_path):
    ops = {"name": "operations", "keys": [digest("omega")], "operator": True}
    doors = Doors(written(tmp_path / "keys.yaml", {"name": "a", "keys": [digest("alpha")]}, ops))
    doors.operator(bearer("omega"))
    for metadata, reason in ((bearer("alpha"), Reason.NOT_AN_OPERATOR), ([], Reason.UNAUTHENTICATED)):
        with pytest.raises(RequestError) as refused:
            doors.operator(metadata)
        assert refused.value.reason == reason
    Doors(None).operator([])


def test_a_key_is_its_tenants(keys):
    doors = Doors(keys)
    assert doors.tenant(bearer("alpha")).name == doors.tenant(bearer("old")).name == "a"
    assert doors.tenant([("authorization", "bearer beta")]).name == "b"


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        bearer(""),
        bearer("gamma"),
        [("authorization", "alpha")],
        [("authorization", b"Bearer alpha")],
        bearer(digest("alpha")),
        bearer("al\udcffpha"),
    ],
)
def test_anything_else_is_refused(keys, metadata):
    with pytest.raises(RequestError, match="A valid API key") as caught:
        Doors(keys).tenant(metadata)
    assert caught.value.reason is Reason.UNAUTHENTICATED


def test_without_a_file_nobody_is_asked():
    assert Doors(None).tenant([]).name == "anybody"


def test_a_changed_file_is_read_without_a_restart_and_a_broken_one_is_not(keys, monkeypatch):
    monkeypatch.setattr(tenants, "_RELOAD_S", 0.0)
    doors = Doors(keys)
    replaced = written(keys.with_name("new"), {"name": "c", "keys": [digest("gamma")]})
    os.replace(replaced, keys)
    assert doors.tenant(bearer("gamma")).name == "c"
    with pytest.raises(RequestError):
        doors.tenant(bearer("alpha"))
    keys.write_text("tenants: [", encoding="utf-8")
    assert doors.tenant(bearer("gamma")).name == "c"
    keys.unlink()
    assert doors.tenant(bearer("gamma")).name == "c"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tenants: [", "is not YAML"),
        ("tenants: [{name: a, keys: [secret-key]}]", "tenants.0.keys.0"),
        ("tenants: [{name: a}, {name: a}]", "a tenant is there twice"),
        ("tenants: [{name: a, colour: red}]", "tenants.0.colour"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_no_key_of_it(tmp_path, content, words):
    path = tmp_path / "keys.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(KeysError) as caught:
        Doors(path)
    assert words in str(caught.value)
    assert "secret-key" not in str(caught.value)
    with pytest.raises(KeysError, match="cannot be read"):
        Doors(tmp_path / "absent")


def test_limits_are_each_tenants_own(keys, monkeypatch):
    doors = Doors(keys)
    a, b = doors.tenant(bearer("alpha")), doors.tenant(bearer("beta"))
    with doors.admitted(a):
        with pytest.raises(RequestError, match="At most 1 requests of yours are served") as caught:
            with doors.admitted(a):
                pass
        assert caught.value.reason is Reason.RATE_LIMITED
        for _ in range(2):
            with doors.admitted(b):
                pass
    with doors.admitted(a):
        pass
    with pytest.raises(RequestError, match="At most 2 requests of yours are taken a minute"):
        with doors.admitted(b):
            pass
    now = tenants.time.monotonic() + 31.0
    monkeypatch.setattr(tenants.time, "monotonic", lambda: now)
    with doors.admitted(b):
        pass


def test_a_tenants_laws_and_ceiling():
    spec = limited(SPEC, Tenant(name="b", laws=("none", "rejection"), max_tokens=8))
    assert (spec.laws, spec.default_law, spec.max_tokens) == (("none",), "none", 8)
    assert limited(SPEC, Tenant(name="b", max_tokens=999)).max_tokens == SPEC.max_tokens
    assert limited(dataclasses.replace(SPEC, max_tokens=None), tenants.ANYBODY).max_tokens is None


def test_a_tenants_ceilings_only_lower_the_deployments():
    strict = limited(SPEC, Tenant(name="b", max_distortion=0.1, max_overshoot=4))
    assert (strict.max_distortion, strict.max_overshoot) == (0.1, 4)
    loose = limited(strict, Tenant(name="b", max_distortion=0.5, max_overshoot=2))
    assert (loose.max_distortion, loose.max_overshoot) == (0.1, 2)


ROUTES = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/toy"),
    ("GET", "/openapi.json"),
]


async def test_every_route_asks_for_a_key(keys, caplog):
    caplog.set_level("INFO")
    events = (Committed("he", (1,)), FINISHED)
    asked = []

    def verify(request):
        asked.append(request)
        return FakeEvents(*events)

    service = GatewayService(SPEC, Characters(), verify, NoOpTracer(), Doors(keys))

    async def inspect():
        return [{"drafting": "connected", "active": 0, "queued": 0, "audits": []}]

    app = create_app(service, StatusProbe(service.generate, inspect))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway") as client:
        for method, path in ROUTES:
            body = (
                {
                    "json": {"prompt": "hi"}
                    if path.endswith("/completions") and "chat" not in path
                    else {"messages": [{"role": "user", "content": "hi"}]}
                }
                if method == "POST"
                else {}
            )
            for headers in ({}, {"authorization": "Bearer gamma"}):
                answer = await client.request(method, path, headers=headers, **body)
                assert answer.status_code == 401, path
                assert answer.json()["error"]["code"] == "unauthenticated"
            headers = {"authorization": "Bearer beta"}
            answer = await client.request(method, path, headers=headers, **body)
            assert answer.status_code == 200, answer.text
        models = (await client.get("/v1/models", headers={"authorization": "Bearer alpha"})).json()
        assert models["data"][0]["truedraft"]["laws"] == ["none", "coupled", "truncation:min_p"]
        assert (await client.get("/healthz")).status_code == 200
    # With whom it shares cached prefixes.
    assert {request.tenant for request in asked} == {"b"}
    said = "".join(record.getMessage() for record in caplog.records)
    assert '"tenant":"b"' in said
    assert not any(key in said for key in ("alpha", "beta", "gamma", digest("beta")))
