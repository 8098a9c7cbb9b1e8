"""Models of many architectures, tiny and random: the tokens of `generate`, with a KV cache or without one, or a refusal by name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from playground.backends import local
from playground.backends.language_model import TransformersModel, WholeTextModel
from playground.backends.reading import reading_of
from playground.engine.knobs import checked
from playground.engine.stages import stages
from playground.engine.strategies import strategies
from playground.errors import PlaygroundError
from playground.request import Request
from playground.trace import StepTimed, TokenChosen, standing
from tests.tiny_folder import tiny_loaded
from tests.toy_model import run_alone, toy_task

_SHAPE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}  # fmt: skip
_OLD_SHAPE = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_WINDOW = {**_SHAPE, "sliding_window": 8, "head_dim": 8}
_STATES = {"mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}

#: Architectures by their name in transformers: what makes them tiny, and how they have to be read.
ARCHITECTURES: dict[str, tuple[dict[str, Any], str]] = {
    "openai-gpt": (_OLD_SHAPE, "whole_text"),
    "rwkv": ({"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}, "whole_text"),
    # Its recurrent state lies in its modules, where lanes would write over each other.
    "recurrent_gemma": ({**_SHAPE, "head_dim": 8, "lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 8}, "whole_text"),
    "mamba": ({"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "prompt_at_once"),
    "jamba": (
        {
            **_SHAPE, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
            "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False,
        },
        "prompt_at_once",
    ),
    "lfm2": ({**_SHAPE, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8}, "in_pieces"),
    "falcon_h1": ({**_SHAPE, **_STATES, "mamba_d_ssm": 32, "mamba_n_heads": 4}, "in_pieces"),
    "mistral": (_WINDOW, "in_pieces"),
    "gemma3_text": (_WINDOW, "in_pieces"),
    "bert": ({name: value for name, value in _SHAPE.items() if name != "num_key_value_heads"} | {"is_decoder": True}, "in_pieces"),
    "ctrl": ({**_OLD_SHAPE, "dff": 64}, "in_pieces"),
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, "in_pieces"),
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "causal": True},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
}

PROMPT = [(7 * place + 5) % 90 + 5 for place in range(30)]
COUNT = 8


@cache
def tiny(kind: str) -> PreTrainedModel:
    """A random model of an architecture; weights are wide enough that a forgotten prompt changes the tokens."""
    shape = ARCHITECTURES[kind][0] if kind in ARCHITECTURES else REFUSED[kind]
    config = CONFIG_MAPPING[kind](**shape, vocab_size=99, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
        for weight in model.parameters():
            if weight.dim() > 1 and weight.std() < 0.1:
                torch.nn.init.normal_(weight, std=0.3)
    return model


def ours(kind: str, strategy: str, **knobs: Any) -> list[int]:
    reading = reading_of(tiny(kind), kind)
    model = WholeTextModel(tiny(kind)) if reading == "whole_text" else TransformersModel(tiny(kind), reads_in_pieces=reading == "in_pieces")
    going_on = [checked(stages.get("min_new_tokens"), {"min_new_tokens": COUNT})]
    events = run_alone(toy_task(model, PROMPT, going_on, max_new_tokens=COUNT, eos=(2,)), checked(strategies.get(strategy), knobs))
    return [event.token for event in standing(event for event in events if isinstance(event, TokenChosen))]


def theirs(kind: str, **how: Any) -> list[int]:
    """The tokens of `generate`; without its cache where a cache can't be used, because its own forgets what ours would."""
    ends = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
    asked = GenerationConfig(
        max_new_tokens=COUNT, min_new_tokens=COUNT, use_cache=ARCHITECTURES[kind][1] != "whole_text", do_sample=False, **ends, **how
    )
    answer = tiny(kind).generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long), generation_config=asked)
    return answer[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_no_architecture_forgets_its_prompt(kind: str) -> None:
    assert reading_of(tiny(kind), kind) == ARCHITECTURES[kind][1]
    assert ours(kind, "greedy") == theirs(kind)


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind != "rwkv"])  # its `generate` has no beams
def test_beams_of_any_architecture_are_those_of_generate(kind: str) -> None:
    assert ours(kind, "beam", num_beams=3) == theirs(kind, num_beams=3)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_can_t_continue_a_text_is_refused_by_name(kind: str) -> None:
    with pytest.raises(PlaygroundError) as refused:
        reading_of(tiny(kind), f"my {kind}")
    assert f"my {kind} ({kind})" in refused.value.text.en and f"my {kind}（{kind}）" in refused.value.text.zh


def run(reading: str, *lanes: dict[str, Any]) -> Any:
    request = Request.from_json({"prompt": {"text": "The cat sat on the mat.", "chat": False}, "lanes": list(lanes), "seed": 4, "align": True})
    loaded = replace(tiny_loaded(), reading=reading)
    comparison = local.prepare(request, lambda _: loaded)
    return comparison.about, [event for batch in comparison for event in batch]


def test_a_lane_without_a_cache_says_so_and_writes_the_same() -> None:
    lanes = [
        {"strategy": "greedy", "max_new_tokens": 8}, {"strategy": "sample", "knobs": {"top_k": 20}, "max_new_tokens": 8},
        {"strategy": "beam", "knobs": {"num_beams": 3}, "max_new_tokens": 8},
        {"strategy": "speculative_greedy", "knobs": {"drafter": "ngram"}, "max_new_tokens": 8},
    ]  # fmt: skip
    about, events = run("whole_text", *lanes)
    cached_about, cached = run("in_pieces", *lanes)
    for lane in range(len(lanes)):
        written = [[e.token for e in standing(e for owner, e in one if owner == lane and isinstance(e, TokenChosen))] for one in (events, cached)]
        assert written[0] == written[1] and written[0]
        assert any("has no KV cache" in note["en"] and "没有" in note["zh"] for note in about.lanes[lane].notes)
        assert not any("KV cache" in note["en"] for note in cached_about.lanes[lane].notes)
        steps = [event for owner, event in events if owner == lane and isinstance(event, StepTimed)]
        assert steps and all(step.cache_length == step.cache_bytes == 0 for step in steps)
    assert about.models[0].cache_bytes_per_token is None and cached_about.models[0].cache_bytes_per_token == 256
