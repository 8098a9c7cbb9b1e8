"""What the page asks about a beam search: the tables beside the tree, and the obituary of one candidate. Nothing here needs a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from playground.errors import BadValue, Text
from playground.figures import get_figure
from playground.measures import beams as measured
from playground.measures.beams import BeamTree, Ended, Interval, Key
from playground.measures.formula import Formula
from playground.measures.kv import model_of
from playground.measures.text import TextJoiner, display_name, output_text
from playground.trace import TokenChosen, TokensNamed, Trace
from playground.ui.packets import rounded
from playground.ui.views import Answer, lane_of, look_of

#: How many hypotheses the tables show; every one of them is counted.
SHOWN = 12
#: And how many characters of each: texts of one search differ at the end.
TAIL = 90

ENDS = {
    "eos": Text("end token", "结束符"),
    "stop_string": Text("stop string", "停止串"),
    "max_new_tokens": Text("length limit", "长度上限"),
    "context": Text("context full", "上下文已满"),
    "unfinished": Text("not ended", "未结束"),
}


def searched_tree(trace: Trace, lane: Any) -> tuple[int, BeamTree]:
    """The tree of a lane that searches beams; an error for any other."""
    lane = lane_of(trace, lane)
    tree = measured.beam_tree(trace, lane)
    if not tree.steps:
        raise BadValue("no_beams", Text("This lane has no beams (yet).", "这条通道（还）没有束。"))
    return lane, tree


def key_of(tree: BeamTree, step: Any, candidate: Any) -> Key:
    """A candidate from what a page may send."""
    for value, count in ((step, len(tree.steps)), (candidate, len(tree.steps[step].candidates) if _index(step, len(tree.steps)) else 0)):
        if not _index(value, count):
            raise BadValue("no_candidate", Text("The search has no such candidate.", "搜索中没有这个候选。"))
    return step, candidate


def _index(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


# --- the tables -----------------------------------------------------------------------------------


def beams(trace: Trace, lane: Any, penalty: Any) -> Answer:
    """Everything that stands below the tree; `penalty` is the length penalty to rank by, the lane's own where none is named."""
    lane, tree = searched_tree(trace, lane)
    if penalty is None:
        penalty = tree.penalty
    if not isinstance(penalty, (int, float)) or isinstance(penalty, bool) or not -10 <= penalty <= 10:
        raise BadValue(
            "penalty_range",
            Text("The length penalty goes from -10 to 10, got {value}.", "长度惩罚的范围是 -10 到 10，而给出的是 {value}。"),
            value=str(penalty)[:20],
        )  # fmt: skip
    return {
        "own": tree.penalty,
        "penalty": penalty,
        "prompt": tree.prompt,
        **_corrections(trace, lane, tree, float(penalty)),
        "difference": _difference(tree, float(penalty)).to_json(),
        "switches": [{"label": label.to_json(), "text": text.to_json()} for label, text in _switches(tree, float(penalty))],
        "cost": _cost(trace, lane),
        "why": _why(trace, lane).to_json(),
        "variety": _variety(trace, lane, tree).to_json(),
        "repetition": _repetition(trace),
    }


def _corrections(trace: Trace, lane: int, tree: BeamTree, penalty: float) -> Answer:
    """The recorded hypotheses as rows, the corrections as columns: a value and a rank each."""
    columns = measured.corrections(tree, penalty)
    rank = {one.name: {index: place for place, index in enumerate(one.order)} for one in columns}
    by_penalty = next(one for one in columns if one.name == "transformers").order[:SHOWN]
    # Whoever wins under any correction stands in the table.
    indices = dict.fromkeys([*by_penalty, *(one.order[0] for one in columns if one.order)])
    texts = _told_apart(trace, lane, tree, [tree.hypotheses[index] for index in indices])
    rows = [
        {
            "key": tree.hypotheses[index].key, "text": text, "length": tree.hypotheses[index].length,
            "ended": ENDS[tree.hypotheses[index].ended].to_json(), "sum": rounded(tree.hypotheses[index].score, 6),
            "values": [rounded(one.values[index], 7) for one in columns], "ranks": [rank[one.name][index] for one in columns],
        }
        for index, text in zip(indices, texts, strict=True)
    ]  # fmt: skip
    heads = [{"name": one.name, "label": one.label.to_json(), "formula": one.formula} for one in columns]
    return {"columns": heads, "hypotheses": rows, "more": len(tree.hypotheses) - len(rows)}


def _told_apart(trace: Trace, lane: int, tree: BeamTree, hypotheses: list[Ended]) -> list[str]:
    """Texts from where they begin to differ: the words before are the same in all of them."""
    tokens = [tree.tokens(one.key) for one in hypotheses]
    shared = 0
    while len(tokens) > 1 and all(len(one) > shared + 1 for one in tokens) and len({one[shared] for one in tokens}) == 1:
        shared += 1
    names = trace.names(trace.about.lanes[lane].model)
    texts = []
    for one in tokens:
        joiner = TextJoiner(names)
        before = max(0, shared - 4)  # a few words to read on from
        text = "".join(joiner.add(token).text for token in one[before:]).strip().replace("\n", "↵") or display_name(names.get(one[-1]))
        texts.append(f"… {text[-TAIL:]}" if before or len(text) > TAIL else text)
    return texts


def _difference(tree: BeamTree, penalty: float) -> Text:
    found = measured.difference(tree, penalty)
    p = f"{penalty:g}"
    if found is None:
        return Text(
            "Whether a re-run under {p} would search differently can't be told from this record (groups or chance decided what was kept).",
            "无法从此记录判断以 {p} 重新运行是否会搜索得不同（保留哪些束由分组或随机决定）。",
        ).filled(p=p)
    if penalty == tree.penalty:
        return Text("This is the penalty that the search ran with.", "这就是本次搜索使用的惩罚。")
    en = ["Which beams live depends on raw sums alone, so the penalty acts only on the pool of finished texts and on when to stop."]
    zh = ["保留哪些束只取决于原始和，因此惩罚只影响完成文本的候选池以及何时停止。"]
    if found.pool is None and found.stop is None and not found.longer:
        en.append(f"A re-run under {p} would have searched exactly the same.")
        zh.append(f"以 {p} 重新运行，搜索过程会完全相同。")
    if found.pool is not None:
        en.append(f"Under {p} the pool would first have held other texts after step {found.pool + 1}.")
        zh.append(f"若用 {p}，候选池从第 {found.pool + 1} 步之后开始不同。")
    if found.stop is not None:
        en.append(f"It would have stopped after step {found.stop + 1}: what the record holds beyond would not have been searched.")
        zh.append(f"搜索会在第 {found.stop + 1} 步之后停止：记录中更后面的部分不会被搜索。")
    if found.longer:
        en.append(f"It would not have stopped after step {len(tree.steps)}: what it would have found beyond, only a re-run can tell.")
        zh.append(f"搜索不会在第 {len(tree.steps)} 步停止：之后会找到什么，只有重新运行才知道。")
    return Text(" ".join(en), "".join(zh))


def _switches(tree: BeamTree, penalty: float) -> list[tuple[Text, Text]]:
    """What else decides which text wins: a row each."""
    rows = [(Text("early stopping", "提前停止"), _early_stopping(tree, penalty))]
    n = 3
    repeats = [position for one in tree.hypotheses if (position := measured.first_repeat(tree.tokens(one.key), n)) is not None]
    rows.append((
        Text("no-repeat n-gram", "禁止重复 n 元组"),
        Text(
            "With n = {n}, {count} of {all} recorded hypotheses could not have been written{first}. "
            "It acts on each beam's own tokens, before the sum.",
            "若 n = {n}，{all} 个已记录的假设中有 {count} 个不可能写出{first_zh}。它在求和之前作用于每个束自己的词元。",
        ).filled(
            n=n, count=len(repeats), all=len(tree.hypotheses),
            first=f": the first would have been barred at token {min(repeats) + 1}" if repeats else "",
            first_zh=f"：最早的在第 {min(repeats) + 1} 个词元处被禁止" if repeats else "",
        ),
    ))  # fmt: skip
    moved = sum(one.penalty != 0 for step in tree.steps for one in step.candidates)
    groups = tree.knobs.get("num_beam_groups", 1)
    diverse = Text(
        "Off: one group. With more, each group loses diversity_penalty for every token that an earlier group took at the same step.",
        "关闭：只有一组。分组时，每组会因前面的组在同一步选了同一词元而被扣去 diversity_penalty。",
    )
    if isinstance(groups, int) and groups > 1:
        diverse = Text("{groups} groups: {moved} candidates had a penalty taken off.", "{groups} 组：{moved} 个候选被扣了分。").filled(
            groups=groups, moved=moved
        )
    rows.append((Text("diversity", "多样性"), diverse))
    rows.append((
        Text("coverage penalty (GNMT)", "覆盖惩罚（GNMT）"),
        Text(
            "Not offered: it sums attention on the words of a source sentence, which a decoder-only model doesn't have apart.",
            "不提供：它对源句各词的注意力求和，而仅解码器模型没有单独的源句。",
        ),
    ))  # fmt: skip
    return rows


def _early_stopping(tree: BeamTree, penalty: float) -> Text:
    if measured.difference(tree, penalty) is None:
        return Text("What another rule would have done can't be told from this record.", "无法从此记录判断其他规则的结果。")
    en, zh = [], []
    for rule in ("true", "false", "never"):
        found = measured.searched(tree, penalty, rule)
        at = found.stop
        if at is not None:
            en.append(f"{rule}: stops after step {at + 1}")
            zh.append(f"{rule}：第 {at + 1} 步后停止")
        else:
            beyond = tree.ranked is not None and tree.ranked.ending in ("early_stop", "no_better")
            en.append(f"{rule}: {'goes on behind the record' if beyond else 'runs to the end of the record'}")
            zh.append(f"{rule}：{'会超出记录继续' if beyond else '运行到记录末尾'}")
    return Text(f"With length penalty {penalty:g}: {'; '.join(en)}.", f"长度惩罚为 {penalty:g} 时，{'；'.join(zh)}。")


def _cost(trace: Trace, lane: int) -> list[Answer]:
    return [
        {
            "beams": row.beams.to_json(), "greedy": row.greedy.to_json() if row.greedy else None, "ratio": row.ratio.to_json() if row.ratio else None,
            # Both as they stand in the ratio's formula: whoever divides them gets the ratio that is shown.
            "divided": row.ratio.formula.arithmetic.split(" / ") if row.ratio and isinstance(row.ratio.formula, Formula) else None,
        }
        for row in measured.cost(trace, lane)
    ]  # fmt: skip


def _why(trace: Trace, lane: int) -> Text:
    """Why time doesn't grow as rows do: the weights are read once for all rows, and each row keeps keys and values of its own."""
    model = model_of(trace, lane)
    weights = f"{model.weight_bytes / 1e6:,.0f} MB" if model and model.weight_bytes else "…"
    width = measured.beam_tree(trace, lane).width
    return Text(
        "A step reads all weights ({weights}) once, however many rows there are: with few rows that reading takes most of the time, "
        "so {width} beams cost far less than ×{width}. Keys and values are each row's own: ×{width}. "
        "With many requests at once the arithmetic of the rows fills the time, and the factor approaches ×{width} for time too.",
        "无论有多少行，每一步都只读一遍全部权重（{weights}）：行数少时大部分时间花在读取上，因此 {width} 束的耗时远小于 ×{width}。"
        "而键和值每行各有一份：×{width}。当同时有很多请求时，时间由各行的计算填满，耗时的倍数也会接近 ×{width}。",
    ).filled(weights=weights, width=width)


def _variety(trace: Trace, lane: int, tree: BeamTree) -> Text:
    """How alike the beams are, and what became of the greedy text among them."""
    points = measured.variety(trace, lane)
    if not points:
        return Text("", "")
    last = points[-1]
    en = [
        f"After step {last.step + 1}, {last.living} living beams hold {last.distinct} different newest tokens; all share their first {last.shared}."
    ]
    zh = [f"第 {last.step + 1} 步之后，{last.living} 个存活的束有 {last.distinct} 种不同的最新词元；它们共享前 {last.shared} 个。"]
    lost = next((point for point in points if point.greedy_alive is False), None)
    if lost is not None and lost.greedy is not None:
        known = [point for point in points if point.greedy is not None]
        end = known[-1]
        greedy, best = (f"{value:.2f}".replace("-", "−") for value in (end.greedy, end.best))
        en.append(f"The greedy text left the beams at step {lost.step + 1}; by step {end.step + 1} its sum is {greedy}, the best beam's {best}.")
        zh.append(f"贪心文本在第 {lost.step + 1} 步离开了束；到第 {end.step + 1} 步，它的和为 {greedy}，最好的束为 {best}。")
    elif last.greedy_alive:
        en.append("The greedy text is still among them.")
        zh.append("贪心文本仍在其中。")
    return Text(" ".join(en), "".join(zh))


def _repetition(trace: Trace) -> list[Answer]:
    """Per lane: how much of its text stood there before."""
    rows = []
    for number, about in enumerate(trace.about.lanes):
        tokens = [one.token for one in trace.output(number)]
        share = measured.repeated_share(tokens)
        rows.append({"lane": number, "name": about.name, "tokens": len(tokens), "share": rounded(share, 3), "start": output_text(trace, number)[:80]})
    return rows


# --- one candidate --------------------------------------------------------------------------------


def beam(trace: Trace, lane: Any, step: Any, candidate: Any) -> Answer:
    """One candidate: the text to it, its scores, its obituary, and whether its distribution was recorded."""
    lane, tree = searched_tree(trace, lane)
    key = key_of(tree, step, candidate)
    one = tree.candidate(key)
    names = trace.names(trace.about.lanes[lane].model)
    joiner = TextJoiner(names)
    pieces = [joiner.add(token).text for token in tree.tokens(key)]
    # The text ends in the candidate's own token: that is told apart, whatever it completes.
    before, own = "".join(pieces[:-1]), pieces[-1]
    ended = [hypothesis.key for hypothesis in tree.hypotheses]
    output = trace.output(lane)[tree.forced :]
    return {
        "key": key, "position": step + tree.forced, "before": before, "own": own, "name": display_name(names.get(one.token)), "token": one.token,
        "log_probability": rounded(one.log_probability, 6), "sum": rounded(one.score, 7), "ranked": rounded(one.ranked, 6), "length": step + 1,
        "penalty": tree.penalty, "fate": one.fate, "group": one.group, "diversity": one.penalty,
        "ended": ENDS[one.ended].to_json() if one.ended else None,
        "rank": ended.index(key) if key in ended else None, "hypotheses": len(ended),
        "obituary": _obituary(trace, lane, tree, key).to_json(),
        "interval": _interval(tree, key).to_json(),
        "shown": [event.token for event in output[: step + 1]] == tree.tokens(key),
        "recorded": recorded_view(trace, lane, tree, key) is not None,
    }  # fmt: skip


def _name(trace: Trace, lane: int, tree: BeamTree, key: Key) -> str:
    """A candidate in words: its token, and the two before it."""
    names = trace.names(trace.about.lanes[lane].model)
    joiner = TextJoiner(names)
    tokens = tree.tokens(key)[-3:]
    words = [joiner.add(token).text or display_name(names.get(token)) for token in tokens]
    return ("…" if key[0] >= len(tokens) else "") + "".join(words)


def _obituary(trace: Trace, lane: int, tree: BeamTree, key: Key) -> Text:
    found = measured.obituary(tree, key)
    by = _name(trace, lane, tree, found.by) if found.by is not None else "?"
    at = found.death[0] + 1
    gap = "?" if found.gap is None else f"{found.gap:.3f}"
    later = found.death != key
    line_en, line_zh = ("Its line ended later. ", "它的后续在之后结束。") if later and found.how not in ("alive", "unfinished", "won") else ("", "")
    width = tree.width
    texts = {
        "alive": Text("Alive: the search goes on.", "存活：搜索还在继续。"),
        "won": Text("It won: of all finished texts, the one that it leads to counts most.", "它胜出：由它写成的文本在所有完成的文本中得分最高。"),
        "beaten": Text(
            "Beaten at step {at}: “{by}” took the last of the {width} places; it was {gap} ahead in the sum of log-probabilities.",
            "在第 {at} 步被击败：“{by}”占了 {width} 个位置中的最后一个，对数概率之和领先 {gap}。",
        ),
        "ended_too_low": Text(
            "It ended at step {at}, but was not among the best {width} candidates there (“{by}” was, {gap} ahead): such an end is not taken.",
            "它在第 {at} 步结束，但不在那一步最好的 {width} 个候选之中（“{by}”在，领先 {gap}）：这样的结束不被采纳。",
        ),
        "worse_than_finished": Text(
            "It ended at step {at}, but counts {gap} less than the worst of the {width} finished texts, “{by}”.",
            "它在第 {at} 步结束，但比 {width} 个完成文本中最差的“{by}”还低 {gap}。",
        ),
        "early_stop": Text("The search was over after step {at}: nobody looked further.", "搜索在第 {at} 步之后结束：没有再往下找。"),
        "displaced": Text(
            "It had finished at step {at}, until “{by}” pushed it out of the pool: that one counts {gap} more.",
            "它在第 {at} 步完成，后来“{by}”把它挤出了候选池：那一个得分高 {gap}。",
        ),
        "outranked": Text("It finished at step {at}; “{by}” counts {gap} more.", "它在第 {at} 步完成；“{by}”的得分高 {gap}。"),
        "unfinished": Text("It still lived when the search ended.", "搜索结束时它仍存活。"),
    }
    text = texts[found.how]
    filled = {"at": at, "by": by, "gap": gap, "width": width}
    return Text(line_en + text.en.format(**filled), line_zh + text.zh.format(**filled))


def _interval(tree: BeamTree, key: Key) -> Text:
    """For which length penalties this text would have ended first."""
    found = measured.obituary(tree, key)
    if not tree.hypotheses:
        return Text("No text has ended yet.", "还没有文本结束。")
    ended = tree.candidate(found.death).ended is not None
    if found.interval is None:
        return Text("No length penalty puts it first among the recorded hypotheses.", "任何长度惩罚都不能使它在已记录的假设中排第一。")
    en, zh = _penalties(found.interval)
    if ended:
        return Text(f"It comes first for a length penalty {en}.", f"长度惩罚{zh}时它排第一。")
    return Text(f"Had it ended here, it would have come first for a length penalty {en}.", f"假如它在此结束，长度惩罚{zh}时会排第一。")


def _penalties(interval: Interval) -> tuple[str, str]:
    low, high = interval
    if math.isinf(low) and math.isinf(high):
        return "of any value", "取任何值"
    if math.isinf(low):
        return f"up to {high:.3f}", f"不超过 {high:.3f} "
    if math.isinf(high):
        return f"from {low:.3f} up", f"不低于 {low:.3f} "
    return f"from {low:.3f} to {high:.3f}", f"在 {low:.3f} 到 {high:.3f} 之间"


# --- its distribution -----------------------------------------------------------------------------


def recorded_view(trace: Trace, lane: int, tree: BeamTree, key: Key) -> TokenChosen | None:
    """A recorded choice after the same tokens as this candidate's, if its view holds the candidate: every beam that was once the best has them."""
    wanted = tree.tokens(key)
    standing: list[int] = []
    for event in trace.of(lane, TokenChosen):
        if event.origin == "forced":
            continue
        position = event.position - tree.forced
        del standing[position:]
        if position == key[0] and standing == wanted[:-1] and event.view is not None and wanted[-1] in event.view.ids:
            return event
        standing.append(event.token)
    return None


def pipeline(trace: Trace, lane: int, key: Key, tree: BeamTree, chosen: TokenChosen, look: Any, labels: Mapping[str, Text], recorded: bool) -> Answer:
    """The pipeline of one candidate, drawn as if its token had been the lane's choice after the same words."""
    one = tree.candidate(key)
    step = replace(chosen, position=key[0] + tree.forced, token=one.token, log_probability=one.log_probability, u=None, interval=None)
    names = [(owner, event) for owner, event in trace.events if isinstance(event, TokensNamed)]
    alone = Trace(trace.about, [*names, (lane, tree.steps[key[0]]), (lane, step)])
    wanted = look_of(look, labels, recorded)
    drawn = get_figure("pipeline")
    return {
        "figure": drawn.spec(alone, lane, step.position, wanted),
        "text": drawn.describe(alone, lane, step.position, wanted).to_json(),
        "table": drawn.table(alone, lane, step.position, wanted),
    }
