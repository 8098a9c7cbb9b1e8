"""A tiny random model with a byte-level tokenizer as a folder on disk, and loaded: real all through, and fast."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from playground.backends.catalog import Catalog, LoadedModel
from playground.backends.vocabulary import byte_decoder

SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"


@cache
def tiny_folder() -> Path:
    """One token per byte and three special ones; two layers; 512 positions of context; a chat template."""
    folder = Path(mkdtemp(prefix="tiny-model-"))
    vocabulary = {character: byte for character, byte in byte_decoder().items()}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIALS[0], additional_special_tokens=list(SPECIALS[1:]))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, initializer_range=0.3, eos_token_id=256, bos_token_id=None, pad_token_id=256,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@cache
def tiny_loaded() -> LoadedModel:
    """The tiny model in memory, loaded the way any folder is."""
    return Catalog().get(str(tiny_folder()), "cpu", "float32")
