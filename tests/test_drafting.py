"""What the backend gives to speculative lanes: draft models of the same tokenizer, and earlier runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from playground.backends import catalog, drafting
from playground.errors import ModelUnavailable, PlaygroundError
from playground.request import Lane, Request


class Loaded:
    """As much of a loaded model as tokens are compared by."""

    def __init__(self, name: str, tokens: dict[str, int], rows: int | None = None) -> None:
        self.entry = SimpleNamespace(name=name)
        self.tokenizer = SimpleNamespace(get_vocab=lambda: dict(tokens))
        self.vocabulary = SimpleNamespace(size=rows or max(tokens.values()) + 1)


def shared(target: dict[str, int], draft: dict[str, int], rows: int | None = None) -> int:
    return drafting.shared_ids(Loaded("big", target, rows), Loaded("small", draft))  # type: ignore[arg-type]


def test_tokenizers_are_compared_id_by_id_not_by_size() -> None:
    tokens = {"a": 0, "b": 1, "c": 2}
    assert shared(tokens, tokens) == 3
    assert shared(tokens, tokens, rows=8) == 3  # rows that pad the larger model's matrix are nobody's tokens
    assert shared({**tokens, "<added>": 3}, tokens) == 3
    assert shared(tokens, {**tokens, "<added>": 3}) == 3
    with pytest.raises(PlaygroundError) as refused:
        shared(tokens, {"a": 0, "c": 1, "b": 2})  # as many tokens, and other ones
    assert refused.value.code == "draft_tokenizer"
    for word in ("big", "small", "token 1", "'b'", "'c'"):
        assert word in refused.value.text.en


def test_a_hole_in_one_of_the_tokenizers_is_refused() -> None:
    with pytest.raises(PlaygroundError, match="token 1"):
        shared({"a": 0, "b": 1, "c": 2}, {"a": 0, "c": 2})


def lane(**knobs: Any) -> Lane:
    return Lane.from_json({"strategy": "speculative_greedy", "knobs": knobs})


def test_the_catalog_pairs_a_model_with_a_smaller_one() -> None:
    drafted = lane(drafter="draft_model")
    assert drafting.draft_name(drafted, catalog.resolve("HuggingFaceTB/SmolLM2-1.7B-Instruct", False)) == catalog.DEFAULT
    assert drafting.draft_name(drafted, catalog.resolve("gpt2", False)) == "distilgpt2"
    assert drafting.draft_name(lane(drafter="draft_model", draft_model="gpt2"), catalog.resolve(None, False)) == "gpt2"
    assert drafting.draft_name(lane(drafter="ngram"), catalog.resolve(None, False)) is None
    with pytest.raises(ModelUnavailable, match="draft_model"):
        drafting.draft_name(drafted, catalog.resolve(catalog.DEFAULT, False))


def test_a_request_needs_its_drafters_models_too() -> None:
    lanes = [{"strategy": "greedy"}, {"strategy": "speculative_greedy", "model": "gpt2", "knobs": {"drafter": "draft_model"}}]
    request = Request.from_json({"prompt": "x", "lanes": lanes})
    assert drafting.models_of(request, False) == {catalog.DEFAULT, "gpt2", "distilgpt2"}


def test_a_public_host_takes_no_strangers_draft_model() -> None:
    lanes = [{"strategy": "speculative_greedy", "knobs": {"drafter": "draft_model", "draft_model": "someone/model"}}]
    with pytest.raises(ModelUnavailable):
        drafting.models_of(Request.from_json({"prompt": "x", "lanes": lanes}), True)


def test_earlier_runs_are_few_short_and_never_shown_on_a_public_host(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = Loaded("one", {"a": 0})
    for run in range(drafting.KEPT_RUNS + 5):
        drafting.remember(loaded, (run, *range(drafting.KEPT_TOKENS)))
        drafting.remember(loaded, (run, *range(drafting.KEPT_TOKENS)))
    assert len(drafting.earlier_runs(loaded)) == 1  # the beginning is cut off, and the rest is the same
    for run in range(drafting.KEPT_RUNS + 5):
        drafting.remember(loaded, (run, 7))
    assert len(drafting.earlier_runs(loaded)) == drafting.KEPT_RUNS and drafting.earlier_runs(loaded)[-1] == (drafting.KEPT_RUNS + 4, 7)
    monkeypatch.setenv("PLAYGROUND_PUBLIC", "1")
    assert drafting.earlier_runs(loaded) == ()
