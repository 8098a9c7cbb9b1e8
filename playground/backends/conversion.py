"""GGUF files as ordinary transformers models: every block unpacked to plain numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
from transformers.utils import logging

from playground.backends import number_format


def silence() -> None:
    """No progress bars and no advice on the terminal: progress is reported to the page, and errors are raised."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # The GGUF reader draws a bar of its own, past transformers' switch.
    modeling_gguf_pytorch_utils.tqdm = partial(tqdm, disable=True)


def read_gguf_tokenizer(folder: Path, file: str) -> Any:
    return AutoTokenizer.from_pretrained(folder, gguf_file=file, trust_remote_code=False)


def read_gguf_model(folder: Path, file: str, dtype: torch.dtype) -> Any:
    """The file's model with dense weights of `dtype`."""
    return AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, quantization_config=GgufConfig(dequantize=True), dtype=dtype, trust_remote_code=False
    )


def convert_default_model(gguf: Path, made: Path) -> None:
    """Unpack SmolLM2's 4-bit weights to float32, which loses nothing more, and save them with tokenizer and chat template."""
    silence()
    tokenizer = read_gguf_tokenizer(gguf.parent, gguf.name)
    # SmolLM2 cuts out every digit first (GGUF names this way of cutting "smollm"), which transformers' reader leaves
    # out: without it the two spaces of "a  1" become other tokens than those that the model was trained on.
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    model = read_gguf_model(gguf.parent, gguf.name, torch.float32)
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    (made / number_format.BEFORE_CONVERSION).write_text(json.dumps(number_format.of_gguf(gguf)), "utf-8")
