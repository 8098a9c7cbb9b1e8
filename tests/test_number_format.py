"""Number formats: those of a model's file and those that it computes with, both said wherever the model is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from playground.backends import number_format
from playground.backends.catalog import LoadedModel
from playground.measures.ledger import identity, ledger
from playground.records import recordings
from playground.records.table import markdown
from playground.trace import Trace
from playground.trace import number_format as said
from playground.ui.packets import about_json
from tests.tiny_folder import tiny_loaded


@pytest.mark.parametrize(
    ("weights", "dtype", "en", "zh"),
    [
        ("Q4_1", "float32", "Q4_1, computed in float32", "Q4_1，以 float32 计算"),
        ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        (None, "float32", "computed in float32", "以 float32 计算"),
    ],
)
def test_file_and_arithmetic_are_both_named_and_one_word_does_where_they_agree(weights: str | None, dtype: str, en: str, zh: str) -> None:
    text = said(weights, dtype)
    assert text is not None and (text.en, text.zh) == (en, zh)
    assert said(None, None) is None


def test_a_safetensors_folder_tells_the_format_of_most_of_its_numbers(tmp_path: Path) -> None:
    save_file(
        {"big": torch.zeros(40, 40, dtype=torch.bfloat16), "small": torch.zeros(4, 4), "norm": torch.zeros(5000)}, tmp_path / "model.safetensors"
    )
    assert number_format.of_folder(tmp_path) == "bfloat16"
    (tmp_path / number_format.BEFORE_CONVERSION).write_text(json.dumps("Q4_1"))
    assert number_format.of_folder(tmp_path) == "Q4_1"


def test_what_no_file_tells_is_unknown(tmp_path: Path) -> None:
    assert number_format.of_folder(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert number_format.of_folder(tmp_path) is None
    (tmp_path / number_format.BEFORE_CONVERSION).write_text('["Q4_1"]')
    assert number_format.of_folder(tmp_path) is None


def test_a_gguf_file_tells_the_format_of_its_blocks(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("matrix", gguf.quants.quantize(np.ones((8, 64), np.float32), kind), raw_dtype=kind)
    writer.add_tensor("norm", np.ones(4096, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert number_format.of_gguf(tmp_path / "toy.gguf") == "Q8_0"


def test_a_loaded_folder_says_what_it_holds() -> None:
    assert tiny_loaded().weights == "float32"


@pytest.mark.slow
def test_the_default_model_was_packed_to_four_bits(default_model: LoadedModel) -> None:
    assert default_model.weights == "Q4_1" and default_model.dtype == torch.float32


@pytest.mark.parametrize("name", [one.name for one in recordings.RECORDINGS])
def test_a_recording_names_both_wherever_it_names_its_model(name: str) -> None:
    trace = recordings.load(name)
    assert "Q4_1, computed in float32" in markdown(trace)
    assert {model["format"]["zh"] for model in about_json(trace.about)["models"]} == {"Q4_1，以 float32 计算"}
    target = dict((label.en, value) for label, value in identity(ledger(trace, 1)))["target"]
    assert not isinstance(target, str) and "Q4_1, computed in float32" in target.en


def test_a_trace_from_before_opens_and_says_only_what_it_knows() -> None:
    old: dict[str, Any] = json.loads(recordings.load("summary").to_json())
    for model in old["about"]["models"]:
        del model["weights"]
    trace = Trace.from_json(json.dumps(old))
    assert "(computed in float32, cpu)" in markdown(trace) and "Q4_1," not in markdown(trace)
