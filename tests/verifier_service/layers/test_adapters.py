"""LoRA adapters by request: tokens are those of the model that has them merged, in whatever batch."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from opentelemetry.trace import NoOpTracer
from safetensors.torch import save_file

from cluster.checkpoints import CheckpointError
from cluster.checkpoints.adapters import read_adapter
from cluster.drafting import NgramDrafter
from cluster.speculation.law import Claim
from cluster.speculation.sampling import Sampling
from tests.verifier_service.families import random_model, reference
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.target.target import TargetModel

TEXT = [(5 * i * i + 1) % 500 for i in range(100)]
RANK, ALPHA = 4, 8.0
NAMES = ("", "law", "rhyme")


def write_adapter(folder, stock, seed, layers=("q_proj", "v_proj", "down_proj"), **config):
    """As PEFT writes one of rank RANK."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, module in stock.named_modules():
        if name.endswith(tuple(layers)):
            for kind, shape in (("A", (RANK, module.in_features)), ("B", (module.out_features, RANK))):
                matrix = 0.3 * torch.randn(shape, generator=generator)
                weights[f"base_model.model.{name}.lora_{kind}.weight"] = matrix
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    known = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "modules_to_save": None}
    (folder / "adapter_config.json").write_text(json.dumps(known | config))
    return weights


def merged(stock, weights):
    model = copy.deepcopy(stock)
    for key, down in weights.items():
        if key.endswith("lora_A.weight"):
            name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = weights[key.replace("lora_A", "lora_B")]
            model.get_submodule(name).weight.data += ALPHA / RANK * up @ down
    return model


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_each_request_has_the_tokens_of_its_own_merged_model(tmp_path, tiny_path, spec, request_for, family):
    path = shutil.copytree(tiny_path, tmp_path / family)
    stock = random_model(family, 512)
    stock.save_pretrained(path)
    models = {"": stock}
    for seed, name in enumerate(NAMES[1:]):
        models[name] = merged(stock, write_adapter(tmp_path / name, stock, seed))
    folders = tuple((name, str(tmp_path / name)) for name in NAMES[1:])
    loaded = load_target(replace(spec, model=str(path), adapters=folders))
    loaded = replace(loaded, stop_ids=frozenset())
    assert loaded.numerics.row_invariant
    requests = [
        request_for(
            # The same prompt for all: what one computed of it is of no use to the others.
            prompt_ids=tuple(TEXT),
            request_id=f"{name}/{temperature}",
            adapter=name,
            sampling=Sampling(temperature=temperature),
            max_tokens=12,
        )
        for temperature in (0.0, 1.0)
        for name in NAMES
    ]
    truths = [reference(models[each.adapter], each) for each in requests]
    assert len({tuple(tokens) for tokens in truths}) == len(truths)
    engine = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), NoOpTracer())
    for _ in range(2):
        answers = answer_all(engine, requests)
        assert [answer.token_ids for answer in answers] == truths
    provenances = [answer.finished.provenance for answer in answers]
    assert {each.claim for each in provenances} == {Claim.IDENTICAL_TOKENS}
    hashes = [each.numerics.weights_hash for each in provenances]
    assert hashes[:3] == hashes[3:]
    assert len(set(hashes)) == 3
    assert hashes[0] == loaded.numerics.weights_hash


def test_an_adapter_that_is_not_loaded_is_not_left_out_without_a_word(loaded, spec, request_for):
    engine, answer = build_engine(loaded, spec, None, NoOpTracer()), Answer()
    engine.submit(request_for(adapter="rhyme"), answer.take)
    assert answer.failure == "the verifier has no adapter 'rhyme'"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "its peft_type is not LORA"),
        ({"r": 0}, "r must be a positive number"),
        ({"use_dora": True}, "an adapter with use_dora = True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "an adapter with modules_to_save = "),
    ],
)
def test_what_is_no_plain_lora_is_refused(tmp_path, config, message):
    write_adapter(tmp_path / "a", random_model("llama", 512), 0, **config)
    with pytest.raises(CheckpointError, match=message):
        read_adapter("a", tmp_path / "a")
    with pytest.raises(CheckpointError, match="is no LoRA adapter"):
        read_adapter("a", tmp_path)


def test_an_adapter_of_another_model_is_refused(tmp_path):
    stock = random_model("llama", 512)
    write_adapter(tmp_path / "head", stock, 0, layers=("lm_head",))
    write_adapter(tmp_path / "other", random_model("phi", 512), 0, layers=("fc1",))
    wide = copy.deepcopy(stock)
    wide.model.layers[0].self_attn.q_proj = torch.nn.Linear(32, 64)
    write_adapter(tmp_path / "wide", wide, 0, layers=("layers.0.self_attn.q_proj",))
    for name, message in (
        ("head", "for 'lm_head', which this model cannot have adapted"),
        ("other", "which this model cannot have adapted"),
        ("wide", "has not the shape of its layer"),
    ):
        adapter = read_adapter(name, tmp_path / name)
        with pytest.raises(ValueError, match=message):
            TargetModel(copy.deepcopy(stock), "w", threads=1, adapters=[adapter])
