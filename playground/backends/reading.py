"""How a model can be read: tried out on a few tokens when it is loaded, because nothing else tells it of every architecture.

Not every model fills the KV cache that it is given: some keep a state of another kind, some keep nothing, some take the cache and
start over with every piece of the prompt, some keep a state in their modules, where lanes and beams would share it. None of them says
so; the next token's scores do.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig

from playground.backends.language_model import TransformersModel, WholeTextModel
from playground.errors import ModelUnavailable, Text

#: In pieces over its cache; over its cache, but the prompt at once and then token by token; or the whole text with every forward.
Reading = Literal["in_pieces", "prompt_at_once", "whole_text"]

#: The ends of the pieces in which the trial is read: a prompt, single tokens, a piece behind them, and a single one again.
PIECES = (5, 6, 7, 12, 13)
AT_ONCE = (9, 10, 11, 12, 13)

#: How far scores may be apart, as a share of their spread: rounding is far below it, a forgotten prompt far above.
SAME, SAME_IN_HALF_PRECISION = 1e-3, 0.3


def reading_of(weights: Any, name: str) -> Reading:
    """The fastest way to read a model that gives the scores of reading the whole text; raises `ModelUnavailable` where there is none."""
    trial = _trial(weights)
    try:
        with torch.inference_mode():
            whole = _scores(WholeTextModel(weights), trial, (len(trial),))  # [T, V]
            beginning = _scores(WholeTextModel(weights), trial, (len(trial) // 2,))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # an architecture can need anything beside the text: languages, images, a length of its own
        raise ModelUnavailable(
            "model_unreadable",
            Text("{model} ({kind}) can't continue a text here: {reason}", "{model}（{kind}）无法在此续写文本：{reason}"),
            model=name, kind=weights.config.model_type, reason=(str(error).strip() or type(error).__name__).splitlines()[0][:160],
        ) from error  # fmt: skip
    same = SAME if weights.dtype == torch.float32 else SAME_IN_HALF_PRECISION
    if not bool(whole.isfinite().all()):
        return "in_pieces"  # nothing to compare: the first step will say that the scores are no numbers
    if not _alike(beginning, whole[: len(beginning)], same):
        raise ModelUnavailable(
            "model_not_causal",
            Text(
                "{model} is not a decoder-only language model ({kind}): what comes later in a text changes its scores for what came before.",
                "{model} 不是仅解码器的语言模型（{kind}）：后文会改变它对前文的分数。",
            ),
            model=name, kind=weights.config.model_type,
        )  # fmt: skip
    if not _as_generate(weights, trial, 1, same):
        raise _unlike_generate(weights, name)
    ways: tuple[tuple[Reading, tuple[int, ...]], ...] = (("in_pieces", PIECES), ("prompt_at_once", AT_ONCE))
    reading = next((reading for reading, ends in ways if _holds(weights, trial, ends, whole, same)), None)
    if reading is None and not _as_generate(weights, trial, 4, same):  # what generate keeps between forwards is not what the text says
        raise _unlike_generate(weights, name)
    return reading or "whole_text"


def _unlike_generate(weights: Any, name: str) -> ModelUnavailable:
    return ModelUnavailable(
        "model_unlike_generate",
        Text(
            "{model} ({kind}) can't be run here: transformers' own generate gets other scores than the text alone gives.",
            "{model}（{kind}）无法在此运行：transformers 的 generate 得到的分数与仅凭文本得到的不同。",
        ),
        model=name, kind=weights.config.model_type,
    )  # fmt: skip


def _trial(weights: Any) -> Tensor:
    """Tokens from all over the vocabulary, those with a meaning of their own left out; `[T]`."""
    config = weights.config.get_text_config(decoder=True)
    named = (getattr(config, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad", "sep", "cls", "mask"))
    special = {token for ids in named if ids is not None for token in (ids if isinstance(ids, (list, tuple)) else (ids,))}
    size = int(weights.get_output_embeddings().weight.shape[0])
    ordinary = [token for token in range(min(size, 8 * PIECES[-1])) if token not in special] or [0]
    length = min(PIECES[-1], (getattr(config, "max_position_embeddings", None) or PIECES[-1]) - 1)
    ids = [ordinary[(7 * place + 3) % len(ordinary)] for place in range(max(length, 1))]
    return torch.tensor(ids, device=weights.get_input_embeddings().weight.device)


def _scores(model: TransformersModel | WholeTextModel, trial: Tensor, ends: tuple[int, ...]) -> Tensor:
    """The scores behind every token, `[T, V]`, read in pieces that end where `ends` say."""
    pieces, begun = [], 0
    for end in ends:
        logits = model.forward(trial[None, begun:end], end - begun)
        assert isinstance(logits, Tensor)
        pieces.append(logits[0])
        begun = end
    return torch.cat(pieces) if pieces else trial.new_empty(0, 0)


def _holds(weights: Any, trial: Tensor, ends: tuple[int, ...], whole: Tensor, same: float) -> bool:
    """Whether the cache holds as many tokens as were read in such pieces, all that the scores depend on, and lets its rows be chosen."""
    before, last = len(trial) - 1, trial[None, -1:]
    try:
        with torch.inference_mode():
            model = TransformersModel(weights)
            read = _scores(model, trial, (*(end for end in ends if end < before), before) if before else ())
            if model.length != before or (before and not model.cache_bytes):
                return False
            # What another lane reads meanwhile, or another beam, must change nothing: some models keep their state beside the cache.
            model.fork().forward(trial[None, :1])
            beams = model.fork()
            beams.select_rows([0, 0])
            twice = beams.forward(torch.cat([last, last]))
            scores = torch.cat([*read, *model.forward(last)[0], *twice[:, -1]]).view(-1, whole.shape[-1])
            return _alike(scores, torch.cat([whole, whole[-1:], whole[-1:]]), same)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # a model may refuse the cache in any way; the whole text is the other one
        return False


def _alike(ours: Tensor, theirs: Tensor, same: float) -> bool:
    """Whether two sets of scores `[..., V]` are the same up to rounding: apart from a constant, which no choice depends on."""
    ours, theirs = (scores - scores.mean(-1, keepdim=True) for scores in (ours, theirs))
    apart, spread = (ours - theirs).square().mean(-1).sqrt(), theirs.square().mean(-1).sqrt()
    return bool((apart <= same * spread + 1e-6).all())


def _as_generate(weights: Any, trial: Tensor, tokens: int, same: float) -> bool:
    """Whether `generate` gets the scores of the whole text for the next few tokens; more than one are written over its own cache."""
    asked = GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, num_beams=1, use_cache=tokens > 1, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    try:
        with torch.inference_mode():
            answer = weights.generate(trial[None], attention_mask=torch.ones_like(trial)[None], generation_config=asked)
            theirs = torch.cat(answer.logits).float()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # then no text of it can differ from ours
        return True
    with torch.inference_mode():
        ours = _scores(WholeTextModel(weights), answer.sequences[0, :-1], (len(answer.sequences[0]) - 1,))
    return _alike(theirs, ours[-len(theirs) :], same)
