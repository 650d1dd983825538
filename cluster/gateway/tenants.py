"""Who asks: API keys by their hashes, the tenants they stand for, and what each tenant may do.

The file is YAML, such as a mounted Secret:

    tenants:
      - name: acme
        keys: ["<sha256 of a key, hexadecimal>"]
        laws: [coupled, none]        # of those that the deployment serves; unset: all
        default_law: none            # of a request that asks for none; a strict one
        max_distortion: 0.02         # the most that a lossy law may be asked for: total variation a token,
        max_overshoot: 4             # and out(x) / p(x)
        max_tokens: 512
        max_concurrent: 8
        requests_per_minute: 120
      - name: operations
        keys: ["…"]
        operator: true               # may read metrics and the console, which tell of all tenants
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.spec import GatewaySpec
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import STRICT_LAWS

log = logging.getLogger(__name__)

_AUTHORIZATION = "authorization"
_SCHEME = "bearer "
# How soon a changed file is noticed.
_RELOAD_S = 1.0
_MINUTE_S = 60.0

_Limit = TypeVar("_Limit", int, float)
_Count = Annotated[int, Field(ge=1)]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class KeysError(ValueError):
    """The file of keys cannot be used; the message is one sentence."""


class Tenant(BaseModel):
    """None: no limit of the tenant's own. default_law: empty for the deployment's; operator: may read what
    tells of all tenants."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    keys: tuple[_Hash, ...] = ()
    laws: tuple[str, ...] | None = None
    max_distortion: Annotated[float, Field(ge=0, le=1)] | None = None
    max_overshoot: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    default_law: str = ""
    max_tokens: _Count | None = None
    max_concurrent: _Count | None = None
    requests_per_minute: _Count | None = None
    operator: bool = False

    @model_validator(mode="after")
    def _lawful(self) -> Self:
        unknown = [law for law in self.laws or () if law not in LAWS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no law; laws: {', '.join(LAWS)}")
        if self.default_law and self.default_law not in STRICT_LAWS:
            raise ValueError(f"default_law must be a strict law: {', '.join(STRICT_LAWS)}")
        if self.default_law and self.laws is not None and self.default_law not in self.laws:
            raise ValueError("default_law must be among laws")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tenants: tuple[Tenant, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        keys = [key for tenant in self.tenants for key in tenant.keys]
        for what, values in (("tenant", names), ("key", keys)):
            if len(set(values)) < len(values):
                raise ValueError(f"a {what} is there twice")
        return self


# Who asks where keys are not asked for.
ANYBODY = Tenant(name="anybody")


class Doors:
    """Lets requests in. path: the file of keys, None where nobody is asked for one. Raises KeysError."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._tenants = () if path is None else _read(path)
        self._stamp = None if path is None else _stamp(path)
        self._looked = time.monotonic()
        self._inside: defaultdict[str, int] = defaultdict(int)
        self._room: dict[str, tuple[float, float]] = {}

    def tenant(self, metadata: Iterable[tuple[str, str | bytes]]) -> Tenant:
        """metadata: of the call, or HTTP headers. Raises RequestError."""
        if self._path is None:
            return ANYBODY
        self._reload(self._path)
        presented = next((value for name, value in metadata if name.lower() == _AUTHORIZATION), "")
        text = presented if isinstance(presented, str) else ""
        key = text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else ""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        # All are compared, so that time tells nothing of which one comes close.
        for tenant in self._tenants:
            for known in tenant.keys:
                if hmac.compare_digest(known, digest):
                    found = tenant
        if found is None or not key:
            sentence = "A valid API key is needed, as the authorization 'Bearer KEY'."
            raise RequestError(Reason.UNAUTHENTICATED, sentence)
        return found

    def sees_all(self, tenant: Tenant) -> bool:
        """Whether it may read what tells of all tenants."""
        return self._path is None or tenant.operator

    def operator(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Lets in whoever may read what tells of all tenants. Raises RequestError."""
        if not self.sees_all(self.tenant(metadata)):
            sentence = "Metrics and console are for the keys of an operator."
            raise RequestError(Reason.NOT_AN_OPERATOR, sentence)

    @contextmanager
    def admitted(self, tenant: Tenant) -> Iterator[None]:
        """One request of a tenant's, from its beginning to its end. Raises RequestError beyond a limit."""
        if tenant.max_concurrent is not None and self._inside[tenant.name] >= tenant.max_concurrent:
            sentence = f"At most {tenant.max_concurrent} requests of yours are served at a time."
            raise RequestError(Reason.RATE_LIMITED, sentence)
        self._spend(tenant)
        self._inside[tenant.name] += 1
        try:
            yield
        finally:
            self._inside[tenant.name] -= 1

    def _spend(self, tenant: Tenant) -> None:
        """A bucket of a minute's requests that fills up evenly."""
        limit = tenant.requests_per_minute
        if limit is None:
            return
        now = time.monotonic()
        room, at = self._room.get(tenant.name, (float(limit), now))
        room = min(float(limit), room + (now - at) * limit / _MINUTE_S)
        if room < 1.0:
            sentence = f"At most {limit} requests of yours are taken a minute."
            raise RequestError(Reason.RATE_LIMITED, sentence)
        self._room[tenant.name] = (room - 1.0, now)

    def _reload(self, path: Path) -> None:
        now = time.monotonic()
        if now - self._looked < _RELOAD_S:
            return
        self._looked = now
        try:
            stamp = _stamp(path)
            if stamp != self._stamp:
                self._tenants, self._stamp = _read(path), stamp
        except (KeysError, OSError) as error:
            # Those who had a key keep it until the file is whole again.
            log.error("the keys are as they were: %s", error)


def limited(spec: GatewaySpec, tenant: Tenant) -> GatewaySpec:
    """The spec as it holds for a tenant."""
    laws = spec.laws if tenant.laws is None else tuple(law for law in spec.laws if law in tenant.laws)
    # A lossy law is never a default: who wants one asks for it.
    wanted = [tenant.default_law, spec.default_law, *STRICT_LAWS]
    default = next((law for law in wanted if law in laws), spec.default_law)
    return replace(
        spec,
        laws=laws,
        default_law=default,
        max_tokens=_least(spec.max_tokens, tenant.max_tokens),
        max_distortion=_least(spec.max_distortion, tenant.max_distortion),
        max_overshoot=_least(spec.max_overshoot, tenant.max_overshoot),
    )


def _least(*limits: _Limit | None) -> _Limit | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: Path) -> tuple[Tenant, ...]:
    try:
        return _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).tenants
    except OSError as error:
        raise KeysError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise KeysError(f"{path} is not YAML") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        # Without the value: it may be a key that was not hashed.
        raise KeysError(f"{path}: {where}: {problem['msg']}") from None
