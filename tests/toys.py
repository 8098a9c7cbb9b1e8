"""Small stand-ins that need no download: a vocabulary of single characters, and tiny random models."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

_CHARACTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + " \n" + string.punctuation
_FIRST_IDEOGRAPH = 0x4E00

#: The EOS ids of every tiny model; two, because many real models have several.
EOS = (2, 3)
FAMILIES = ("llama", "gpt2", "qwen")


@dataclass(frozen=True)
class ToyVocabulary:
    """One character per token: ids from 0 are A…Z, a…z, 0…9, space, newline, punctuation, then Chinese characters.

    Characters that have no id of their own wrap around, so that any text can be encoded.
    """

    size: int
    special: frozenset[int] = field(default=frozenset())

    def character(self, token: int) -> str:
        return _CHARACTERS[token] if token < len(_CHARACTERS) else chr(_FIRST_IDEOGRAPH + token)

    def piece(self, token: int) -> bytes:
        return b"" if token in self.special else self.character(token).encode()

    def is_special(self, token: int) -> bool:
        return token in self.special

    def encode(self, text: str) -> tuple[int, ...]:
        ids = {self.character(token): token for token in range(self.size)}
        return tuple(ids.get(character, ord(character) % self.size) for character in text)


@cache
def tiny_model(family: str) -> PreTrainedModel:
    """A random causal model of two layers in float32, the same one at every call; don't change it.

    Vocabularies: llama 99, gpt2 113, qwen 128. Weights are wide enough that distributions are neither flat nor certain.
    """
    tokens = {"bos_token_id": 1, "eos_token_id": list(EOS), "pad_token_id": 0}
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FAMILIES.index(family))
        if family == "llama":
            config = LlamaConfig(vocab_size=99, max_position_embeddings=1024, initializer_range=0.3, **shape, **tokens)
            model: PreTrainedModel = LlamaForCausalLM(config)
        elif family == "qwen":
            model = Qwen2ForCausalLM(Qwen2Config(vocab_size=128, max_position_embeddings=1024, initializer_range=0.3, **shape, **tokens))
        else:
            model = GPT2LMHeadModel(GPT2Config(vocab_size=113, n_positions=1024, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, **tokens))
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name:  # weights of 1 would hide a norm that is missing or doubled
                torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model.to(torch.float32).eval()
