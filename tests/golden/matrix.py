"""Two hundred requests over a tiny random model: every strategy, stage, drafter and limit, alone and together."""

from __future__ import annotations

from itertools import product
from typing import Any

PROMPTS = ("The cat sat on the mat. The cat sat", "aaaa bbbb aaaa bbbb aaaa", "x = {'a': 1}\nx = {'a'", "你好，世界。你好")

#: One setting of every stage, or several where a stage has several ways of working.
STAGES: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.3}, {"repetition_penalty": 1.3, "repetition_scope": "output"}, {"repetition_penalty": 0.8},
    {"encoder_repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}, {"bad_words": ["a", "th"]}, {"min_length": 40},
    {"min_new_tokens": 5}, {"forced_eos": True}, {"decay_start": 2, "decay_factor": 1.5}, {"suppress_tokens": ["e", " "]},
    {"begin_suppress_tokens": ["t", "a"]}, {"presence_penalty": 0.7}, {"frequency_penalty": -0.4}, {"logit_bias": "e: 3\nt: -2"},
    {"sequence_bias": "at: 4"},
)  # fmt: skip
WARPERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.5}, {"temperature": 1.7}, {"temperature": 0}, {"top_h": 0.4}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1},
    {"typical_p": 0.7}, {"epsilon_cutoff": 0.01}, {"eta_cutoff": 0.02}, {"mirostat_tau": 3.0, "mirostat_eta": 0.2},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9}, {"temperature": 1.2, "min_p": 0.05, "repetition_penalty": 1.2},
)  # fmt: skip
BEAMS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1}, {"num_beams": 2}, {"num_beams": 4}, {"num_beams": 4, "length_penalty": 0.0}, {"num_beams": 3, "length_penalty": 2.0},
    {"num_beams": 3, "early_stopping": "true"}, {"num_beams": 3, "early_stopping": "never"}, {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, {"num_beams": 3, "do_sample": True},
    {"num_beams": 3, "do_sample": True, "temperature": 1.5, "top_k": 20}, {"num_beams": 3, "repetition_penalty": 1.3},
    {"num_beams": 3, "no_repeat_ngram_size": 2}, {"num_beams": 2, "min_new_tokens": 6},
)  # fmt: skip
DRAFTS: tuple[dict[str, Any], ...] = (
    {"drafter": "ngram", "k": 3, "schedule": "fixed"}, {"drafter": "ngram", "k": 5}, {"drafter": "ngram", "k": 1, "schedule": "fixed"},
    {"drafter": "suffix", "k": 4, "schedule": "fixed", "earlier_runs": False}, {"drafter": "suffix", "k": 6, "earlier_runs": False},
    {"drafter": "early_exit", "k": 3, "exit_layer": 1, "schedule": "fixed"},
    {"drafter": "early_exit", "k": 2, "exit_layer": 1, "drafting": "probabilistic"},
    {"drafter": "recorded", "k": 4, "recorded": "on the mat. The cat sat on", "schedule": "fixed"},
)  # fmt: skip


def lane(strategy: str, knobs: dict[str, Any] | None = None, tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {"name": strategy, "strategy": strategy, "knobs": knobs or {}, "max_new_tokens": tokens, **more}


def request(*lanes: dict[str, Any], prompt: str = PROMPTS[0], seed: int = 0, **more: Any) -> dict[str, Any]:
    """Lanes take turns by steps: by seconds their order would be another at every run."""
    return {"prompt": {"text": prompt, "chat": False}, "lanes": list(lanes), "seed": seed, "align": True, **more}


def requests() -> list[dict[str, Any]]:
    """All of them, in an order that stays."""
    asked = [request(lane(strategy), prompt=prompt, seed=seed) for strategy, prompt, seed in product(("greedy", "sample"), PROMPTS, (0, 7))]
    asked += [request(lane("greedy", knobs), lane("sample", knobs), seed=3) for knobs in STAGES]
    asked += [
        request(lane("sample", knobs), lane("sample", knobs, order="vllm"), prompt=prompt, seed=5) for knobs in WARPERS for prompt in PROMPTS[:2]
    ]
    asked += [request(lane("greedy", knobs)) for knobs in WARPERS[:6]]
    asked += [request(lane("beam", knobs), prompt=prompt, seed=1) for knobs in BEAMS for prompt in PROMPTS[:2]]
    drafted = product(DRAFTS, ("speculative_greedy", "speculative_sample"), PROMPTS[:2])
    asked += [request(lane(strategy, knobs, tokens=16), prompt=prompt, seed=2) for knobs, strategy, prompt in drafted]
    warped = {"temperature": 0.7, "top_p": 0.9}
    asked += [request(lane("speculative_sample", {**knobs, **warped}, tokens=12), lane("sample", warped, tokens=12), seed=9) for knobs in DRAFTS]
    asked += [request(lane("sample", defaults="inherit"), lane("greedy", stop=[stop]), seed=seed) for stop in ("e", "th") for seed in range(4)]
    asked += [
        request(lane("sample", tokens=tokens), lane("greedy", tokens=tokens), seed=tokens, share_prompt=shared)
        for tokens in (1, 2, 5)
        for shared in (True, False)
    ]
    branch = {"tokens": [97, 98, 99], "lane": "greedy", "position": 2, "model": None}
    asked += [
        request(lane(strategy, branch=branch), prompt=prompt)
        for strategy in ("greedy", "sample", "beam", "speculative_greedy")
        for prompt in PROMPTS[:2]
    ]
    asked += [
        {**request(lane("greedy"), lane("sample", {"temperature": 0.9})), "prompt": {"text": text, "chat": True, "system": system}}
        for text in PROMPTS[:3]
        for system in (None, "Be brief.")
    ]
    together = (lane("greedy"), lane("beam", {"num_beams": 3}), lane("sample", {"top_p": 0.9}), lane("speculative_greedy", DRAFTS[0]))
    asked += [request(*together, prompt=prompt, seed=seed) for prompt in PROMPTS for seed in range(10)]
    return asked
