"""Tiny random checkpoints with a real tokenizer: for tests, and for dry runs of a deployment.

Seeded: the same arguments give the same weights and the same tokenizer.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from cluster.checkpoints.loading import quiet_transformers

CONTEXT_LENGTH = 512
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_BYTES = 256
# With transformers' usual 0.02 the residual outweighs attention and feed-forward, and greedy decoding repeats
# one token forever; here it wanders, and falls into loops now and then.
_INITIALIZER_RANGE = 0.15


def build_tiny(
    path: Path, *, seed: int, vocab: int = 512, layers: int = 2, hidden: int = 64, family: str = "llama"
) -> Path:
    """Write a random transformers checkpoint into `path` and return it.

    vocab: tokens, the tokenizer's and the model's; hidden: a multiple of 8 (4 heads over 2 key-value heads);
    family: a decoder-only model_type of transformers, such as "llama" or "qwen3". Raises ValueError.
    """
    tokenizer = _train_tokenizer(vocab)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    config = AutoConfig.for_model(
        family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=_INITIALIZER_RANGE,
        # Tied, the likeliest next token would be the last one again.
        tie_word_embeddings=False,
        bos_token_id=tokenizer.convert_tokens_to_ids(IM_START),
        eos_token_id=end,
        pad_token_id=end,
    )
    quiet_transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _train_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([_TEXT], trainer)
    if bpe.get_vocab_size() != vocab:
        least = _BYTES + 2
        raise ValueError(
            f"vocab must lie between {least} and what the text gives, {bpe.get_vocab_size()}; got {vocab}"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=IM_START,
        eos_token=IM_END,
        pad_token=IM_END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


_TEXT = """\
The river rises in the hills above the town and runs down past the mill, the market and the old stone bridge
before it reaches the sea. In spring the water is high and brown; in summer children wade across it. Each year
somebody says that the bridge should be widened, and every year the council answers that there is no money.

A function takes its arguments, does one thing and returns a value. When a test fails, read the message first:
it names the file, the line and what was expected. Then change one thing at a time and run the test again.

def add(left: int, right: int) -> int:
    \"\"\"Return the sum of two numbers.\"\"\"
    return left + right

for index in range(10):
    print(index, add(index, index + 1))

Question: what is 12 times 12? Answer: 144. Question: which planet is nearest to the sun? Answer: Mercury.
{"name": "example", "values": [1, 2, 3], "nested": {"enabled": true, "ratio": 0.25}}
Writing is thinking made visible. Short words are best, and old words when they are short are best of all.
The user asked the assistant for a summary of the system, and the assistant wrote three sentences about it.
"""
