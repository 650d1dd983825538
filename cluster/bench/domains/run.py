"""Puts `truedraft bench domains` together: drafters against prompts of many domains, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opentelemetry.trace import NoOpTracer

from cluster.bench.domains.prompts import DOMAINS
from cluster.bench.domains.report import CHOICE, Report, Size, as_json, draw, render
from cluster.bench.domains.rounds import Found, Round, Timed, Watched, acceptance, speed
from cluster.bench.domains.traffic import read_traffic
from cluster.bench.encoding import prompting
from cluster.checkpoints import DEFAULT_REFERENCE, CheckpointError
from cluster.drafting.block_diffusion import read_config
from cluster.drafting.drafter_checkpoints import resolve_drafter
from cluster.gateway.tools.conversation import Turn
from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from cluster.terminal import Output, progress
from drafter_service.deployment import load
from drafter_service.spec import DrafterKind, DrafterSpec
from drafter_service.training.prompts import read_prompts
from verifier_service.batch import Answer, answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.pools import Pools
from verifier_service.engine.engine import Engine
from verifier_service.spec import VerifierSpec

NGRAM = "ngram"
# What is timed without speculation.
_OFF = "off"

Messages = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Contender:
    """target: with what the drafter reads; specs: of the drafter, or of those that are chosen among."""

    name: str
    target: LoadedTarget
    specs: tuple[DrafterSpec, ...]

    def ports(self) -> dict[str, Watched]:
        """New ports, to newly loaded drafters."""
        return {spec.model or spec.kind: Watched(LocalDrafting(load(spec).drafter)) for spec in self.specs}


def run_domains(
    model: str | None,
    drafters: Sequence[str],
    size: Size,
    prompts: Path | None,
    traffic: Path | None,
    output: Output,
) -> None:
    """`truedraft bench domains`. Raises CheckpointError; ValueError or OSError for unusable files."""
    mix = read_traffic(traffic) if traffic is not None else None
    asked = own_prompts(prompts) if prompts is not None else shipped_prompts(size.per_domain)
    spec = VerifierSpec(
        model=model or DEFAULT_REFERENCE,
        block_length=size.block_length,
        block_width=size.block_width,
        audit=False,
    )
    spec = replace(spec, step_rows=max(spec.step_rows, spec.max_active * (size.block_length + 1)))
    began = time.monotonic()
    with progress() as say:
        plain, contenders = load_contenders(spec, drafters, size.timed > 0, say)
        found = measure(plain, contenders, spec, asked, size, say)
    counts = {domain: len(some) for domain, some in asked.items()}
    report = Report(spec.model, size, counts, round(time.monotonic() - began, 1), tuple(found), mix)
    output.give(as_json(report), lambda console: render(report, console), lambda path: draw(report, path))


def shipped_prompts(per_domain: int) -> dict[str, list[Messages]]:
    """The first prompts of every domain."""
    return {
        domain: [[("user", prompt)] for prompt in prompts[:per_domain]] for domain, prompts in DOMAINS.items()
    }


def own_prompts(path: Path) -> dict[str, list[Messages]]:
    """A user's file, by its domains. Raises PromptsError, a ValueError."""
    found: dict[str, list[Messages]] = {}
    for prompt in read_prompts(path):
        found.setdefault(prompt.domain or "(none)", []).append(prompt.messages)
    return found


def load_contenders(
    spec: VerifierSpec, references: Sequence[str], choosing: bool, say: Callable[[str], None]
) -> tuple[LoadedTarget, list[Contender]]:
    """The target by itself, and each drafter with it; if n-grams are among them, `choosing` adds the choice
    between them and each of the others. A reference is "ngram", a DFlash checkpoint, or a language model."""
    say(f"loading {spec.model}")
    plain = load_target(spec)
    found: list[Contender] = []
    for reference in references:
        say(f"loading {reference}")
        own = drafter_spec(spec.model, reference)
        target = plain
        if own.kind == DrafterKind.DFLASH:
            target = load_target(replace(spec, drafter=reference))
        name = Path(reference).name if Path(reference).is_dir() else reference
        found.append(Contender(name, target, (own,)))
    ngram = next((each for each in found if each.name == NGRAM), None)
    if ngram is not None and choosing:
        found += [
            Contender(f"{CHOICE}{each.name}", each.target, (*each.specs, *ngram.specs))
            for each in list(found)
            if each is not ngram
        ]
    return plain, found


def drafter_spec(target: str, reference: str) -> DrafterSpec:
    if reference == NGRAM:
        return DrafterSpec(target)
    try:
        read_config(Path(resolve_drafter(reference).path))
    except CheckpointError:
        return DrafterSpec(target, kind=DrafterKind.CAUSAL_LM, model=reference)
    return DrafterSpec(target, kind=DrafterKind.DFLASH, model=reference)


def measure(
    plain: LoadedTarget,
    contenders: Sequence[Contender],
    spec: VerifierSpec,
    prompts: Mapping[str, Sequence[Messages]],
    size: Size,
    say: Callable[[str], None],
) -> list[Found]:
    """Acceptance of every drafter by itself, with blocks of a fixed length; then speed, the planner choosing.

    Raises RuntimeError if an answer differs from the one without speculation.
    """
    asking = Asking(plain, size.tokens)
    found = []
    for temperature in size.temperatures:
        requests = {
            domain: [
                asking.request(messages, domain, temperature, seed)
                for seed, messages in enumerate(prompts[domain])
            ]
            for domain in prompts
        }
        timed = _timed(plain, contenders, spec, requests, size.timed, say)
        for contender in contenders:
            accepted = {}
            if not contender.name.startswith(CHOICE):
                say(f"acceptance of {contender.name} at temperature {temperature:g}")
                accepted = _acceptance(contender, spec, requests)
            own = timed[contender.name]
            # A choice is measured against what it chooses among by itself, too.
            other = timed[NGRAM] if contender.name.startswith(CHOICE) else {}
            found += [
                Found(
                    contender.name,
                    temperature,
                    domain,
                    acceptance(accepted[domain]) if domain in accepted else None,
                    speed(own.get(domain, []), other.get(domain, [])),
                )
                for domain in prompts
            ]
    return found


class Asking:
    """Makes requests of prompts; each has a tenant of its own, so that no cached prefix is used."""

    def __init__(self, loaded: LoadedTarget, tokens: int) -> None:
        self._prompting = prompting(loaded)
        self._tokens = tokens

    def request(self, messages: Messages, domain: str, temperature: float, seed: int) -> GenerationRequest:
        turns = [Turn(role, text) for role, text in messages]
        return GenerationRequest(
            request_id=f"{domain}/{seed}",
            prompt_ids=tuple(self._prompting.encode_chat(turns)),
            sampling=Sampling(temperature=temperature),
            law=COUPLED,
            requested_law=COUPLED,
            seed=seed,
            max_tokens=self._tokens,
            domain=domain,
        )


def _acceptance(
    contender: Contender, spec: VerifierSpec, requests: Mapping[str, Sequence[GenerationRequest]]
) -> dict[str, list[list[Round]]]:
    """Rounds of each answer by domain, with as many drafts in every round as there can be."""
    [port] = contender.ports().values()
    every = [request for some in requests.values() for request in some]
    fixed = replace(spec, planner=PlannerName.FIXED, max_queued=len(every), draft_ahead=False)
    answer_all(build_engine(contender.target, fixed, port, NoOpTracer()), every)
    # Sequences are numbered in the order of their arrival, from 1; one that ends with its first token has no
    # round that drafts.
    rounds = iter([port.rounds.get(number, []) for number in range(1, 1 + len(every))])
    return {domain: [next(rounds) for _ in some] for domain, some in requests.items()}


def _timed(
    plain: LoadedTarget,
    contenders: Sequence[Contender],
    spec: VerifierSpec,
    requests: Mapping[str, Sequence[GenerationRequest]],
    each: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, list[Timed]]]:
    """By contender and domain: the first `each` requests, one at a time, without speculation and with every
    contender in turn."""
    timed: dict[str, dict[str, list[Timed]]] = {contender.name: {} for contender in contenders}
    if not each:
        return timed
    chosen = replace(spec, planner=PlannerName.GOODPUT, draft_ahead=False)
    ports = {contender.name: contender.ports() for contender in contenders}
    engines = {_OFF: build_engine(plain, chosen, None, NoOpTracer())} | {
        contender.name: build_engine(contender.target, chosen, Pools(ports[contender.name]), NoOpTracer())
        for contender in contenders
    }
    turn = 0
    for domain, some in requests.items():
        say(f"speed on {domain}")
        for request in some[:each]:
            before = {name: _asked(own) for name, own in ports.items()}
            answers: dict[str, tuple[Answer, float]] = {}
            names = list(engines)
            # None of them always follows the same other.
            shift = turn % len(names)
            for name in [*names[shift:], *names[:shift]][:: 1 if turn // len(names) % 2 else -1]:
                answers[name] = _one(engines[name], request, NONE if name == _OFF else COUPLED, turn)
            truth, plainly = answers.pop(_OFF)
            for name, (answer, seconds) in answers.items():
                if answer.token_ids != truth.token_ids:
                    raise RuntimeError(f"{name} changed the answer to {request.request_id}")
                assert answer.finished is not None
                # The first round comes with the prompt.
                rounds = answer.finished.provenance.rounds - 1
                off = rounds - (_asked(ports[name]) - before[name])
                timed[name].setdefault(domain, []).append(
                    Timed(len(answer.token_ids), plainly, seconds, rounds, off)
                )
            turn += 1
    return timed


def _asked(ports: Mapping[str, Watched]) -> int:
    """Rounds; in one of them several may be asked."""
    return len(set().union(*(port.asked for port in ports.values())))


def _one(engine: Engine, request: GenerationRequest, law: Law, turn: int) -> tuple[Answer, float]:
    began = time.perf_counter()
    [answer] = answer_all(engine, [replace(request, law=law, requested_law=law, tenant=str(turn))])
    return answer, time.perf_counter() - began
