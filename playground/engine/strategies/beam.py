"""Beam search: several beginnings live side by side, and what counts is the score of a whole text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from playground.engine.hypotheses import Ended, Path, Pool
from playground.engine.knobs import knob
from playground.engine.record import Scale
from playground.engine.stages import BoundStage
from playground.engine.strategies import Steps, Strategy, strategies
from playground.engine.task import Choice, Row, Scored, Task, one_thread
from playground.errors import BadValue, Text
from playground.trace import BeamCandidate, BeamsAdvanced, BeamsRanked, Hypothesis, TokenChosen

#: What diverse beam search takes off the scores stands behind this processor, as in transformers 4.
BEFORE_DIVERSITY = "sequence_bias"
DIVERSITY = "diversity"

Ending = Literal["early_stop", "no_better", "length", "context"]


@dataclass(frozen=True)
class _Continuation:
    """One way to go on from a living beam: a token more for row `b` of `scored`; `index` is its place among the step's candidates."""

    index: int
    slot: int
    parent: Path
    scored: Scored
    b: int
    row: Row
    choice: Choice
    log_probability: float
    score: float
    penalty: float

    @property
    def ended(self) -> Any:
        """By which rule it ended, if it did."""
        return self.row.stopped.detail if self.row.stopped else None

    def path(self, task: Task, viewed: bool = False, seat: int = 0) -> Path:
        """The parent's path with this token at its end; the distribution that it comes from is recorded if it is `viewed`."""
        choice = task.take(self.scored, self.choice.token, self.b) if viewed else self.choice
        told = (*self.parent.told, task.told(self.parent.row, self.row, choice))
        return Path(self.row, self.score, (*self.parent.log_probabilities, self.log_probability), told, self.parent.group, seat)


@strategies.register
@dataclass(frozen=True)
class BeamSearch(Strategy):
    """Keep the `num_beams` beginnings with the highest sum of log-probabilities, and return the finished text that counts most.

    Scores, candidates, ends and stopping are transformers' (5.24, `_beam_search`): log-softmax of the logits, then the processors,
    not renormalised, plus the beam's score so far; of all beams' continuations the best max(2, 1 + number of EOS ids) · num_beams are
    looked at; an end counts only among the best `num_beams`. A forced beginning counts as prompt. One beam is greedy decoding.
    Diverse beam search (Vijayakumar et al. 2016, arXiv 1610.02424): groups choose in turn, and a token loses `diversity_penalty` for
    every beam of an earlier group that took it at this step. Beam sampling draws the candidates without replacement instead, from the
    softmax of all scores: by adding Gumbel noise and taking the highest (Kool et al. 2019, arXiv 1903.06059).
    """

    name = "beam"
    label = Text("beam search", "束搜索")
    summary = Text(
        "Keeps several beginnings alive and returns the finished text with the best score as a whole.",
        "同时保留多个开头，返回整体得分最高的完整文本。",
    )
    emits = frozenset({TokenChosen, BeamsAdvanced, BeamsRanked})
    when_cold = "beam"
    loop = (
        ("forward", "logits = model(tokens, cache)                 # one row per beam"),
        ("processors", "scores = processors(histories, log_softmax(logits))"),
        ("select", "candidates = top_k(beam_scores + scores, k)"),
        ("select", "living, finished = the best that go on, the best that end"),
        ("cache", "cache.select_rows(parents of living)"),
    )

    num_beams: int = knob(
        4, low=1, high=16, slider=(1, 8), step=1,
        label=Text("beams", "束数"),
        help=Text(
            "How many beginnings are kept alive at every step; the KV cache holds a row for each. 1 is greedy decoding.",
            "每一步保留多少个开头；KV 缓存为每个开头保存一行。1 即贪心解码。",
        ),
        names={"transformers": "num_beams", "vllm": "beam_width"},
    )  # fmt: skip
    length_penalty: float = knob(
        1.0, low=-10.0, high=10.0, slider=(-2.0, 3.0), step=0.1,
        label=Text("length penalty", "长度惩罚"),
        help=Text(
            "A finished text counts its sum of log-probabilities divided by its length to this power: above 0 favours long texts, "
            "below 0 short ones.",
            "完成的文本按“对数概率之和 ÷ 长度的该次方”计分：大于 0 偏向长文本，小于 0 偏向短文本。",
        ),
        names={"transformers": "length_penalty", "vllm": "length_penalty"},
    )  # fmt: skip
    early_stopping: str = knob(
        "false", choices=("false", "true", "never"),
        label=Text("early stopping", "提前停止"),
        help=Text(
            "When as many texts are finished as there are beams: stop at once (true), when no beam looks better at its present length (false), "
            "or only when none could become better at any length (never).",
            "完成的文本数达到束数之后：立即停止（true）；按当前长度看没有更好的束时停止（false）；只有任何长度都不可能更好时才停止（never）。",
        ),
        names={"transformers": "early_stopping"},
    )  # fmt: skip
    num_return_sequences: int = knob(
        1, low=1, high=16, slider=(1, 8), step=1,
        label=Text("returned texts", "返回文本数"),
        help=Text(
            "How many of the finished texts are the answer, best first; at most as many as there are beams.",
            "返回多少个完成的文本（从最好的开始）；不超过束数。",
        ),
        names={"transformers": "num_return_sequences", "vllm": "n"},
    )  # fmt: skip
    num_beam_groups: int = knob(
        1, low=1, high=16, slider=(1, 8), step=1,
        label=Text("beam groups", "束的分组数"),
        help=Text(
            "Divides the beams into groups that choose one after another, so that later ones can avoid what earlier ones took; 1 is off.",
            "把各束分成若干组依次选择，使后面的组可以避开前面的组已选的词元；1 为关闭。",
        ),
        names={"transformers": "num_beam_groups"},
    )  # fmt: skip
    diversity_penalty: float = knob(
        0.0, low=0.0, high=100.0, slider=(0.0, 5.0), step=0.1,
        label=Text("diversity penalty", "多样性惩罚"),
        help=Text(
            "What a token's score loses for every beam of an earlier group that took the same token at this step.",
            "前面的组中每有一束在这一步选了同一词元，该词元的分数就减去这么多。",
        ),
        names={"transformers": "diversity_penalty"},
    )  # fmt: skip
    do_sample: bool = knob(
        False,
        label=Text("draw the candidates", "抽取候选"),
        help=Text(
            "Draws the candidates of a step by chance, none of them twice, instead of taking the best; temperature and filters then apply.",
            "每一步的候选按概率不重复地抽取，而不是取最好的；此时温度和过滤器才起作用。",
        ),
        names={"transformers": "do_sample"},
    )  # fmt: skip

    @property
    def warps(self) -> bool:  # type: ignore[override]
        return self.do_sample

    @property
    def rows(self) -> int:
        return self.num_beams

    @property
    def scale(self) -> Scale:
        return "raw_log_probability" if self.num_beams > 1 else "logit"  # one beam is greedy decoding

    def min_tokens_to_keep(self, ends: int) -> int:
        return ends + 1 if self.do_sample else 1  # one token besides the ends, so that a beam can go on

    def cooled(self) -> Strategy:
        return replace(self, do_sample=False)

    def check(self) -> None:
        if self.num_return_sequences > self.num_beams:
            raise BadValue(
                "beams_returned",
                Text(
                    "num_return_sequences ({returned}) must not be above num_beams ({beams}): a search keeps no more texts than beams.",
                    "num_return_sequences（{returned}）不能大于 num_beams（{beams}）：搜索保留的文本不会多于束数。",
                ),
                returned=self.num_return_sequences, beams=self.num_beams,
            )  # fmt: skip
        if self.num_beams % self.num_beam_groups:
            raise BadValue(
                "beam_groups",
                Text(
                    "num_beam_groups ({groups}) must divide num_beams ({beams}): every group has as many beams as the others.",
                    "num_beam_groups（{groups}）必须能整除 num_beams（{beams}）：各组的束数相同。",
                ),
                groups=self.num_beam_groups, beams=self.num_beams,
            )  # fmt: skip
        if (self.diversity_penalty > 0) != (self.num_beam_groups > 1):
            raise BadValue(
                "beam_diversity",
                Text(
                    "diversity_penalty ({penalty}) and num_beam_groups ({groups}) need each other: a penalty above 0 acts between at least 2 groups, "
                    "and groups without a penalty would all find the same.",
                    "diversity_penalty（{penalty}）与 num_beam_groups（{groups}）必须同时使用：大于 0 的惩罚作用于至少 2 个组之间，"
                    "而没有惩罚的各组会得到相同的结果。",
                ),
                penalty=self.diversity_penalty, groups=self.num_beam_groups,
            )  # fmt: skip
        if self.do_sample and (self.num_beam_groups > 1 or self.num_beams == 1):
            raise BadValue(
                "beam_sampling",
                Text(
                    "do_sample needs num_beams of at least 2 and num_beam_groups 1, got {beams} and {groups}: "
                    "with one beam choose the strategy sample, and groups choose without chance.",
                    "do_sample 要求 num_beams 至少为 2 且 num_beam_groups 为 1，而给出的是 {beams} 和 {groups}："
                    "只有一束时请选择采样策略；分组时不做随机抽取。",
                ),
                beams=self.num_beams, groups=self.num_beam_groups,
            )  # fmt: skip

    # --- the search ------------------------------------------------------------------------------

    def run(self, task: Task) -> Steps:
        diversity = torch.zeros(task.model.vocabulary_size, device=task.model.device)  # [V] what tokens lose in the next group
        if self.num_beam_groups > 1:
            task.insert(BEFORE_DIVERSITY, DIVERSITY, BoundStage(lambda _, scores: scores - diversity))
        row, logits = yield from task.begin()  # [1, V]
        if row.stopped:
            return
        pools = [self._pool(task.room(row)[0]) for _ in range(self.num_beam_groups)]
        living = [Path(row, group=group) for group in range(self.num_beam_groups)]
        shown: tuple[TokenChosen, ...] = ()
        for step in count():
            candidates: list[BeamCandidate] = []
            kept: list[_Continuation] = []
            ending: Ending | None = None
            diversity.zero_()
            for group, pool in enumerate(pools):
                beams = [(slot if step else 0, path) for slot, path in enumerate(living) if path.group == group]
                if beams:
                    found = self._continuations(task, beams, logits, diversity, first=len(candidates))
                    survivors, ending = self._ends(task, found, pool, step)
                    with task.clock.host_part("recording"):
                        candidates += _judged(found, survivors, ending, pool, step)
                    if ending is None:
                        kept += survivors
                        for one in survivors:
                            diversity[one.choice.token] += self.diversity_penalty
            finished = sorted((one for pool in pools for one in pool.held), key=lambda one: -one.ranked)
            places = tuple((one.step, one.candidate) for one in finished)
            if not kept:
                assert ending is not None, "a step without beams ended the search of some group"
                task.ending = finished[0].path.row.stopped
                advanced = BeamsAdvanced(step, tuple(candidates), (), places, best=None)
                yield (advanced, self._ranking(finished, ending), *_replacing(shown, finished[0].path.told))
                return
            best = max(range(len(kept)), key=lambda slot: kept[slot].score)
            seats = seating([one.parent.seat for one in kept])
            living = [one.path(task, viewed=slot == best, seat=seats[slot]) for slot, one in enumerate(kept)]
            by_seat = [kept[slot] for slot in sorted(range(len(kept)), key=seats.__getitem__)]
            task.select_rows([one.parent.seat for one in by_seat])
            advanced = BeamsAdvanced(step, tuple(candidates), tuple(one.index for one in kept), places, best)
            yield (advanced, *_replacing(shown, living[best].told))
            shown = living[best].told
            logits = task.forward([[one.choice.token] for one in by_seat])[:, -1]  # [rows, V]

    def _pool(self, longest: int) -> Pool:
        early_stopping = self.early_stopping if self.num_beams > 1 else "true"  # greedy decoding: the first end is the end
        return Pool(self.num_beams // self.num_beam_groups, self.length_penalty, early_stopping, longest)

    def _continuations(self, task: Task, beams: list[tuple[int, Path]], logits: Tensor, diversity: Tensor, first: int) -> list[_Continuation]:
        """The best continuations of these beams (slot, path), or drawn ones, by score descending; `first` is the index of the best."""
        beams = sorted(beams, key=lambda beam: beam[1].seat)
        seats = [path.seat for _, path in beams]
        own = logits if seats == list(range(len(logits))) else logits[seats]  # [n, V]
        scored = self._score(task, own, [path.row for _, path in beams])
        with task.clock.part("select"), one_thread(own.device):
            raw, final = scored.raw, scored.scores
            if self.scale == "logit":
                raw, final = raw.log_softmax(-1), final.log_softmax(-1)
            total = final + torch.tensor([[path.score] for _, path in beams], device=own.device)  # [n, V]
            keys = total + self._noise(task, beams, total.shape[-1]).to(own.device) if self.do_sample else total
            most = max(2, 1 + task.ends) * (self.num_beams // self.num_beam_groups)
            places = keys.flatten().topk(min(most, keys.numel())).indices  # [K]
            rows, tokens = places // total.shape[-1], places % total.shape[-1]
            numbers = (rows, tokens, total[rows, tokens], final[rows, tokens], raw[rows, tokens], final.logsumexp(-1)[rows], diversity[tokens])
            fetched = torch.stack([number.double() for number in numbers], dim=-1).tolist()  # [K][7]: the host waits for the device here
        if any(math.isnan(numbers[2]) or numbers[2] == math.inf for numbers in fetched) or fetched[0][2] == -math.inf:
            broken = (b for b in range(len(beams)) if not bool((scored.scores[b] < math.inf).all()))
            raise task.no_distribution(scored, next(broken, 0))
        fetched = sorted((numbers for numbers in fetched if numbers[2] > -math.inf), key=lambda numbers: -numbers[2])
        continuations = []
        with task.clock.part("cache"):
            for index, (b, token, score, log_probability, raw_log_probability, normaliser, penalty) in enumerate(fetched, first):
                slot, path = beams[int(b)]
                choice = Choice(int(token), log_probability - normaliser, raw_log_probability)
                row = task.extend(path.row, choice.token, choice.log_probability)
                continuations.append(_Continuation(index, slot, path, scored, int(b), row, choice, log_probability, score, penalty))
        return continuations

    def _score(self, task: Task, logits: Tensor, rows: Sequence[Row]) -> Scored:
        """Log-softmax, then the processors, not renormalised; of one beam the processors see logits."""
        if self.scale == "logit":
            return task.score(logits, rows)
        with task.clock.part("select"), one_thread(logits.device):
            log_probabilities = logits.log_softmax(-1)
        return task.score(log_probabilities, rows, scale=self.scale)

    def _noise(self, task: Task, beams: Sequence[tuple[int, Path]], vocabulary: int) -> Tensor:
        """Gumbel noise `[n, V]`, float64: the highest sums of score and noise are a draw without replacement from the scores' softmax."""
        slots = [slot for slot, _ in beams]
        uniforms = task.dice.uniforms(beams[0][1].row.position, "beam", (max(slots) + 1) * vocabulary)
        with np.errstate(divide="ignore"):  # a die of 0 loses
            return torch.from_numpy(-np.log(-np.log(uniforms))).reshape(-1, vocabulary)[slots]

    def _ends(self, task: Task, found: list[_Continuation], pool: Pool, step: int) -> tuple[list[_Continuation], Ending | None]:
        """Let those of the best that ended into the pool; return the best that didn't, and why the search is over if it is."""
        ended = {one.index: one for one in found[: pool.size] if one.ended}
        pool.take([Ended(one.path(task), pool.ranked(one.score, step + 1), step, one.index) for one in ended.values()])
        if pool.held and pool.held[0].step == step:  # this may become the lane's text
            pool.held[0] = replace(pool.held[0], path=ended[pool.held[0].candidate].path(task, viewed=True))
        survivors = [one for one in found if not one.ended][: pool.size]
        if survivors:
            return survivors, pool.over(survivors[0].score, step + 1)
        rules = {one.ended for one in found}
        return [], "context" if "context" in rules else "length" if "max_new_tokens" in rules else "no_better"

    def _ranking(self, finished: list[Ended], ending: Ending) -> BeamsRanked:
        hypotheses = tuple(
            Hypothesis(
                one.step, one.candidate, one.path.row.output, one.path.score, one.ranked, one.path.row.stopped.detail, one.path.log_probabilities
            )
            for one in finished
            if one.path.row.stopped is not None
        )
        return BeamsRanked(hypotheses, min(self.num_return_sequences, len(hypotheses)), ending)


def _judged(found: list[_Continuation], survivors: list[_Continuation], ending: Ending | None, pool: Pool, step: int) -> list[BeamCandidate]:
    """What became of each of a group's candidates, and why."""
    in_pool = {one.candidate for one in pool.held if one.step == step}
    last = found[: pool.size][-1]
    judged = []
    for one in found:
        ranked = pool.ranked(one.score, step + 1)
        fate, reason, by, gap = "dropped", None, None, None
        if one.ended and one.index > last.index:
            reason, by, gap = "ended_too_low", last.index, last.score - one.score
        elif one.ended and one.index in in_pool:
            fate = "finished"
        elif one.ended:
            reason, gap = "worse_than_finished", pool.worst - ranked
        elif one.index > survivors[-1].index:
            reason, by, gap = "beaten", survivors[-1].index, survivors[-1].score - one.score
        elif ending is None:
            fate = "kept"
        else:
            reason, gap = "early_stop", pool.worst - pool.hope(one.score, step + 1) if ending == "no_better" else None
        judged.append(
            BeamCandidate(
                one.slot, one.choice.token, one.log_probability, one.score, ranked, fate, reason, by, gap, one.parent.group, one.penalty, one.ended
            )
        )
    return judged


def seating(parents: Sequence[int]) -> list[int]:
    """The cache row of each of some children: the first child of a row stays in it, the others go where a row is free.

    So a row is copied only for a beam that forks, and a step that keeps every beam copies nothing.
    """
    stays: dict[int, int] = {}  # row -> child
    for child, row in enumerate(parents):
        if row < len(parents):
            stays.setdefault(row, child)
    seats = {child: row for row, child in stays.items()}
    free = (row for row in range(len(parents)) if row not in stays)
    return [seats[child] if child in seats else next(free) for child in range(len(parents))]


def _replacing(shown: tuple[TokenChosen, ...], told: tuple[TokenChosen, ...]) -> tuple[TokenChosen, ...]:
    """The events that turn the shown text into the told one: everything behind what they share."""
    common = takewhile(lambda pair: pair[0].token == pair[1].token, zip(shown, told, strict=False))
    return told[sum(1 for _ in common) :]
