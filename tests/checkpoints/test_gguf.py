"""A GGUF file of one's own as a target."""

import json

import gguf
import pytest
import torch

from cluster.checkpoints import CheckpointError, load_model, resolve
from cluster.checkpoints.loading import load_tokenizer
from cluster.checkpoints.tiny import build_tiny

TEXT = "The river rises in the hills"
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path, model, tokenizer):
    """As llama.cpp's converter writes models of type qwen2."""
    config = model.config
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
    writer.add_token_merges([" ".join(pair) for pair in pipeline["model"]["merges"]])
    writer.add_eos_token_id(config.eos_token_id)
    for name, tensor in model.state_dict().items():
        whole, _, kind = name.rpartition(".")
        if whole.startswith("model.layers."):
            _, _, layer, part = whole.split(".", 3)
            whole = f"blk.{layer}.{NAMES[part]}"
        else:
            whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[
                whole
            ]
        writer.add_tensor(f"{whole}.{kind}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_a_checkpoint(tmp_path):
    folder = resolve(str(build_tiny(tmp_path / "tiny", seed=3, family="qwen2")))
    stock, tokenizer = load_model(folder, "float32", "cpu"), load_tokenizer(folder)
    file = tmp_path / "own.gguf"
    write_gguf(file, stock, tokenizer)
    found = resolve(str(file), tmp_path / "cache")
    assert (found.reference, len(found.revision)) == (str(file), 64)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert load_tokenizer(found)(TEXT).input_ids == ids[0].tolist()
    with torch.inference_mode():
        torch.testing.assert_close(load_model(found, "float32", "cpu")(ids).logits, stock(ids).logits)
    # It is converted once.
    assert resolve(str(file), tmp_path / "cache") == found


def test_another_file_of_that_name_is_refused(tmp_path):
    file = tmp_path / "own.gguf"
    file.write_bytes(b"no GGUF at all")
    with pytest.raises(CheckpointError, match=r"own\.gguf cannot be read as GGUF"):
        resolve(str(file), tmp_path / "cache")
    assert all(entry.name.endswith(".lock") for entry in (tmp_path / "cache" / "models").iterdir())
