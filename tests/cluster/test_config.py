"""One configuration for everything, and mistakes that name their field."""

import dataclasses
from types import SimpleNamespace

import pytest
from ray.serve.config import AutoscalingConfig

from cluster.channel.spec import Channel
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.config import DEFAULT_DOMAINS, ClusterConfig, ConfigError, Drafter, Verifier, load_config
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.spec import DraftingMode, VerifierSpec


def complaint(*overrides, path=None, **flags):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, flags)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_place_drafters_on_the_cheap_type_and_verifiers_on_the_large_one():
    config = ClusterConfig()
    assert config.model == DEFAULT_REFERENCE
    assert config.laws.default == "coupled"
    assert config.drafter.placement.actor_options()["label_selector"] == {"ray.io/accelerator-type": "L4"}
    assert config.verifier.placement.actor_options()["label_selector"] == {"ray.io/accelerator-type": "H100"}


def test_every_field_of_the_specs_can_be_set():
    # Set in sections of their own.
    elsewhere = {"model", "cache_dir", "drafting", "audit", "replay_share", "domains", "channel"}
    elsewhere |= {"drafter", "feature_dtype"}
    verifier = {field.name for field in dataclasses.fields(VerifierSpec)} - elsewhere
    assert verifier <= set(Verifier.model_fields)
    drafter = {field.name for field in dataclasses.fields(DrafterSpec)}
    drafter -= {"target", "cache_dir", "host", "channel"}
    assert drafter <= set(Drafter.model_fields)


def test_the_specs_defaults_are_the_configurations():
    assert ClusterConfig().verifier_spec() == VerifierSpec(model=DEFAULT_REFERENCE, domains=DEFAULT_DOMAINS)
    assert ClusterConfig().drafter_spec() == DrafterSpec(target=DEFAULT_REFERENCE)


def test_later_sources_win(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("model: from-file\nverifier:\n  block_length: 2\n  max_active: 3\ndrafter:\n")
    config = load_config(file, ["verifier.block_length=4"], {"model": "from-flag"})
    assert (config.model, config.verifier.block_length, config.verifier.max_active) == ("from-flag", 4, 3)


def test_values_are_yaml():
    config = load_config(
        None,
        [
            "drafter.ports=[7000, 7010]",
            "laws.allowed=[coupled]",
            "verifier.placement={num_gpus: 2, label_selector: {a: b}}",
            "gateway.max_tokens=null",
            "drafter.mode=off",
        ],
    )
    assert config.drafter.ports == (7000, 7010)
    assert config.laws.allowed == ("coupled",)
    assert config.verifier.placement.actor_options() == {
        "num_cpus": 1.0,
        "num_gpus": 2.0,
        "label_selector": {"a": "b"},
    }
    # YAML 1.1 reads `off` as false.
    assert config.drafter.mode is DraftingMode.OFF


def test_no_lossy_law_is_served_unless_it_is_named():
    strict = ("none", "coupled", "rejection", "block")
    assert ClusterConfig().gateway_spec().laws == strict
    config = load_config(None, ["laws.lossy=[truncation:min_p]"])
    assert config.gateway_spec().laws == (*strict, "truncation:min_p")


def test_ceilings_of_lossy_laws_reach_the_gateway():
    laws = "laws={lossy: ['collaborative:cactus'], max_distortion: 0.1, max_overshoot: 4}"
    spec = load_config(None, [laws]).gateway_spec()
    assert (spec.max_distortion, spec.max_overshoot) == (0.1, 4)


def test_a_causal_lm_without_a_model_is_the_target_itself():
    spec = load_config(None, ["drafter.kind=causal_lm", "model=m"]).drafter_spec()
    assert (spec.kind, spec.model, spec.target) == (DrafterKind.CAUSAL_LM, "m", "m")
    spec = load_config(None, ["drafter.kind=causal_lm", "drafter.model=d"]).drafter_spec()
    assert spec.model == "d"


def test_a_drafter_that_reads_the_target_is_named_to_both_sides():
    given = ["drafter.kind=dflash", "drafter.model=d", "drafter.dtype=bfloat16"]
    drafter, verifier = load_config(None, given).drafter_spec(), load_config(None, given).verifier_spec()
    assert (drafter.kind, drafter.model, drafter.dtype) == ("dflash", "d", "bfloat16")
    assert (verifier.drafter, verifier.feature_dtype) == ("d", "bfloat16")
    assert load_config(None, [*given, "drafter.mode=off"]).verifier_spec().drafter == ""
    with pytest.raises(ConfigError, match="kind dflash needs a model"):
        load_config(None, given[:1])


def test_certificates_reach_both_sides_of_the_channel():
    names = ("certificate", "private_key", "authority")
    config = load_config(None, [f"channel.{name}=/pki/{name}.pem" for name in names])
    channel = Channel("/pki/certificate.pem", "/pki/private_key.pem", "/pki/authority.pem")
    assert config.verifier_spec().channel == config.drafter_spec().channel == channel
    assert not config.exposes_drafts


def test_plain_text_leaves_the_machine_only_by_a_word():
    assert ClusterConfig().exposes_drafts
    for word in ("channel.plaintext=true", "drafter.mode=local", "emulation.enabled=true"):
        assert not load_config(None, [word]).exposes_drafts
    assert load_config(None, ["emulation.enabled=true"]).drafter_spec().host == "127.0.0.1"
    assert ClusterConfig().drafter_spec().host == ""


def test_whoever_comes_is_let_in_only_by_a_word():
    assert ClusterConfig().exposes_gateway
    for words in (["gateway.keys_file=/keys.yaml"], ["gateway.anonymous=true"], ["emulation.enabled=true"]):
        assert not load_config(None, words).exposes_gateway
    beyond = ["emulation.enabled=true", "gateway.host=0.0.0.0"]
    assert load_config(None, beyond).exposes_gateway
    assert load_config(None, ["emulation.enabled=true"]).loopback_alone
    for word in ("gateway.keys_file=/keys.yaml", "gateway.anonymous=true"):
        assert not load_config(None, ["emulation.enabled=true", word]).loopback_alone
    assert not load_config(None, [*beyond, "gateway.anonymous=true"]).exposes_gateway
    assert "without keys_file" in complaint("gateway.keys_file=/keys.yaml", "gateway.anonymous=true")


def test_both_roles_follow_their_load_between_two_bounds():
    assert ClusterConfig().verifier.scale() == {"num_replicas": 1}
    assert load_config(None, ["verifier.max_replicas=3"]).verifier.scale() == {
        "autoscaling_config": {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 64}
    }
    assert ClusterConfig().drafter.scale() == {"num_replicas": 1}
    scaled = load_config(None, ["drafter.max_replicas=3", "drafter.target_blocks=2"]).drafter.scale()
    policy = AutoscalingConfig(**scaled["autoscaling_config"]).policy.get_policy()
    for wanted, replicas in (({}, 1), ({"a": 0.5}, 1), ({"a": 3.0, "b": 2.0}, 2.5)):
        config = SimpleNamespace(target_ongoing_requests=2.0)
        context = SimpleNamespace(aggregated_metrics={"blocks": wanted}, config=config)
        assert policy(context) == (replicas, {})


def test_the_drafting_mode_reaches_the_verifier():
    assert load_config(None, ["drafter.mode=local"]).verifier_spec().drafting is DraftingMode.LOCAL
    assert not load_config(None, ["drafter.mode=local"]).drafts_remotely


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ("/models/toy", "toy"),
        ("models/toy.gguf", "toy.gguf"),
        ("./toy", "toy"),
        ("org/toy", "org/toy"),
        ("toy", "toy"),
    ],
)
def test_clients_see_a_name_and_no_path(model, served):
    assert load_config(None, [f"model={model}"]).served_name == served
    assert load_config(None, [f"model={model}", "served_model_name=x"]).served_name == "x"


def test_the_gateway_stays_on_the_head_of_emulated_nodes():
    config = load_config(None, ["emulation.enabled=true"])
    assert config.gateway_placement.label_selector == {"truedraft.io/role": "gateway"}
    assert ClusterConfig().gateway_placement.label_selector == {}


def test_a_request_must_fit_the_cache():
    assert load_config(None, ["verifier.kv_tokens=100"]).gateway_spec().max_context == 100


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("verifier.max_active=0", "verifier.max_active: "),
        ("verifier.max_active=many", "(got 'many')"),
        (
            "verifier.tensor_parallel_size=2",
            "verifier: placement.num_gpus must be a multiple of tensor_parallel",
        ),
        (
            "verifier={tensor_parallel_size: 2, adapters: {a: /a}, placement: {num_gpus: 0}}",
            "verifier: adapters need tensor_parallel_size = 1, got 2",
        ),
        (
            "verifier.adapters={smollm2-135m-instruct: /a}",
            "verifier.adapters has 'smollm2-135m-instruct', which",
        ),
        ("verifier.colour=red", "verifier.colour is not a field"),
        ("gateway=3", "gateway: should be a section with fields, not 3"),
        ("gateway.grpc_port=70000", "gateway.grpc_port: "),
        ("laws.default=truth", "laws: 'truth' is no strict law; strict laws: none, coupled"),
        ("laws.allowed=[coupled, truncation:min_p]", "laws: 'truncation:min_p' is no strict law"),
        ("laws.lossy=[coupled]", "laws: 'coupled' is no lossy law; lossy laws: truncation:min_p"),
        (
            "laws={lossy: ['truncation:min_p'], max_distortion: 0.1}",
            "laws: 'truncation:min_p' keeps no max_distortion: take it out of lossy",
        ),
        ("laws.max_distortion=1.5", "laws.max_distortion: "),
        ("laws.max_overshoot=.inf", "laws.max_overshoot: "),
        (
            "verifier={replicas: 2, max_replicas: 1}",
            "max_replicas must be at least replicas = 2",
        ),
        ("drafter={replicas: 3, max_replicas: 2}", "max_replicas must be at least replicas = 3"),
        ("verifier.proposal_entries=0", "verifier.proposal_entries: "),
        ("verifier.draft_patience_s=0", "verifier.draft_patience_s: "),
        ("laws.allowed=[none]", "laws: the default law 'coupled' is not among the allowed laws"),
        ("drafter.kind=oracle", "drafter.kind: "),
        ("drafter.model=x", "drafter: kind ngram takes no model"),
        ("channel.authority=/ca.pem", "channel: certificate, private_key and authority go together"),
        (
            "channel={certificate: a, private_key: b, authority: c, plaintext: true}",
            "channel: plaintext is for",
        ),
        ("channel.name=''", "channel.name: "),
        ("drafter.ports=[9, 8]", "drafter: ports are first and last of a range"),
        ("verifier.dtype=int4", "verifier.dtype: "),
        ("model=''", "model: "),
        ("verifier", "'verifier' is not of the form section.field=value"),
        ("model.x=1", "model: "),
        ("verifier.placement.num_gpus=-1", "verifier.placement.num_gpus: "),
        ("laws=[", "'[' is not a YAML value"),
    ],
)
def test_mistakes(override, words):
    assert words in complaint(override)


def test_files_that_are_none(tmp_path):
    assert "cannot be read" in complaint(path=tmp_path / "absent.yaml")
    file = tmp_path / "list.yaml"
    file.write_text("- a\n")
    assert "must hold a mapping" in complaint(path=file)
    file.write_text("a: [\n")
    assert "is not YAML" in complaint(path=file)


def test_a_value_is_no_section(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("verifier: 3\n")
    assert "verifier is a value, not a section" in complaint("verifier.dtype=float16", path=file)


def test_steps_have_room_for_every_block():
    complained = complaint("verifier.max_active=72")
    assert "step_rows must be at least max_active x (block_length + 1) = 648, got 640" in complained
    assert load_config(None, ["verifier.max_active=72", "verifier.step_rows=648"], {})


def test_the_planner_is_named_and_bounded():
    verifier = load_config().verifier_spec()
    assert (verifier.planner, verifier.block_length, verifier.block_length_min) == ("goodput", 8, 0)
    with pytest.raises(ConfigError, match=r"verifier\.planner"):
        load_config(overrides=["verifier.planner=oracle"])
    with pytest.raises(ConfigError, match="block_length_min must be at most block_length = 8, got 9"):
        load_config(overrides=["verifier.block_length_min=9"])


def test_ranks_of_a_replica_divide_what_it_reserves():
    overrides = ["verifier.tensor_parallel_size=2", "verifier.placement={num_gpus: 4, resources: {slot: 1}}"]
    assert load_config(None, overrides).verifier.placed() == {
        "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 2.0, "resources": {"slot": 1.0}},
        "placement_group_bundles": [{"CPU": 0.5, "GPU": 2.0, "slot": 1.0}, {"CPU": 0.5, "GPU": 2.0}],
        "placement_group_strategy": "STRICT_PACK",
    }
    one = load_config(None, ["verifier.placement.label_selector={a: b}"]).verifier.placed()
    assert one == {"ray_actor_options": {"num_cpus": 1.0, "num_gpus": 0.0, "label_selector": {"a": "b"}}}
