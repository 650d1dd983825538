"""Keys and tenants: who is let in, to what, and how often."""

import dataclasses
import hashlib
import os

import httpx2
import pytest
import yaml
from opentelemetry.trace import NoOpTracer

from cluster.gateway import tenants
from cluster.gateway.console.routes import console_router
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.http.app import create_app
from cluster.gateway.http.guard import operators_in_browsers, operators_only
from cluster.gateway.http.metrics import metrics_router
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors, KeysError, Tenant, limited
from cluster.gateway.validation import Identity, validate
from cluster.speculation.request import Committed
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents
from truedraft.v1 import inference_pb2 as pb


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
        {"name": "operations", "keys": [digest("omega")], "operator": True},
    )


def test_what_tells_of_all_tenants_is_for_operators(keys):
    doors = Doors(keys)
    doors.operator(bearer("omega"))
    assert [doors.sees_all(doors.tenant(bearer(key))) for key in ("alpha", "omega")] == [False, True]
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
        ("tenants: [{name: a, laws: [rumour]}]", "'rumour' is no law"),
        ("tenants: [{name: a, default_law: 'truncation:min_p'}]", "must be a strict law"),
        ("tenants: [{name: a, laws: [none], default_law: coupled}]", "must be among laws"),
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


def test_a_tenants_default_law():
    assert limited(SPEC, Tenant(name="b", default_law="none")).default_law == "none"
    # A lossy law is asked for or not had: no tenant has it by default.
    only = limited(SPEC, Tenant(name="b", laws=("truncation:min_p",)))
    assert only.laws == ("truncation:min_p",)
    with pytest.raises(RequestError, match="'coupled' is not served here"):
        validate(pb.GenerateRequest(prompt="x"), only, Characters(), Identity("id"))


# What probes ask, who have no key.
OPEN = {"/healthz", "/readyz"}
BODIES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


def routes(router):
    """Method and path of all that an application or a router in it answers."""
    for route in router.routes:
        if included := getattr(route, "original_router", None):
            yield from routes(included)
            continue
        for method in sorted(route.methods - {"HEAD"}):
            yield method, route.path.replace("{model:path}", "toy").replace("{name}", "console.js")


async def collect():
    return b"metrics"


async def console():
    return {}


async def test_every_route_asks_for_a_key(keys, caplog):
    caplog.set_level("INFO")
    events = (Committed("he", (1,)), FINISHED)
    asked = []

    def verify(request):
        asked.append(request)
        return FakeEvents(*events)

    doors = Doors(keys)
    service = GatewayService(SPEC, Characters(), verify, NoOpTracer(), doors)

    async def inspect():
        return [{"drafting": "connected", "active": 0, "queued": 0, "audits": []}]

    app = create_app(service, StatusProbe(service.generate, inspect))
    # As the deployment puts it together.
    app.include_router(metrics_router(collect, operators_only(doors)))
    app.include_router(console_router(console, operators_in_browsers(doors)))
    found = list(routes(app))
    assert len(found) > 8
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway") as client:
        for method, path in found:
            body = {"json": BODIES[path]} if path in BODIES else {}
            for headers in ({}, {"authorization": "Bearer gamma"}, {"authorization": "Basic YTpi"}):
                answer = await client.request(method, path, headers=headers, **body)
                if method == "POST":
                    # What a body should be is told to nobody else.
                    for wrong in ({"json": {}}, {"content": b"{"}, {"json": {"prompt": 1}}):
                        refused = await client.request(method, path, headers=headers, **wrong)
                        assert refused.status_code == 401, path
                if path in OPEN:
                    assert answer.status_code == 200
                    continue
                assert answer.status_code == 401, path
                assert answer.json()["error"]["code"] == "unauthenticated"
                asks = "Basic" if path.startswith("/console") else "Bearer"
                assert answer.headers["www-authenticate"].startswith(f'{asks} realm="truedraft')
            headers = {"authorization": "Bearer beta"}
            answer = await client.request(method, path, headers=headers, **body)
            refused = 401 if path.startswith("/console") else 403 if path == "/metrics" else 200
            assert answer.status_code == refused, answer.text
            # What browsers keep, and add to whatever any page has them ask, opens the console alone.
            answer = await client.request(method, path, auth=("", "omega"), **body)
            known = path in OPEN or path.startswith("/console")
            assert answer.status_code == (200 if known else 401), path
        models = (await client.get("/v1/models", headers={"authorization": "Bearer alpha"})).json()
        assert models["data"][0]["truedraft"]["laws"] == ["none", "coupled", "truncation:min_p"]
    # With whom it shares cached prefixes.
    assert {each.tenant for each in asked if not each.request_id.startswith("probe-")} == {"b"}
    said = "".join(record.getMessage() for record in caplog.records)
    assert '"tenant":"b"' in said
    assert not any(key in said for key in ("alpha", "beta", "gamma", digest("beta")))
