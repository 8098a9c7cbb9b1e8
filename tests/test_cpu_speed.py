"""What makes decoding on a CPU faster changes no number: the growing cache and the split linear layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from playground.backends import cpu_linear
from playground.backends.catalog import LoadedModel
from playground.backends.cores import LOOK, FreeCores
from playground.backends.cpu_linear import SplitLinears
from playground.backends.growing_cache import ROOM, growing_cache
from playground.backends.local import TransformersModel
from tests.toys import FAMILIES, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_growing_cache_gives_the_logits_of_transformers_own(family: str) -> None:
    model = tiny_model(family)
    ours, theirs = growing_cache(model.config), DynamicCache(config=model.config)
    tokens = torch.randint(4, 90, (1, 3 * ROOM), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        for token in tokens[0]:
            ours_logits = model(token.view(1, 1), cache=ours, use_cache=True).logits
            assert torch.equal(ours_logits, model(token.view(1, 1), cache=theirs, use_cache=True).logits)
    assert ours.get_seq_length() == 3 * ROOM
    assert all(torch.equal(mine.keys, other.keys) for mine, other in zip(ours.layers, theirs.layers, strict=True))


def test_what_one_fork_truncates_and_rewrites_the_other_does_not_see() -> None:
    model = TransformersModel(tiny_model("llama"))
    with torch.inference_mode():
        model.forward(torch.tensor([[5, 6, 7, 8, 9]]))
        fork = model.fork()
        before = [layer.keys.clone() for layer in fork.cache.layers]
        model.truncate(2)
        model.forward(torch.tensor([[10, 11, 12]]))
        assert all(torch.equal(layer.keys, kept) for layer, kept in zip(fork.cache.layers, before, strict=True))
        fork.forward(torch.tensor([[13]]))
        model.forward(torch.tensor([[14]]))
        fresh = TransformersModel(tiny_model("llama"))
        expected = fresh.forward(torch.tensor([[5, 6, 7, 8, 9, 13, 15]]))
        torch.testing.assert_close(fork.forward(torch.tensor([[15]])), expected, atol=1e-5, rtol=1e-5)


def test_appending_mostly_copies_nothing() -> None:
    model = TransformersModel(tiny_model("llama"))
    places = set()
    with torch.inference_mode():
        for token in range(4, 4 + ROOM):
            model.forward(torch.tensor([[token % 90 + 4]]))
            places.add(model.cache.layers[0].keys.data_ptr())
    assert len(places) <= 2


def test_split_layers_are_the_same_to_the_bit_and_only_where_they_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "SMALLEST", 1)
    whole = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64, bias=False), nn.Linear(64, 33))
    split = copy.deepcopy(whole)
    linears = SplitLinears(split)
    taken = [module.weight.shape[0] for module in split if "forward" in vars(module)]
    assert taken == ([128, 64] if torch.get_num_threads() % 2 == 0 else taken)
    with torch.inference_mode():
        for shape in ((1, 1, 64), (1, 5, 64), (3, 1, 64)):
            rows = torch.randn(shape)
            assert torch.equal(split(rows), whole(rows))
            with linears.active():
                assert torch.equal(split(rows), whole(rows))


@pytest.mark.slow
def test_the_default_models_logits_are_the_same_to_the_bit_with_split_layers(default_model: LoadedModel) -> None:
    if default_model.linears is None:
        pytest.skip("one core only, or a BLAS whose blocks give other numbers")
    tokens = torch.tensor([[5, 60, 700]])
    with torch.inference_mode():
        ours = TransformersModel(default_model.model, default_model.linears)
        ours.forward(tokens)
        theirs = TransformersModel(default_model.model)
        theirs.forward(tokens)
        for count in range(1, default_model.linears.rows + 2):  # and one more, which goes the ordinary way
            more = torch.arange(8, 8 + count)[None]
            assert torch.equal(ours.forward(more, count), theirs.forward(more, count))


def test_threads_follow_the_cores_that_others_leave_free() -> None:
    now, busy, own = 0.0, 0.0, 0.0
    cores = FreeCores(4, clock=lambda: now, everyone=lambda: busy, own=lambda: own, machine=4)
    assert cores.count() == 4
    for others, ours, expected in ((0.1, 4.0, 4), (0.5, 3.5, 3), (1.2, 2.8, 3), (2.9, 1.1, 1), (9.0, 1.0, 1), (0.0, 1.0, 4)):
        now, busy, own = now + LOOK, busy + (others + ours) * LOOK, own + ours * LOOK
        assert cores.count() == expected, others
    now, busy = now + LOOK / 2, busy + 4 * LOOK
    assert cores.count() == 4  # too soon for another look


def test_a_containers_neighbours_take_no_core_away() -> None:
    now, busy = 0.0, 0.0
    cores = FreeCores(2, clock=lambda: now, everyone=lambda: busy, own=lambda: 0.0, machine=64)
    now, busy = LOOK, 10 * LOOK
    assert cores.count() == 2
