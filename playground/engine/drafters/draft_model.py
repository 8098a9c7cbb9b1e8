"""A second, smaller model of the same tokenizer guesses ahead (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from playground.engine.drafters import Draft, Drafting, Start, drafters
from playground.engine.drafters.chain import Chain, ChainDrafter
from playground.engine.knobs import knob
from playground.engine.model import LanguageModel
from playground.engine.task import Row, Task, prompt_pieces
from playground.errors import PlaygroundError, Text
from playground.trace import PromptRead


@drafters.register
@dataclass(frozen=True)
class DraftModel(ChainDrafter):
    """Another model writes the guesses, with a KV cache of its own."""

    name = "draft_model"
    label = Text("draft model", "草稿模型")
    summary = Text(
        "A smaller model of the same tokenizer writes the guesses; its weights and its KV cache come on top.",
        "由使用同一分词器的较小模型写出猜测；需要额外的权重和 KV 缓存。",
    )
    needs_model = True

    draft_model: str = knob(
        "",
        kind="text",
        high=300,
        label=Text("draft model", "草稿模型"),
        help=Text(
            "Which model drafts: a catalog id, a Hub id or a folder. Empty: the one that the catalog pairs with the lane's model.",
            "由哪个模型起草：目录标识、Hub 标识或文件夹。留空：目录中与本通道模型配对的模型。",
        ),
        names={"transformers": "assistant_model", "vllm": "model"},
    )  # fmt: skip

    def check_models(self, task: Task) -> None:
        model = task.draft_model
        if model is None:
            raise PlaygroundError("draft_model_missing", Text("This lane has no draft model: name one.", "此通道没有草稿模型：请指定一个。"))
        if not model.can_roll_back:
            raise PlaygroundError(
                "cache_not_croppable",
                Text(
                    "The draft model's KV cache can't be rolled back (recurrent state, sliding window or a cache of its own kind): "
                    "choose another draft model.",
                    "草稿模型的 KV 缓存无法回滚（循环状态、滑动窗口或特殊缓存）：请选择其他草稿模型。",
                ),
            )

        if model.context is not None and len(task.prompt) > model.context:
            raise PlaygroundError(
                "draft_context",
                Text(
                    "The prompt has {length} tokens, and the draft model can take {most}: choose another one.",
                    "提示词有 {length} 个词元，而草稿模型最多 {most} 个：请选择其他草稿模型。",
                ),
                length=len(task.prompt), most=model.context,
            )  # fmt: skip

        unknown = next((token for token in task.prompt if token >= _shared(task)), None)
        if unknown is not None:
            raise PlaygroundError(
                "draft_prompt",
                Text(
                    "The prompt has token {token}, which the draft model doesn't know: choose another one.",
                    "提示词含有词元 {token}，而草稿模型不认识它：请选择其他草稿模型。",
                ),
                token=unknown,
            )  # fmt: skip

    def start(self, task: Task) -> Start:
        model = task.draft_model
        assert model is not None, "checked before the run"
        if not model.length:  # the race hasn't read the prompt for it
            for piece in prompt_pieces(task.prompt, model):
                with task.clock.part("draft"):
                    model.forward(torch.tensor([piece], dtype=torch.long).to(model.device))
                yield (PromptRead(tokens=model.length, total=len(task.prompt), seconds=0.0, cache_bytes=model.cache_bytes),)
        return _Reader(task, model, self.drafting == "greedy")


def _shared(task: Task) -> int:
    """How many ids, from 0 on, are the same tokens to both models."""
    assert task.draft_model is not None
    size = min(task.model.vocabulary_size, task.draft_model.vocabulary_size)
    return size if task.shared_ids is None else min(size, task.shared_ids)


class _Reader(Drafting):
    """Keeps a model's cache in step with the row: what was rejected is rolled back when the next guess is asked for.

    Tokens that the draft model doesn't know are left out of what it reads: that costs acceptance, never exactness.
    """

    forwards = True

    def __init__(self, task: Task, model: LanguageModel, greedy: bool) -> None:
        self._prompt, self._model = task.prompt, model
        self._chain = Chain(task, model, greedy, shared=_shared(task))
        self._held: tuple[int, ...] = task.prompt  # what the cache holds

    @property
    def length(self) -> int:  # type: ignore[override]
        return self._model.length

    @property
    def cache_bytes(self) -> int:  # type: ignore[override]
        return self._model.cache_bytes

    def guess(self, row: Row, k: int, round: int, doubt: float = 0.0) -> Draft:
        ids = self._prompt + tuple(token for token in row.output if token < self._chain.shared)
        if self._model.context is not None:
            k = min(k, self._model.context - len(ids) + 1)  # the last guess is written, not read
        if k < 1:
            return Draft(limit="context")
        unread = self._rolled_back(ids)
        draft = self._chain.guess(row, unread, k, round, doubt)
        self._held = (*ids, *draft.tokens[: self._model.length - len(ids)])
        return draft

    def _rolled_back(self, ids: tuple[int, ...]) -> Sequence[int]:
        """Make the cache a beginning of `ids` that leaves at least the last one to read; returns what is left."""
        same = next((at for at, (held, now) in enumerate(zip(self._held, ids[:-1], strict=False)) if held != now), min(len(self._held), len(ids) - 1))
        self._model.truncate(same)
        return ids[same:]
