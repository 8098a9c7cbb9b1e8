"""What the page asks about a lane that speculates: ledger, comparison with the plain lane, and which k pays. Nothing here needs a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from playground.errors import BadValue, Text
from playground.figures import draft_which_k
from playground.measures import ledger as measured
from playground.measures.formula import shown
from playground.measures.kv import model_of
from playground.measures.ledger import Ledger
from playground.measures.text import display_name
from playground.measures.which_k import Factors, best, break_even, curve, speed_formula
from playground.trace import Trace
from playground.ui.packets import rounded
from playground.ui.views import Answer, lane_of, look_of

#: What the three factors start from where nothing was measured: guesses that often stand, a cheap drafter, a verification that costs a little more.
UNMEASURED = Factors((), 0.7, 0.05, ((1, 1.0), (2, 1.1)))
#: What a page may ask of each: probability of acceptance, plain steps per guess, and per further position.
RANGES = {"alpha": (0.0, 1.0), "draft": (0.0, 2.0), "verify": (0.0, 2.0)}

GROUPS = {
    "counts": Text("Counts", "计数"),
    "rates": Text("Rates", "比率"),
    "time": Text("Time", "时间"),
    "speed": Text("Speed", "速度"),
    "resources": Text("What it takes besides", "额外占用"),
}


def books_of(trace: Trace, lane: Any) -> tuple[int, Ledger]:
    """The ledger of a lane that speculates; an error for any other."""
    lane = lane_of(trace, lane)
    books = measured.ledger(trace, lane)
    if not books.rounds:
        raise BadValue("no_drafts", Text("This lane has guessed nothing (yet).", "这条通道（还）没有猜测。"))
    return lane, books


def speculation(trace: Trace, lane: Any) -> Answer:
    """Everything that stands beside the rounds: verdict, ledger, the comparison with the plain lane, the factors."""
    lane, books = books_of(trace, lane)
    about = trace.about.lanes[lane]
    rows = [{"group": row.group, "name": row.name, **row.quantity.to_json()} for row in measured.rows(books)]
    for row in rows:
        row["shown"] = shown(row["value"], row["unit"])
        row["value"] = rounded(row["value"], 6) if isinstance(row["value"], float) else row["value"]
    return {
        "verdict": measured.verdict(books).to_json(),
        "won": None if books.speed_up is None else rounded(books.speed_up, 4),
        "identity": [[label.to_json(), value.to_json() if isinstance(value, Text) else value] for label, value in measured.identity(books)],
        "groups": {name: label.to_json() for name, label in GROUPS.items()},
        "rows": rows,
        "refusal": measured.refusal(books).to_json(),
        "same": same(trace, lane, books).to_json(),
        "plain": books.plain,
        "plain_strategy": measured.PLAIN.get(about.strategy),
        "factors": factors_json(books),
        "k": about.knobs.get("k"),
    }


def factors_json(books: Ledger) -> Answer | None:
    """The three factors as sliders start from them; None where they were not measured."""
    factors = books.factors
    if factors is None:
        return None
    most = max(positions for positions, _ in factors.verify)
    slope = (factors.verifying(most) - 1) / (most - 1) if most > 1 else 0.0
    return {"alpha": rounded(factors.beyond, 4), "draft": rounded(factors.draft, 4), "verify": rounded(max(slope, 0.0), 4)}


# --- the same text as the plain lane's ------------------------------------------------------------


def drew(books: Ledger) -> bool:
    """Whether its guesses were drawn with dice of their own: then its law is the plain lane's, and its tokens need not be."""
    knobs = books.trace.about.lanes[books.lane].knobs
    return knobs.get("drafting") == "probabilistic" and knobs.get("drafter") in ("draft_model", "early_exit")


def same(trace: Trace, lane: int, books: Ledger) -> Text:
    """Token for token the plain lane's text, or where they part and how close the decision was there."""
    if drew(books) and trace.about.lanes[lane].strategy == "speculative_sample":
        return Text(
            "Its guesses are drawn with dice of their own: the distribution of its text is the plain lane's, its tokens are not. "
            "Only a test over many draws can look at that.",
            "它的猜测用自己的骰子抽取：文本的分布与普通通道相同，但词元不必相同。只有多次抽取的检验才能考察这一点。",
        )
    if books.plain is None:
        return Text("There is no plain lane with the same settings in this race to compare with.", "本场没有相同设置的普通通道可供比较。")
    count = min(len(trace.output(lane)), len(trace.output(books.plain)))
    model = model_of(trace, lane)
    dtype = (model.dtype if model else None) or "?"
    parted = measured.first_difference(books)
    if parted is None:
        return Text(
            "Token for token the plain lane's text: {count} of {count} compared are equal ({dtype}).",
            "与普通通道逐词元相同：比较的 {count} 个词元全部一致（{dtype}）。",
        ).filled(count=count, dtype=dtype)
    names = trace.names(trace.about.lanes[lane].model)
    gap = "?" if parted.gap is None else f"{parted.gap:.2g}"
    return Text(
        "Equal up to token {position}; there the plain lane wrote “{plain}” and this one “{own}”. The target's two best raw scores are "
        "{gap} apart there, in {dtype}: a forward of several positions rounds differently from a forward of one.",
        "到第 {position} 个词元为止相同；此处普通通道写了“{plain}”，而这条写了“{own}”。目标模型前两名的原始分数在此相差 {gap}（{dtype}）："
        "多位置前向与单位置前向的舍入不同。",
    ).filled(
        position=parted.position + 1, plain=display_name(names.get(parted.plain)), own=display_name(names.get(parted.own)), gap=gap, dtype=dtype
    )  # fmt: skip


# --- three factors --------------------------------------------------------------------------------


def asked_factors(books: Ledger, asked: Any) -> tuple[Factors, list[str]]:
    """The factors that a page asks for: what it names is estimated, what it doesn't is as measured."""
    factors = books.factors or UNMEASURED
    estimated = list(RANGES) if books.factors is None else []
    for name, value in asked.items() if isinstance(asked, Mapping) else ():
        if name not in RANGES or value is None:
            continue
        low, high = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not low <= value <= high:
            raise BadValue(
                "factor_range",
                Text("{name} must be in [{low}, {high}], got {value}.", "{name} 必须在 [{low}, {high}] 内，而给出的是 {value}。"),
                name=name, low=f"{low:g}", high=f"{high:g}", value=repr(value)[:40],
            )  # fmt: skip
        estimated.append(name)
        if name == "alpha":
            factors = replace(factors, acceptance=(), beyond=float(value))
        elif name == "draft":
            factors = replace(factors, draft=float(value))
        else:
            factors = replace(factors, verify=((1, 1.0), (2, 1.0 + value)))
    return factors, sorted(set(estimated))


def which_k(trace: Trace, lane: Any, asked: Any, look: Any) -> Answer:
    """The expected speed-up over k, with the factors measured or as the page asks for them."""
    _, books = books_of(trace, lane)
    factors, estimated = asked_factors(books, asked)
    wanted = look_of(look, {})
    points = curve(factors)
    ran = None if books.speed_up is None or books.mean_k is None else (books.mean_k, books.speed_up)
    return {
        "figure": draft_which_k.drawn(factors, wanted, measured=ran, estimated=bool(estimated)),
        "text": draft_which_k.said(factors).to_json(),
        "table": draft_which_k.table_of(factors, wanted),
        "estimated": estimated,
        "best": best(points).k,
        "speed": rounded(best(points).speed_up, 4),
        "even": break_even(points),
        # By k: how its speed-up is worked out, and the share of rounds with a guess as it stands there.
        "sums": [{"text": sum_.text.to_json(), "hit": sum_.shown("hit")} for sum_ in (speed_formula(factors, point.k) for point in points)],
        "hit": [len(books.with_draft), books.asked] if factors.hit < 1 else None,
    }
