"""The console's page is whole, comes from here alone, and says what its numbers say."""

import re

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

from cluster.gateway.console.routes import console_router


def allow(request: Request):
    pass


@pytest.fixture
def client():
    async def numbers():
        return {"model": "m"}

    app = FastAPI()
    app.include_router(console_router(numbers, allow))
    return TestClient(app)


def test_every_part_that_the_page_names_is_served_from_here(client):
    page = client.get("/console")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert [part for part in parts if part.startswith(("http", "//"))] == []
    for part in parts:
        if not part.startswith("data:"):
            assert client.get(f"/{part}").status_code == 200, part


def test_scripts_fetch_nothing_from_elsewhere(client):
    assert "http" not in client.get("/console/console.js").text


def test_the_library_comes_with_its_licence(client):
    assert "MIT License" in client.get("/console/uPlot.LICENSE").text


def test_numbers_are_never_kept(client):
    answer = client.get("/console/data")
    assert answer.json() == {"model": "m"}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["..%2Froutes.py", "routes.py", "nothing.js", "%2e%2e"])
def test_nothing_else_is_served(client, name):
    assert client.get(f"/console/{name}").status_code == 404


def refuse(request: Request):
    raise HTTPException(403)


@pytest.mark.parametrize("path", ["/console", "/console/console.js", "/console/data", "/console/nothing.js"])
def test_all_of_it_asks_who_looks(path):
    async def numbers():
        raise AssertionError("the guard comes first")

    app = FastAPI()
    app.include_router(console_router(numbers, refuse))
    assert TestClient(app).get(path).status_code == 403
