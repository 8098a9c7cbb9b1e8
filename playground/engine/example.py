"""A small fixed step on which the page "Parameters" draws what a knob does: twelve words, their scores, and a history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from playground.engine.knobs import checked
from playground.engine.stages import Context, RecordedVocabulary, Stage

#: The words are the reader's; ids are their places here, by probability descending.
WORDS = (" sat", " slept", " purred", "EOS", " ran", " and", " the", " on", " mat", " cat", " dog", " jazz")
EOS = 3
PROBABILITIES = (0.30, 0.19, 0.14, 0.09, 0.08, 0.06, 0.05, 0.035, 0.025, 0.015, 0.01, 0.005)
#: Logits are log-probabilities plus any number; this one makes some of them positive, as a model's are.
SHIFT = 3.0

PROMPT = (6, 9, 0, 7, 6, 8)  # the cat sat on the mat
OUTPUT = (5, 6, 9, 1, 5, 6, 9)  # and the cat slept and the cat
MAX_NEW_TOKENS = len(OUTPUT) + 1


@dataclass(frozen=True)
class Drawing:
    """The distribution that a stage leaves: a probability per word, the number alive, the entropy in nats."""

    probabilities: tuple[float, ...]
    alive: int
    entropy: float


def scores() -> Tensor:
    """The example's logits, `[1, V]`."""
    return torch.tensor([PROBABILITIES]).log() + SHIFT


def words(ids: tuple[int, ...]) -> str:
    """Ids of the example as its words."""
    return "".join(WORDS[token] for token in ids)


def drawing(after: Tensor) -> Drawing:
    """What scores `[1, V]` look like as a distribution."""
    probabilities = after[0].double().softmax(-1)
    entropy = torch.special.entr(probabilities).sum()
    return Drawing(tuple(probabilities.tolist()), int((after[0] > -math.inf).sum()), float(entropy))


def drawn(stage: type[Stage], knobs: Mapping[str, Any], at_start: bool = False) -> Drawing:
    """What the stage itself makes of the example under these knobs; its state has followed the output so far."""
    output = () if at_start else OUTPUT
    value = checked(stage, dict(knobs))
    bound = value.bind(Context(PROMPT, (EOS,), MAX_NEW_TOKENS, RecordedVocabulary(len(WORDS)), torch.device("cpu")))
    state = bound.start
    for token in output:
        state = bound.advance(state, token, math.log(PROBABILITIES[token]))
    return drawing(bound.apply(torch.tensor([PROMPT + output]), scores(), [state]))
