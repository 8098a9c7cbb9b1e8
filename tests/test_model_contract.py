"""The contract of LanguageModel, held by the toy and by transformers' models alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from playground.backends.language_model import TransformersModel, WholeTextModel
from tests.toy_model import ToyModel
from tests.toys import FAMILIES, tiny_model

#: The last one keeps no KV cache: every forward reads the whole text.
MODELS = ["toy", *FAMILIES, "whole text"]
ROW = [5, 9, 4, 9, 4, 7, 8, 3, 6, 2]


def make(name: str) -> Any:
    if name == "whole text":
        return WholeTextModel(tiny_model("llama"))
    return ToyModel() if name == "toy" else TransformersModel(tiny_model(name))


def run(model: Any, rows: list[list[int]], keep: int = 1) -> torch.Tensor:
    with torch.inference_mode():
        return model.forward(torch.tensor(rows), keep)


@pytest.mark.parametrize("name", MODELS)
def test_forward_in_pieces_equals_at_once(name: str) -> None:
    whole = run(make(name), [ROW], keep=len(ROW))
    model = make(name)
    pieces = torch.cat([run(model, [ROW[:3]], 3), run(model, [ROW[3:4]], 1), run(model, [ROW[4:]], 6)], dim=1)
    torch.testing.assert_close(pieces, whole, atol=1e-5, rtol=1e-5)
    assert model.length == len(ROW)


@pytest.mark.parametrize("name", MODELS)
def test_after_truncate_logits_equal_a_fresh_run(name: str) -> None:
    model = make(name)
    run(model, [ROW])
    model.truncate(4)
    assert model.length == 4
    torch.testing.assert_close(run(model, [[1, 2]], 2), run(make(name), [[*ROW[:4], 1, 2]], 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_truncate_counts_only_what_is_left(name: str) -> None:
    model, fresh = make(name), make(name)
    run(model, [ROW])
    model.truncate(6)
    run(fresh, [ROW[:6]])
    assert model.cache_bytes == fresh.cache_bytes
    assert (model.cache_bytes > 0) == (name != "whole text")
    with pytest.raises(ValueError):
        model.truncate(7)


@pytest.mark.parametrize("name", MODELS)
def test_after_select_rows_logits_equal_a_fresh_run(name: str) -> None:
    rows = [ROW[:5], ROW[5:]]
    model = make(name)
    run(model, rows)
    model.select_rows([1, 1, 0])
    assert model.rows == 3
    fresh = run(make(name), [[*rows[1], 1], [*rows[1], 2], [*rows[0], 3]])
    torch.testing.assert_close(run(model, [[1], [2], [3]]), fresh, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_fork_and_its_origin_do_not_see_each_other(name: str) -> None:
    model = make(name)
    run(model, [ROW[:4]])
    fork = model.fork()
    run(fork, [[1, 2, 3]])
    assert model.length == 4 and fork.length == 7
    torch.testing.assert_close(run(model, [[7]]), run(make(name), [[*ROW[:4], 7]]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run(fork, [[7]]), run(make(name), [[*ROW[:4], 1, 2, 3, 7]]), atol=1e-5, rtol=1e-5)
    assert fork.weights is model.weights


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_through_the_head_are_the_logits(family: str) -> None:
    model = make(family)
    with torch.inference_mode():
        logits, hidden = model.forward(torch.tensor([ROW]), len(ROW), hidden=(1,))
        exit_logits = make(family).early_exit(1).forward(torch.tensor([ROW]), len(ROW))
        torch.testing.assert_close(model.head(hidden[1]), exit_logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits, exit_logits)  # the last layer does something


@pytest.mark.parametrize("family", FAMILIES)
def test_an_early_exit_shares_the_cache_and_leaves_the_model_whole(family: str) -> None:
    model = make(family)
    layers = model.weights.config.num_hidden_layers
    run(model, [ROW[:5]])
    view = model.early_exit(1)
    run(view, [[1, 2]])
    assert view.length == 7
    view.truncate(5)
    assert model.weights.config.num_hidden_layers == layers
    torch.testing.assert_close(run(model, [[7]]), run(make(family), [[*ROW[:5], 7]]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_bytes_follow_the_formula(family: str) -> None:
    model = make(family)
    run(model, [ROW])
    config = model.weights.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = config.hidden_size // config.num_attention_heads
    assert model.cache_bytes == 2 * config.num_hidden_layers * heads * width * 4 * len(ROW)
