"""Which laws a deployment serves."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from cluster.config.section import Section
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import STRICT_LAWS

LOSSY_LAWS = tuple(name for name, known in LAWS.items() if not known.lossless)
# For the JSON schema alone: the validator has better words.
StrictLaw = Annotated[str, Field(json_schema_extra={"enum": list(STRICT_LAWS)})]
LossyLaw = Annotated[str, Field(json_schema_extra={"enum": list(LOSSY_LAWS)})]


class Laws(Section):
    """allowed: the strict laws a request may ask for; lossy: the lossy ones, of which none is served unless
    it is named here; default: the law of a request that asks for none; max_distortion, max_overshoot: the
    most that a request may ask a lossy law for, total variation a token and out(x) / p(x), which also hold
    where it asks for nothing.
    """

    allowed: tuple[StrictLaw, ...] = tuple(STRICT_LAWS)
    lossy: tuple[LossyLaw, ...] = ()
    default: str = "coupled"
    max_distortion: float | None = Field(default=None, ge=0, le=1)
    max_overshoot: float | None = Field(default=None, ge=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _known(self) -> Self:
        for law in (*self.allowed, self.default):
            if law not in STRICT_LAWS:
                raise ValueError(f"{law!r} is no strict law; strict laws: {', '.join(STRICT_LAWS)}")
        for law in self.lossy:
            if law not in LOSSY_LAWS:
                raise ValueError(f"{law!r} is no lossy law; lossy laws: {', '.join(LOSSY_LAWS)}")
            takes = {parameter.name for parameter in LAWS[law].parameters}
            for field, name in (("max_distortion", "max_distortion"), ("max_overshoot", "ceiling")):
                if getattr(self, field) is not None and name not in takes:
                    raise ValueError(f"{law!r} keeps no {field}: take it out of lossy, or set none")
        if self.default not in self.allowed:
            raise ValueError(f"the default law {self.default!r} is not among the allowed laws")
        return self

    @property
    def served(self) -> tuple[str, ...]:
        return (*self.allowed, *self.lossy)
