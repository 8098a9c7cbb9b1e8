"""Models whose state is no KV cache: read in the way that gives `generate`'s tokens, or refused by name before a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from playground.backends import local
from playground.backends.catalog import Catalog
from playground.backends.language_model import TransformersModel, WholeTextModel
from playground.backends.reading import Reading, reading_of
from playground.engine import task
from playground.engine.select import draw
from playground.engine.strategies import strategies
from playground.errors import ModelUnavailable, PlaygroundError
from playground.figures import Look, kv
from playground.request import Request
from playground.trace import BeamsRanked, Finished, StepTimed, Trace
from tests.tiny_folder import tiny_folder
from tests.toy_model import run_alone, tokens_of, toy_task

PROMPT = [int(token) for token in torch.randint(5, 90, (30,), generator=torch.Generator().manual_seed(1))]

SHAPE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DECODER = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}
NARROW = {**DECODER, "sliding_window": 8}  # the prompt is longer than the window
GPT = {"vocab_size": 97, "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
STATE = {**SHAPE, "state_size": 8, "time_step_rank": 4}
OF_TWO_KINDS = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

#: Architecture -> its configuration, and the way in which it can be read.
READ: dict[str, tuple[dict[str, Any], Reading]] = {
    "openai-gpt": (GPT, "whole_text"),
    "rwkv": ({**SHAPE, "attention_hidden_size": 32, "context_length": 256}, "whole_text"),
    "mamba": (STATE, "prompt_at_once"),
    "falcon_mamba": (STATE, "prompt_at_once"),
    "mamba2": ({**SHAPE, "state_size": 8, "head_dim": 8, "num_heads": 8, "n_groups": 1, "chunk_size": 8}, "in_pieces"),
    "jamba": ({**DECODER, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False, "mamba_dt_rank": 4}, "prompt_at_once"),
    "falcon_h1": ({**DECODER, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}, "in_pieces"),
    "lfm2": ({**DECODER, "layer_types": ["conv", "full_attention"]}, "in_pieces"),
    "olmo_hybrid": ({**DECODER, **OF_TWO_KINDS}, "in_pieces"),
    "recurrent_gemma": (
        {**SHAPE, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 8, "lru_width": 32, "attention_window_size": 8}, "whole_text"
    ),
    "mistral": (NARROW, "in_pieces"),
    "gemma2": ({**NARROW, "query_pre_attn_scalar": 8}, "in_pieces"),
    "gemma3_text": ({**NARROW, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}, "in_pieces"),
    "minimax": ({**DECODER, "layer_types": ["linear_attention", "full_attention"], "block_size": 8}, "whole_text"),
    "opt": ({**DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32}, "in_pieces"),
    "gpt_neo": ({**SHAPE, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}, "in_pieces"),
    "bert": ({**SHAPE, "is_decoder": True}, "in_pieces"),
    "ctrl": ({**GPT, "dff": 64}, "in_pieces"),
}  # fmt: skip

#: Architecture -> its configuration, and the code with which it is refused.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bert": (SHAPE, "model_not_causal"),
    "xlnet": ({"vocab_size": 97, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "model_unreadable"),
    "xlm": ({"vocab_size": 97, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "causal": True, "n_langs": 1}, "model_unlike_generate"),
    "prophetnet": (
        {
            **SHAPE,
            "num_encoder_layers": 1,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "is_decoder": True,
            "is_encoder_decoder": False,
            "add_cross_attention": False,
        },
        "model_not_causal",
    ),
    "moshi": ({**NARROW, "ffn_dim": 64}, "model_unlike_generate"),
    "xmod": ({**SHAPE, "is_decoder": True}, "model_unreadable"),
}


def made(kind: str, settings: dict[str, Any]) -> PreTrainedModel:
    declared = CONFIG_MAPPING[kind]
    taken = {name: value for name, value in settings.items() if name in (*vars(declared()), *declared.attribute_map)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(declared(**taken)).to(torch.float32).eval().requires_grad_(False)
        for weight in model.parameters():
            if weight.dim() >= 2:  # wide enough that what stands before decides
                torch.nn.init.normal_(weight, 0, 0.2)
    for name in ("eos_token_id", "forced_eos_token_id"):
        setattr(model.generation_config, name, None)
    return model


@cache
def readable(kind: str) -> tuple[PreTrainedModel, Reading]:
    weights = made(kind, READ[kind][0])
    return weights, reading_of(weights, kind)


def view(kind: str) -> TransformersModel | WholeTextModel:
    weights, reading = readable(kind)
    return WholeTextModel(weights) if reading == "whole_text" else TransformersModel(weights, reads_in_pieces=reading == "in_pieces")


def run(kind: str, strategy: str, tokens: int, **knobs: Any) -> list[Any]:
    return run_alone(toy_task(view(kind), PROMPT, max_new_tokens=tokens), strategies.get(strategy)(**knobs))


def generated(kind: str, tokens: int, **asked: Any) -> list[int]:
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        answer = readable(kind)[0].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **asked)
    return answer[0, len(PROMPT) :].tolist()


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "PROMPT_CHUNK_ON_CPU", 8)


@pytest.mark.parametrize("kind", READ)
def test_a_model_is_read_in_a_way_that_forgets_nothing(kind: str) -> None:
    assert readable(kind)[1] == READ[kind][1]
    assert tokens_of(run(kind, "greedy", 10)) == generated(kind, 10)
    assert (len(task.prompt_pieces(PROMPT, view(kind))) > 1) == (READ[kind][1] == "in_pieces")


@pytest.mark.parametrize("kind", READ)
def test_beams_are_generates_whatever_a_layer_keeps(kind: str) -> None:
    (ranked,) = (event for event in run(kind, "beam", 6, num_beams=3) if isinstance(event, BeamsRanked))
    # generate can't reorder states that lie beside the cache: there it has to read the whole text, too.
    assert list(ranked.hypotheses[0].tokens) == generated(kind, 6, num_beams=3, use_cache=READ[kind][1] != "whole_text")


@pytest.mark.parametrize("kind", READ)
def test_speculation_writes_the_plain_text_or_is_refused_before_the_run(kind: str) -> None:
    plain = tokens_of(run(kind, "greedy", 10))
    for knobs in ({"drafter": "ngram"}, {"drafter": "early_exit", "exit_layer": 1}):
        strategy = strategies.get("speculative_greedy")(k=3, **knobs)
        asked = toy_task(view(kind), PROMPT, max_new_tokens=10)
        try:
            strategy.check_models(asked)
        except PlaygroundError as refused:
            assert refused.code in ("cache_not_croppable", "early_exit_impossible") and refused.text.zh
        else:
            assert tokens_of(run_alone(asked, strategy)) == plain


@pytest.mark.parametrize("kind", ["openai-gpt", "mamba", "jamba", "gemma2"])
def test_sampling_draws_from_the_scores_of_the_whole_text(kind: str) -> None:
    events = run(kind, "sample", 8)
    text = list(PROMPT)
    for event in (event for event in events if event.kind == "token_chosen"):
        with torch.inference_mode():
            scores = WholeTextModel(readable(kind)[0]).forward(torch.tensor([text]))[0, -1]  # type: ignore[index]
        assert int(draw(scores.softmax(-1), event.u).token) == event.token
        text.append(event.token)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_can_not_continue_a_text_is_refused_by_name(kind: str) -> None:
    settings, code = REFUSED[kind]
    with pytest.raises(ModelUnavailable) as refused:
        reading_of(made(kind, settings), "the model")
    assert refused.value.code == code
    assert "the model" in refused.value.text.en and kind in refused.value.text.en and "the model" in refused.value.text.zh


@pytest.mark.parametrize("kind", ["mamba2", "falcon_h1", "lfm2"])
def test_states_count_among_what_the_cache_holds(kind: str) -> None:
    model = view(kind)
    with torch.inference_mode():
        model.forward(torch.tensor([PROMPT, PROMPT]))
    states = 0
    for layer in model.cache.layers:  # type: ignore[union-attr]
        kept = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        kept += [state for name in ("conv_states", "recurrent_states") for state in getattr(layer, name, {}).values()]
        states += sum(tensor.nbytes for tensor in kept if tensor is not None)
    assert model.cache_bytes == states > 0 and model.rows == 2 and model.length == len(PROMPT)


def gpt1_folder(folder: Path) -> Path:
    """A GPT-1 with the tokenizer of the tiny folder, on disk."""
    for file in tiny_folder().iterdir():
        if file.name.startswith(("tokenizer", "special", "chat_template")):
            (folder / file.name).write_bytes(file.read_bytes())
    made("openai-gpt", {**GPT, "vocab_size": 260, "eos_token_id": 256}).save_pretrained(folder)
    return folder


def test_a_lane_without_a_kv_cache_says_so_in_lane_trace_and_figure(tmp_path: Path) -> None:
    models = Catalog()
    lanes = [{"name": "plain", "max_new_tokens": 6}, {"name": "ahead", "strategy": "speculative_greedy", "max_new_tokens": 6, "knobs": {"k": 2}}]
    request = Request.from_json({"prompt": {"text": "Once upon a time", "chat": False}, "model": str(gpt1_folder(tmp_path)), "lanes": lanes})
    comparison = local.prepare(request, lambda name: models.get(name, "cpu", "float32"))
    trace = Trace(comparison.about)
    for events in comparison:
        trace.add(events)
    trace = Trace.from_json(trace.to_json())
    for index in range(2):
        (note,) = trace.about.lanes[index].notes
        assert "openai-gpt" in note["en"] and "every forward reads the whole text" in note["en"] and "没有" in note["zh"]
        assert {(step.cache_length, step.cache_bytes) for step in trace.of(index, StepTimed)} == {(0, 0)}
        (finished,) = trace.of(index, Finished)
        assert finished.reason in ("length", "stop")
    assert [one.token for one in trace.output(0)] == [one.token for one in trace.output(1)]
    assert trace.about.models[0].cache_formula is None
    told = kv.FIGURE.describe(trace, None, None, Look())
    assert "plain: no KV cache" in told.en and "没有 KV 缓存" in told.zh
