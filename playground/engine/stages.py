"""Logits processors and warpers, one small class each, between the model's scores and the choice.

A processor edits scores by what was said so far (history) or by rule; a warper reshapes the
distribution that is then drawn from, and is idle where nothing is drawn. A stage is a value; `bind`
ties it to one lane. Where transformers has the class, the stage wraps it, so that our numbers are
`generate`'s numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.generation.logits_process import (
    EncoderRepetitionPenaltyLogitsProcessor,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from playground.engine.knobs import Biases, Registry, TokenSequences, knob, knobs_of
from playground.engine.known import Known
from playground.engine.model import Vocabulary
from playground.errors import BadValue, PlaygroundError, Text

stages: Registry[type[Stage]] = Registry("stage")


@dataclass(frozen=True)
class Context:
    """What a stage may know of its lane when it is bound."""

    prompt: tuple[int, ...]
    eos: tuple[int, ...]
    max_new_tokens: int
    vocabulary: Vocabulary
    device: torch.device
    min_tokens_to_keep: int = 1


class BoundStage:
    """A stage tied to one lane: scores in, scores out, never in place.

    `process` is any transformers-style function `(input_ids [B, T], scores [B, V]) -> scores [B, V]`;
    without one the scores pass unchanged (a stage that is off, or has nothing to do on this model).
    A stage that keeps state between steps overrides `start`, `apply` and `advance`; the state is
    immutable, one per row, and goes wherever its row goes (beams, rollback).
    """

    start: Any = None

    def __init__(self, process: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        self.process = process

    def apply(self, input_ids: Tensor, scores: Tensor, states: Sequence[Any]) -> Tensor:
        return scores if self.process is None else self.process(input_ids, scores)

    def advance(self, state: Any, token: int, log_probability: float) -> Any:
        """The state after `token` joined the row; `log_probability` is that of the final distribution."""
        return state

    def numbers(self, state: Any) -> tuple[tuple[str, float], ...]:
        """What of the state is worth showing, by name."""
        return ()


@dataclass(frozen=True)
class Stage:
    """One step of the way from logits to probabilities: a value with knobs as fields."""

    name: ClassVar[str]
    kind: ClassVar[Literal["processor", "warper"]]
    label: ClassVar[Text]
    summary: ClassVar[Text]
    #: Whether the lane's settings show it at once, or under "more stages".
    common: ClassVar[bool] = False
    #: What the stage reads, besides the scores: shown on the page "Parameters".
    acts_on: ClassVar[Literal["history", "logits", "probabilities"]] = "logits"
    #: Whether every token that is likelier than one that is left is left too, and likelier still.
    keeps_order: ClassVar[bool] = False

    @property
    def is_off(self) -> bool:
        """Whether every knob that can switch the stage off does so."""
        switches = {name: declared for name, declared in knobs_of(type(self)).items() if declared.off is not None}
        return all(getattr(self, name) == declared.off for name, declared in switches.items())

    def bind(self, context: Context) -> BoundStage:
        raise NotImplementedError

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known | None:
        """What a record tells of the distribution after this stage, from what it tells of the one before; None: only the model can tell.

        `bound` is this stage on the recorded lane, `history` `[T]` its prompt and the output before the step, `vocabulary` the number of token ids.
        """
        return None


def per_token(self: Stage, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known | None:
    """`redecide` of a processor that judges each token by itself: by its history, and by its score only so that higher stays higher."""
    input_ids = torch.from_numpy(history)[None]  # [1, T]
    return known.per_token(lambda scores: bound.apply(input_ids, scores, [bound.start]), vocabulary)


@dataclass(frozen=True)
class RecordedVocabulary:
    """What a trace knows of a vocabulary: its size. Text can't be turned into ids without the tokenizer."""

    size: int

    def piece(self, token: int) -> bytes:
        raise needs_tokenizer()

    def is_special(self, token: int) -> bool:
        raise needs_tokenizer()

    def encode(self, text: str) -> tuple[int, ...]:
        raise needs_tokenizer()


def needs_tokenizer() -> PlaygroundError:
    return PlaygroundError("needs_model", Text("Words become token ids only with the model's tokenizer.", "需要模型的分词器才能把文字变成词元编号。"))


def recorded_context(prompt: tuple[int, ...], eos: tuple[int, ...], max_new_tokens: int, vocabulary: int) -> Context:
    """The context of a lane that is known from its record only, for `redecide`."""
    return Context(prompt, eos, max_new_tokens, RecordedVocabulary(vocabulary), torch.device("cpu"))


@cache
def knob_owners() -> dict[str, type[Stage]]:
    """Which stage each knob belongs to; knob names are unique across stages."""
    return {name: stage for stage in stages.all().values() for name in knobs_of(stage)}


# --- what stages need of a vocabulary --------------------------------------------------------


def token_ids(context: Context, name: str, entry: str | tuple[int, ...]) -> tuple[int, ...]:
    """The ids of one entry of the knob `name`: text is encoded as it stands, ids must be in the vocabulary."""
    ids = context.vocabulary.encode(entry) if isinstance(entry, str) else entry
    if not ids:
        raise BadValue(
            "token_text",
            Text("{name}: {entry} is no token in this model: leave it out.", "{name}：{entry} 在该模型中不对应任何词元：请去掉它。"),
            name=name, entry=repr(entry)[:60],
        )  # fmt: skip
    last = context.vocabulary.size - 1
    beyond = [token for token in ids if not 0 <= token <= last]
    if beyond:
        raise BadValue(
            "token_unknown",
            Text("{name}: this model's token ids are 0 to {last}, got {token}.", "{name}：该模型的词元编号为 0 到 {last}，而给出的是 {token}。"),
            name=name, last=last, token=str(beyond[0])[:30],
        )  # fmt: skip
    return tuple(ids)


def single_tokens(context: Context, name: str, entry: str | tuple[int, ...]) -> tuple[int, ...]:
    """The ids of an entry that speaks of single tokens: text that is one token, or a list of ids, each for itself."""
    ids = token_ids(context, name, entry)
    if isinstance(entry, str) and len(ids) > 1:
        raise BadValue(
            "token_text",
            Text(
                "{name} takes single tokens, but {entry} is {count} tokens in this model: {ids}. Name the ids that you mean.",
                "{name} 只接受单个词元，而 {entry} 在该模型中是 {count} 个词元：{ids}。请直接写出想要的编号。",
            ),
            name=name, entry=repr(entry)[:60], count=len(ids), ids=" ".join(f"#{token}" for token in ids[:8]),
        )  # fmt: skip
    return ids


def end_tokens(context: Context, name: str) -> list[int]:
    """The model's EOS ids, for a stage that is pointless without one."""
    if not context.eos:
        raise BadValue(
            "no_eos",
            Text(
                "{name} raises the end-of-sequence token, but this model has none: switch it off.",
                "{name} 要提升结束词元，但该模型没有结束词元：请将其关闭。",
            ),
            name=name,
        )  # fmt: skip
    return list(token_ids(context, name, context.eos))


# --- processors, in transformers' order ------------------------------------------------------


@stages.register
@dataclass(frozen=True)
class SequenceBias(Stage):
    """Adds a number to the score of the token that would complete a given sequence.

    A sequence of one token is biased always, a longer one when all but its last token were just said.
    Source: transformers' SequenceBiasLogitsProcessor.
    """

    name = "sequence_bias"
    kind = "processor"
    label = Text("sequence bias", "序列偏置")
    summary = Text("Adds a number to the score of the token that would complete a sequence.", "给将要补全某个序列的词元分数加上一个数。")
    acts_on = "history"
    redecide = per_token

    sequence_bias: Biases = knob(
        (), kind="biases", off=(), low=-100.0, high=100.0,
        label=Text("sequence bias", "序列偏置"),
        help=Text(
            "Makes sequences of tokens likelier (above 0) or less likely (below 0); the number is added to the score of the last token.",
            "让某些词元序列更容易（大于 0）或更难（小于 0）出现；这个数加在序列最后一个词元的分数上。",
        ),
        names={"transformers": "sequence_bias"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        biases = {token_ids(context, "sequence_bias", entry): float(bias) for entry, bias in self.sequence_bias}
        return BoundStage(SequenceBiasLogitsProcessor([[list(ids), bias] for ids, bias in biases.items()]) if biases else None)


@stages.register
@dataclass(frozen=True)
class EncoderRepetition(Stage):
    """Favours the tokens of the prompt: their scores are divided (if negative) or multiplied by the penalty.

    Source: transformers' EncoderRepetitionPenaltyLogitsProcessor, which `generate` gives the prompt of a decoder-only model.
    """

    name = "encoder_repetition"
    kind = "processor"
    label = Text("encoder repetition penalty", "编码器重复惩罚")
    summary = Text(
        "Makes the tokens of the prompt likelier (above 1) or less likely (below 1).",
        "让提示词中的词元更容易（大于 1）或更难（小于 1）出现。",
    )
    acts_on = "history"
    redecide = per_token

    encoder_repetition_penalty: float = knob(
        1.0, off=1.0, low=0.01, high=100.0, slider=(0.5, 2.0), step=0.05,
        label=Text("encoder repetition penalty", "编码器重复惩罚"),
        help=Text(
            "Above 1 pulls the output towards words of the prompt, below 1 pushes it away; 1 is off.",
            "大于 1 时输出偏向提示词里的词，小于 1 时远离它们；1 为关闭。",
        ),
        names={"transformers": "encoder_repetition_penalty"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        prompt = torch.tensor([context.prompt], dtype=torch.long, device=context.device)  # [1, T]
        return BoundStage(EncoderRepetitionPenaltyLogitsProcessor(float(self.encoder_repetition_penalty), prompt))


@stages.register
@dataclass(frozen=True)
class Repetition(Stage):
    """Divides positive scores of tokens that were seen before by the penalty and multiplies negative ones by it.

    Source: CTRL (Keskar et al. 2019, arXiv 1909.05858); transformers' RepetitionPenaltyLogitsProcessor, which counts the prompt in.
    """

    name = "repetition"
    kind = "processor"
    label = Text("repetition penalty", "重复惩罚")
    summary = Text(
        "Lowers the score of every token that was seen before, once, however often it was.",
        "降低所有出现过的词元的分数，不论出现多少次只降一次。",
    )
    common = True
    acts_on = "history"
    redecide = per_token

    repetition_penalty: float = knob(
        1.0, off=1.0, low=0.01, high=100.0, slider=(0.8, 2.0), step=0.05,
        label=Text("repetition penalty", "重复惩罚"),
        help=Text(
            "Above 1 holds back tokens that were seen before, below 1 favours them; 1 is off.",
            "大于 1 时抑制出现过的词元，小于 1 时偏向它们；1 为关闭。",
        ),
        names={"transformers": "repetition_penalty", "vllm": "repetition_penalty"},
    )  # fmt: skip
    repetition_scope: str = knob(
        "prompt+output", choices=("prompt+output", "output"),
        label=Text("repetition sees", "重复惩罚范围"),
        help=Text(
            "Whether words of the prompt count as seen, as in transformers and vLLM, or only the output's.",
            "提示词里的词是否算作出现过（transformers 和 vLLM 的做法），还是只看输出。",
        ),
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        ignored = len(context.prompt) if self.repetition_scope == "output" else 0
        return BoundStage(RepetitionPenaltyLogitsProcessor(float(self.repetition_penalty), prompt_ignore_length=ignored))


@stages.register
@dataclass(frozen=True)
class NoRepeatNGram(Stage):
    """Removes every token that would repeat a sequence of n tokens of prompt or output.

    Source: Paulus et al. 2017 (arXiv 1705.04304); transformers' NoRepeatNGramLogitsProcessor.
    """

    name = "no_repeat_ngram"
    kind = "processor"
    label = Text("no-repeat n-gram", "禁止重复 n-gram")
    summary = Text("Removes every token that would repeat a sequence of n tokens.", "移除会让某个 n 词元序列再次出现的词元。")
    common = True
    acts_on = "history"
    redecide = per_token

    no_repeat_ngram_size: int = knob(
        0, off=0, low=0, slider=(0, 8), step=1,
        label=Text("no-repeat n-gram size", "禁止重复的 n-gram 长度"),
        help=Text(
            "No sequence of this many tokens may appear twice, the prompt included; 0 is off.",
            "这么长的词元序列不得出现两次，提示词也算在内；0 为关闭。",
        ),
        names={"transformers": "no_repeat_ngram_size"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        return BoundStage(NoRepeatNGramLogitsProcessor(int(self.no_repeat_ngram_size)) if self.no_repeat_ngram_size else None)


@stages.register
@dataclass(frozen=True)
class BadWords(Stage):
    """Removes the token that would complete a forbidden sequence; EOS can't be forbidden.

    Source: transformers' NoBadWordsLogitsProcessor.
    """

    name = "bad_words"
    kind = "processor"
    label = Text("bad words", "禁用词")
    summary = Text("Removes the token that would complete a forbidden sequence.", "移除会补全禁用序列的词元。")
    acts_on = "history"
    redecide = per_token

    bad_words: TokenSequences = knob(
        (), off=(),
        label=Text("bad words", "禁用词"),
        help=Text(
            'Sequences that may not appear, token for token: "cat" and " cat" are different tokens.',
            "不得出现的序列，按词元逐个匹配：“cat”和“ cat”是不同的词元。",
        ),
        names={"transformers": "bad_words_ids", "vllm": "bad_words"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        words = [list(token_ids(context, "bad_words", entry)) for entry in self.bad_words]
        return BoundStage(NoBadWordsLogitsProcessor(words, list(context.eos) or None) if words else None)


@stages.register
@dataclass(frozen=True)
class MinLength(Stage):
    """Removes EOS while prompt and output together are shorter than the minimum.

    A model without EOS can't end early, so nothing is removed there. Source: transformers' MinLengthLogitsProcessor.
    """

    name = "min_length"
    kind = "processor"
    label = Text("minimum length", "最小长度")
    summary = Text("Removes EOS while prompt and output together are too short.", "提示词与输出合计过短时移除结束词元。")
    acts_on = "history"
    redecide = per_token

    min_length: int = knob(
        0, off=0, low=0, slider=(0, 256), step=1,
        label=Text("min length", "最小长度"),
        help=Text(
            "Prompt and output together have at least this many tokens before EOS; 0 is off.",
            "提示词与输出合计至少这么多词元后才允许结束；0 为关闭。",
        ),
        names={"transformers": "min_length"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        return BoundStage(MinLengthLogitsProcessor(int(self.min_length), list(context.eos), device=context.device) if context.eos else None)


@stages.register
@dataclass(frozen=True)
class MinNewTokens(Stage):
    """Removes EOS while the output is shorter than the minimum.

    A model without EOS can't end early, so nothing is removed there. Source: transformers' MinNewTokensLengthLogitsProcessor.
    """

    name = "min_new_tokens"
    kind = "processor"
    label = Text("minimum new tokens", "最少新词元")
    summary = Text("Removes EOS while the output is too short.", "输出过短时移除结束词元。")
    acts_on = "history"
    redecide = per_token

    min_new_tokens: int = knob(
        0, off=0, low=0, slider=(0, 256), step=1,
        label=Text("min new tokens", "最少新词元"),
        help=Text("The output has at least this many tokens before EOS; 0 is off.", "输出至少这么多词元后才允许结束；0 为关闭。"),
        names={"transformers": "min_new_tokens", "vllm": "min_tokens"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if not context.eos:
            return BoundStage()
        return BoundStage(MinNewTokensLengthLogitsProcessor(len(context.prompt), int(self.min_new_tokens), list(context.eos), device=context.device))


@stages.register
@dataclass(frozen=True)
class ForcedEOS(Stage):
    """Leaves only EOS for the last token that the lane may write.

    Source: transformers' ForcedEOSTokenLogitsProcessor, whose `max_length` counts prompt and output.
    """

    name = "forced_eos"
    kind = "processor"
    label = Text("forced EOS", "强制结束")
    summary = Text("Leaves only EOS for the last token that the lane may write.", "通道的最后一个词元只允许是结束词元。")
    acts_on = "history"
    redecide = per_token

    forced_eos: bool = knob(
        False, off=False,
        label=Text("forced EOS", "强制结束"),
        help=Text("The last token that the length limit allows must be EOS.", "长度上限允许的最后一个词元必须是结束词元。"),
        names={"transformers": "forced_eos_token_id"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if not self.forced_eos:
            return BoundStage()
        longest = len(context.prompt) + context.max_new_tokens
        return BoundStage(ForcedEOSTokenLogitsProcessor(longest, end_tokens(context, "forced_eos"), device=context.device))


@stages.register
@dataclass(frozen=True)
class ExponentialDecayLength(Stage):
    """Raises EOS more with every token after a start: its score gains |score| · (factor^steps − 1).

    Source: transformers' ExponentialDecayLengthPenalty.
    """

    name = "exponential_decay_length"
    kind = "processor"
    label = Text("exponential length decay", "长度指数衰减")
    summary = Text("Raises the score of EOS more and more after a given number of tokens.", "超过给定词元数后，逐步提高结束词元的分数。")
    acts_on = "history"

    decay_start: int = knob(
        0, low=0, slider=(0, 256), step=1,
        label=Text("decay starts at", "衰减起点"),
        help=Text("How many output tokens are free before EOS begins to rise.", "结束词元开始升高之前可自由生成的词元数。"),
        names={"transformers": "exponential_decay_length_penalty[0]"},
    )  # fmt: skip
    decay_factor: float = knob(
        1.0, off=1.0, low=0.0, low_open=True, high=10.0, slider=(1.0, 1.5), step=0.01,
        label=Text("decay factor", "衰减因子"),
        help=Text(
            "By how much EOS rises with every further token: above 1 ends sooner, below 1 later; 1 is off.",
            "之后每个词元让结束词元升高多少：大于 1 更早结束，小于 1 更晚；1 为关闭。",
        ),
        names={"transformers": "exponential_decay_length_penalty[1]"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        factor, free = float(self.decay_factor), len(context.prompt) + int(self.decay_start)
        decay = ExponentialDecayLengthPenalty((int(self.decay_start), factor), end_tokens(context, "decay_factor"), len(context.prompt))
        # A factor of 1e30 decides for EOS already; a few steps more and float32 overflows into NaN.
        longest = free + int(30 / math.log10(factor)) if factor > 1 else None
        return BoundStage(lambda input_ids, scores: decay(input_ids[:, :longest], scores))


@stages.register
@dataclass(frozen=True)
class Suppress(Stage):
    """Removes some tokens at every step. Source: transformers' SuppressTokensLogitsProcessor."""

    name = "suppress"
    kind = "processor"
    label = Text("suppress tokens", "屏蔽词元")
    summary = Text("Removes some tokens at every step.", "每一步都移除某些词元。")
    redecide = per_token

    suppress_tokens: TokenSequences = knob(
        (), off=(),
        label=Text("suppress tokens", "屏蔽词元"),
        help=Text("Single tokens that are never chosen; of a list of ids, each.", "永远不会被选中的单个词元；给出编号列表时逐个屏蔽。"),
        names={"transformers": "suppress_tokens"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        tokens = [token for entry in self.suppress_tokens for token in single_tokens(context, "suppress_tokens", entry)]
        return BoundStage(SuppressTokensLogitsProcessor(tokens, device=context.device) if tokens else None)


@stages.register
@dataclass(frozen=True)
class BeginSuppress(Stage):
    """Removes some tokens at the first step only. Source: transformers' SuppressTokensAtBeginLogitsProcessor."""

    name = "begin_suppress"
    kind = "processor"
    label = Text("begin-suppress tokens", "开头屏蔽词元")
    summary = Text("Removes some tokens at the first step only.", "只在第一步移除某些词元。")
    acts_on = "history"
    redecide = per_token

    begin_suppress_tokens: TokenSequences = knob(
        (), off=(),
        label=Text("begin-suppress tokens", "开头屏蔽词元"),
        help=Text("Single tokens that the output can't begin with; of a list of ids, each.", "不能作为输出开头的单个词元；给出编号列表时逐个屏蔽。"),
        names={"transformers": "begin_suppress_tokens"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        tokens = [token for entry in self.begin_suppress_tokens for token in single_tokens(context, "begin_suppress_tokens", entry)]
        return BoundStage(SuppressTokensAtBeginLogitsProcessor(tokens, len(context.prompt), device=context.device) if tokens else None)


# --- processors of our own, as OpenAI and vLLM define them -----------------------------------


@stages.register
@dataclass(frozen=True)
class Presence(Stage):
    """Takes the penalty off the score of every token that is in the output, once, however often it is there.

    Source: OpenAI's API reference, vLLM's `apply_penalties`: the prompt doesn't count.
    """

    name = "presence"
    kind = "processor"
    label = Text("presence penalty", "存在惩罚")
    summary = Text("Lowers every token that is in the output by the same amount.", "对输出中出现过的词元统一降低同样的分数。")
    acts_on = "history"
    redecide = per_token

    presence_penalty: float = knob(
        0.0, off=0.0, low=-2.0, high=2.0, slider=(-2.0, 2.0), step=0.1,
        label=Text("presence penalty", "存在惩罚"),
        help=Text(
            "Subtracted from the score of each token that is in the output, the prompt left out; below 0 favours them, 0 is off.",
            "从输出中出现过的词元（不含提示词）的分数里减去；小于 0 时偏向它们，0 为关闭。",
        ),
        names={"vllm": "presence_penalty", "openai": "presence_penalty"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        first, penalty = len(context.prompt), float(self.presence_penalty)

        def process(input_ids: Tensor, scores: Tensor) -> Tensor:
            output = input_ids[:, first:]  # [B, n]
            return scores.scatter(1, output, scores.gather(1, output) - penalty)

        return BoundStage(process)


@stages.register
@dataclass(frozen=True)
class Frequency(Stage):
    """Takes the penalty off a token's score as many times as the token is in the output.

    Source: OpenAI's API reference, vLLM's `apply_penalties`: the prompt doesn't count.
    """

    name = "frequency"
    kind = "processor"
    label = Text("frequency penalty", "频率惩罚")
    summary = Text("Lowers a token by an amount for every time that it is in the output.", "词元在输出中每出现一次，就再降低一次分数。")
    acts_on = "history"
    redecide = per_token

    frequency_penalty: float = knob(
        0.0, off=0.0, low=-2.0, high=2.0, slider=(-2.0, 2.0), step=0.1,
        label=Text("frequency penalty", "频率惩罚"),
        help=Text(
            "Subtracted from a token's score for every time that it is in the output, the prompt left out; below 0 favours repeats, 0 is off.",
            "词元在输出中（不含提示词）每出现一次就从其分数里减去一次；小于 0 时偏向重复，0 为关闭。",
        ),
        names={"vllm": "frequency_penalty", "openai": "frequency_penalty"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        first, penalty = len(context.prompt), float(self.frequency_penalty)

        def process(input_ids: Tensor, scores: Tensor) -> Tensor:
            output = input_ids[:, first:]  # [B, n]
            return scores.scatter_add(1, output, torch.full_like(output, -penalty, dtype=scores.dtype))

        return BoundStage(process)


@stages.register
@dataclass(frozen=True)
class LogitBias(Stage):
    """Adds a number to the scores of some tokens. Source: OpenAI's API reference, vLLM's `logit_bias`."""

    name = "logit_bias"
    kind = "processor"
    label = Text("logit bias", "logit 偏置")
    summary = Text("Adds a number to the scores of some tokens.", "给某些词元的分数加上一个数。")
    redecide = per_token

    logit_bias: Biases = knob(
        (), kind="biases", off=(), low=-100.0, high=100.0,
        label=Text("logit bias", "logit 偏置"),
        help=Text(
            "Makes single tokens likelier (above 0) or less likely (below 0), of a list of ids each; -100 all but bans, 100 all but forces.",
            "让单个词元更容易（大于 0）或更难（小于 0）出现，给出编号列表时逐个生效；-100 近乎禁止，100 近乎强制。",
        ),
        names={"vllm": "logit_bias", "openai": "logit_bias"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        biases = {token: float(bias) for entry, bias in self.logit_bias for token in single_tokens(context, "logit_bias", entry)}
        tokens = torch.tensor(list(biases), dtype=torch.long, device=context.device)  # [n]
        values = torch.tensor(list(biases.values()), device=context.device)  # [n]
        return BoundStage(lambda input_ids, scores: scores.index_add(1, tokens, values.to(scores.dtype).expand(len(scores), -1)))


# --- warpers, in transformers' order ---------------------------------------------------------

#: From 0 to below this a temperature is greedy: float32 can't divide by it.
COLD = 1e-5


def is_cold(value: Any) -> bool:
    """Whether a temperature, as somebody gave it, means greedy; a negative one means nothing."""
    try:
        return value is not None and not isinstance(value, bool) and 0 <= float(value) < COLD
    except (TypeError, ValueError, OverflowError):
        return False


class NeedsDistribution(BoundStage):
    """A wrapped warper that builds a `torch.distributions.Categorical`, which refuses scores that are no distribution.

    Such scores (a NaN, or no token alive) pass as they are: the task says which stage they come from.
    """

    def apply(self, input_ids: Tensor, scores: Tensor, states: Sequence[Any]) -> Tensor:
        try:
            return super().apply(input_ids, scores, states)
        except ValueError:
            return scores


@stages.register
@dataclass(frozen=True)
class Temperature(Stage):
    """Divides every score by the temperature: above 1 flattens the distribution, below 1 sharpens it.

    Source: transformers' TemperatureLogitsWarper; below 1e-5 its limit, which leaves the most likely token (and its equals).
    """

    name = "temperature"
    kind = "warper"
    label = Text("temperature", "温度")
    summary = Text(
        "Divides every score: above 1 flattens the distribution, below 1 sharpens it.",
        "除以所有分数：大于 1 使分布更平，小于 1 使分布更尖。",
    )
    common = True
    keeps_order = True

    temperature: float = knob(
        1.0, off=1.0, low=0.0, low_open=True, high=1000.0, slider=(0.1, 2.0), step=0.05,
        label=Text("temperature", "温度"),
        help=Text(
            "Below 1 gives likely tokens more of the probability, above 1 less; 1 is off, and near 0 only the likeliest is left.",
            "小于 1 时概率更集中于高分词元，大于 1 时更分散；1 为关闭，接近 0 时只剩最可能的词元。",
        ),
        names={"transformers": "temperature", "vllm": "temperature", "openai": "temperature"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.temperature < COLD:
            return BoundStage(lambda input_ids, scores: scores.masked_fill(scores < scores.amax(-1, keepdim=True), -math.inf))
        return BoundStage(TemperatureLogitsWarper(float(self.temperature)))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        return known.likeliest() if self.temperature < COLD else known.scaled(self.temperature)


@stages.register
@dataclass(frozen=True)
class TopH(Stage):
    """Keeps the likeliest tokens while their summed entropy stays within a share of the whole entropy.

    Of at most 100 tokens. Source: Potraghloo et al. 2025 (arXiv 2509.02510); transformers' TopHLogitsWarper.
    """

    name = "top_h"
    kind = "warper"
    label = Text("top-h", "top-h")
    summary = Text("Keeps the likeliest tokens up to a share of the distribution's entropy.", "按概率从高到低保留词元，直到达到分布熵的某个比例。")
    acts_on = "probabilities"
    keeps_order = True

    top_h: float = knob(
        0.0, off=0.0, low=0.0, high=1.0, slider=(0.0, 1.0), step=0.05,
        label=Text("top-h", "top-h"),
        help=Text(
            "The share of the entropy that the kept tokens may have, at most 100 tokens; 0 is off.",
            "保留的词元最多占总熵的比例，且不超过 100 个；0 为关闭。",
        ),
        names={"transformers": "top_h"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        return NeedsDistribution(TopHLogitsWarper(float(self.top_h)) if self.top_h else None)


@stages.register
@dataclass(frozen=True)
class TopK(Stage):
    """Keeps the k highest scores, and whatever equals the k-th.

    Source: Fan et al. 2018 (arXiv 1805.04833); transformers' TopKLogitsWarper.
    """

    name = "top_k"
    kind = "warper"
    label = Text("top-k", "top-k")
    summary = Text("Keeps the k highest scores, and whatever equals the k-th.", "保留分数最高的 k 个词元，以及与第 k 个并列的词元。")
    common = True
    keeps_order = True

    top_k: int = knob(
        0, off=0, low=-1, slider=(0, 200), step=1,
        label=Text("top-k", "top-k"),
        help=Text(
            "How many of the likeliest tokens stay; tokens equal to the last one stay too; 0 or -1 is off.",
            "保留最可能的多少个词元；与最后一个并列的也保留；0 或 -1 为关闭。",
        ),
        names={"transformers": "top_k", "vllm": "top_k"},
    )  # fmt: skip

    @property
    def is_off(self) -> bool:
        return self.top_k in (0, -1)

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        return BoundStage(TopKLogitsWarper(int(self.top_k), min_tokens_to_keep=context.min_tokens_to_keep))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        return known if self.is_off else known.top_k(self.top_k)


@stages.register
@dataclass(frozen=True)
class TopP(Stage):
    """Keeps the likeliest tokens until together they have probability p, the one that reaches p included.

    Source: Holtzman et al. 2019 (arXiv 1904.09751); transformers' TopPLogitsWarper.
    """

    name = "top_p"
    kind = "warper"
    label = Text("top-p", "top-p")
    summary = Text("Keeps the likeliest tokens until together they have probability p.", "按概率从高到低保留词元，直到累计概率达到 p。")
    common = True
    acts_on = "probabilities"
    keeps_order = True

    top_p: float = knob(
        1.0, off=1.0, low=0.0, low_open=True, high=1.0, slider=(0.05, 1.0), step=0.01,
        label=Text("top-p", "top-p"),
        help=Text(
            "The probability that the kept tokens have together, at least; the token that reaches it stays; 1 is off.",
            "保留的词元合计至少拥有的概率；恰好达到的那个词元也保留；1 为关闭。",
        ),
        names={"transformers": "top_p", "vllm": "top_p", "openai": "top_p"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        return BoundStage(TopPLogitsWarper(float(self.top_p), min_tokens_to_keep=context.min_tokens_to_keep))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        return known if self.is_off else known.top_p(self.top_p)


@stages.register
@dataclass(frozen=True)
class MinP(Stage):
    """Removes tokens less likely than a share of the likeliest token's probability.

    Source: Nguyen et al. 2024 (arXiv 2407.01082); transformers' MinPLogitsWarper.
    """

    name = "min_p"
    kind = "warper"
    label = Text("min-p", "min-p")
    summary = Text("Removes tokens less likely than a share of the likeliest one.", "移除概率低于最高概率某个比例的词元。")
    common = True
    acts_on = "probabilities"
    keeps_order = True

    min_p: float = knob(
        0.0, off=0.0, low=0.0, high=1.0, slider=(0.0, 1.0), step=0.01,
        label=Text("min-p", "min-p"),
        help=Text(
            "The least probability that a token may have, as a share of the likeliest token's; 0 is off.",
            "词元概率的下限，以最高概率的比例表示；0 为关闭。",
        ),
        names={"transformers": "min_p", "vllm": "min_p"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        return BoundStage(MinPLogitsWarper(float(self.min_p), min_tokens_to_keep=context.min_tokens_to_keep))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        if self.is_off:
            return known
        share = math.log(self.min_p)
        return known.above(known.highest[0] + share, known.highest[1] + share)


@stages.register
@dataclass(frozen=True)
class Typical(Stage):
    """Keeps the tokens whose surprise is nearest to the entropy until together they have a given probability.

    The likeliest token may be removed. Source: Meister et al. 2022 (arXiv 2202.00666); transformers' TypicalLogitsWarper.
    """

    name = "typical"
    kind = "warper"
    label = Text("typical", "典型采样")
    summary = Text("Keeps the tokens whose surprise is nearest to the entropy.", "保留惊讶度最接近熵的词元。")
    acts_on = "probabilities"

    typical_p: float = knob(
        1.0, off=1.0, low=0.0, low_open=True, high=1.0, slider=(0.05, 1.0), step=0.01,
        label=Text("typical p", "典型概率"),
        help=Text(
            "The probability that the kept tokens have together; the likeliest token may go; 1 is off.",
            "保留的词元合计的概率；最可能的词元也可能被移除；1 为关闭。",
        ),
        names={"transformers": "typical_p"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        return BoundStage(TypicalLogitsWarper(float(self.typical_p), min_tokens_to_keep=context.min_tokens_to_keep))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        return known if self.is_off else known.typical(self.typical_p)


@stages.register
@dataclass(frozen=True)
class Epsilon(Stage):
    """Removes tokens below a fixed probability.

    Source: Hewitt et al. 2022 (arXiv 2210.15191); transformers' EpsilonLogitsWarper.
    """

    name = "epsilon"
    kind = "warper"
    label = Text("epsilon", "epsilon 截断")
    summary = Text("Removes tokens below a fixed probability.", "移除概率低于固定值的词元。")
    acts_on = "probabilities"
    keeps_order = True

    epsilon_cutoff: float = knob(
        0.0, off=0.0, low=0.0, high=1.0, high_open=True, slider=(0.0, 0.1), step=0.001,
        label=Text("epsilon cutoff", "epsilon 阈值"),
        help=Text("The least probability that a token may have; 0 is off.", "词元概率的下限；0 为关闭。"),
        names={"transformers": "epsilon_cutoff"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        return BoundStage(EpsilonLogitsWarper(float(self.epsilon_cutoff), min_tokens_to_keep=context.min_tokens_to_keep))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        if self.is_off:
            return known
        least = math.log(self.epsilon_cutoff)
        return known.above(known.log_normaliser[0] + least, known.log_normaliser[1] + least)


@stages.register
@dataclass(frozen=True)
class Eta(Stage):
    """Removes tokens below a probability that falls with the entropy: min(ε, √ε · e^−H).

    Source: Hewitt et al. 2022 (arXiv 2210.15191); transformers' EtaLogitsWarper.
    """

    name = "eta"
    kind = "warper"
    label = Text("eta", "eta 截断")
    summary = Text("Removes tokens below a probability that falls as the entropy grows.", "移除低于阈值的词元，熵越大阈值越低。")
    acts_on = "probabilities"
    keeps_order = True

    eta_cutoff: float = knob(
        0.0, off=0.0, low=0.0, high=1.0, high_open=True, slider=(0.0, 0.1), step=0.001,
        label=Text("eta cutoff", "eta 阈值"),
        help=Text(
            "ε of the least probability min(ε, √ε · e^-entropy) that a token may have; 0 is off.",
            "词元概率下限 min(ε, √ε · e^-熵) 中的 ε；0 为关闭。",
        ),
        names={"transformers": "eta_cutoff"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        return NeedsDistribution(EtaLogitsWarper(float(self.eta_cutoff), min_tokens_to_keep=context.min_tokens_to_keep, device=context.device))

    def redecide(self, known: Known, bound: BoundStage, history: NDArray[np.int64], vocabulary: int) -> Known:
        if self.is_off:
            return known
        epsilon, (entropy, most_entropy) = math.log(self.eta_cutoff), known.entropy_bounds
        low, high = (min(epsilon, epsilon / 2 - nats) for nats in (most_entropy, entropy))
        return known.above(known.log_normaliser[0] + low, known.log_normaliser[1] + high)


@stages.register
@dataclass(frozen=True)
class Mirostat(Stage):
    """Keeps tokens whose surprise is at most mu, and moves mu so that the mean surprise becomes tau.

    Source: Basu et al. 2020 (arXiv 2007.14966), version 2 as in llama.cpp. Surprise is -log2 of a probability, in bits.
    """

    name = "mirostat"
    kind = "warper"
    label = Text("mirostat v2", "Mirostat v2")
    summary = Text(
        "Removes tokens that would surprise more than mu, and steers mu towards a target surprise.",
        "移除惊讶度超过 mu 的词元，并调节 mu 使平均惊讶度趋近目标。",
    )
    acts_on = "probabilities"
    keeps_order = True

    mirostat_tau: float = knob(
        0.0, off=0.0, low=0.0, high=20.0, slider=(0.0, 10.0), step=0.1,
        label=Text("mirostat tau", "Mirostat tau"),
        help=Text("The surprise per token to aim at, in bits; 0 is off.", "每个词元的目标惊讶度，单位为比特；0 为关闭。"),
        names={"llama.cpp": "mirostat_tau"},
    )  # fmt: skip
    mirostat_eta: float = knob(
        0.1, low=0.0, high=1.0, slider=(0.0, 1.0), step=0.05,
        label=Text("mirostat eta", "Mirostat eta"),
        help=Text("How fast mu follows: the share of each step's error that it takes on.", "mu 调整的快慢：每一步误差中被采纳的比例。"),
        names={"llama.cpp": "mirostat_eta"},
    )  # fmt: skip

    def bind(self, context: Context) -> BoundStage:
        if self.is_off:
            return BoundStage()
        return BoundMirostat(float(self.mirostat_tau), float(self.mirostat_eta), context.min_tokens_to_keep)


class BoundMirostat(BoundStage):
    """Mirostat on one lane; the state is mu in bits, a float per row."""

    def __init__(self, tau: float, eta: float, min_tokens_to_keep: int) -> None:
        super().__init__()
        self.tau = tau
        self.eta = eta
        self.min_tokens_to_keep = min_tokens_to_keep
        self.start = 2 * tau

    def apply(self, input_ids: Tensor, scores: Tensor, states: Sequence[float]) -> Tensor:
        mu = torch.tensor(states, dtype=scores.dtype).to(scores.device, non_blocking=True)  # [B]
        surprise = scores.log_softmax(-1) / -math.log(2)  # [B, V] bits
        kept = surprise <= mu[:, None]
        likeliest = scores.topk(min(self.min_tokens_to_keep, scores.shape[-1])).indices
        return scores.masked_fill(~kept.scatter(1, likeliest, True), -math.inf)

    def advance(self, state: float, token: int, log_probability: float) -> float:
        if log_probability == -math.inf:  # forced, though removed: the surprise that was kept says nothing of it, and mu stays
            return state
        observed = -log_probability / math.log(2)
        return state - self.eta * (observed - self.tau)

    def numbers(self, state: float) -> tuple[tuple[str, float], ...]:
        return (("mu", state),)


# --- orders ----------------------------------------------------------------------------------

TRANSFORMERS_ORDER = tuple(stages.all())
"""transformers' order (`_get_logits_processor`, 5.24) is the order in which stages are declared: our own processors stand where it
puts custom ones, mirostat last."""

_VLLM_KNOWS = (
    "bad_words", "min_length", "min_new_tokens", "logit_bias", "repetition", "frequency", "presence", "temperature", "min_p", "top_k", "top_p",
)  # fmt: skip
VLLM_ORDER = (*_VLLM_KNOWS, *(name for name in TRANSFORMERS_ORDER if name not in _VLLM_KNOWS))
"""vLLM's order (V1 sampler, 0.32); stages that it doesn't know come after its top-p."""

ORDERS = {"transformers": TRANSFORMERS_ORDER, "vllm": VLLM_ORDER}
