"""Figures from hand-made traces: what is drawn, in which order, and that nobody's text becomes markup."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import product

import pytest

from playground.errors import BadValue, Text
from playground.figures import Look, figure_json, figures, get_figure
from playground.figures.layout import literal, probability, shortened
from playground.figures.palette import LANE_DASHES, LANE_GLYPHS, LANE_MARKERS, PALETTES, css_variables
from playground.figures.pipeline import stage_title
from playground.trace import (
    About,
    BeamCandidate,
    BeamsAdvanced,
    DeviceSampled,
    DraftJudged,
    Guess,
    LaneAbout,
    LaneEvent,
    ModelAbout,
    PromptRead,
    StageAbout,
    StageView,
    StepTimed,
    StepView,
    TokenChosen,
    TokenName,
    TokensNamed,
    Trace,
    VerifyCalibrated,
)  # fmt: skip
from tests.toy_beams import beam_trace

HOSTILE = ("<img src=x onerror=alert(1)>", "${alert(1)}", "<b>", "%{x}", "$x^2$", "&lt;", '<a href="javascript:alert(1)">', "</script>")
PIECES = (b" the", b" cache", b"\n", "你".encode()[:2], *(text.encode() for text in HOSTILE), b"<|im_end|>", b" a", b" b", b" c")
LOGITS = tuple(math.log(2.0 ** -(n + 1)) for n in range(len(PIECES)))  # 1/2, 1/4, … and 2^-16 outside
LOOKS = [Look(theme, language, narrow) for theme, language, narrow in product(("light", "dark"), ("en", "zh"), (False, True))]


def view(kept: int, temperature: float = 0.5) -> StepView:
    """Halves: temperature squares the probabilities, then only the first `kept` survive."""
    warm = [score / temperature for score in LOGITS]
    whole = math.log(sum(map(math.exp, warm)))
    alive = math.log(sum(math.exp(score) for score in warm[:kept]))
    return StepView(
        ids=tuple(range(len(PIECES))), raw=LOGITS, log_sum_exp=0.0, entropy=1.38, alive=20, rest_top=0.0, rest=(0,) * 64,
        stages=(
            StageView("temperature", 20, 0.9, whole, 0.0, (), tuple(warm)),
            StageView("top_k", kept, 0.5, alive, 1 - math.exp(alive - whole), tuple(range(kept, len(PIECES))), None),
        ),
    )  # fmt: skip


def lane_of_beams(names: int) -> list[BeamsAdvanced]:
    """Two beams, each with hostile tokens; a short text ends at the second step, two at the last."""
    steps = []
    for step in range(4):
        token = (3 + 2 * step) % names
        sums = (-1.0 - step, -1.5 - step, -1.6 - step, -2.2 - step)
        ended = ("max_new_tokens",) * 4 if step == 3 else (None, None, "eos" if step == 1 else None, None)
        fates = ("finished", "finished", "dropped", "dropped") if step == 3 else ("kept", "kept", "finished" if step == 1 else "dropped", "dropped")
        rows = tuple(
            BeamCandidate(
                beam=number % 2 if step else 0,
                token=token + number % 2,
                log_probability=-0.5,
                score=total,
                ranked=total / (step + 1),
                fate=fate,
                ended=end,
            )
            for number, (total, fate, end) in enumerate(zip(sums, fates, ended, strict=True))
        )
        pool = ((), ((1, 2),), ((1, 2),), ((3, 0), (3, 1)))[step]
        steps.append(BeamsAdvanced(step, rows, () if step == 3 else (0, 1), pool, None if step == 3 else 0))
    return steps


def draft_of(number: int) -> DraftJudged:
    """A round with hostile tokens: nothing guessed, all accepted, or the second one rejected."""
    states = ((), ("accepted", "accepted", "accepted"), ("accepted", "rejected", "never_judged"))[number % 3]
    guesses = tuple(Guess(4 + i, 0.5, state, 0.25, 0.5, 0.1) for i, state in enumerate(states))  # type: ignore[arg-type]
    extra = ("plain", "bonus", "resampled")[number % 3]
    seconds = {"draft": 0.001, "verify": 0.01, "select": 0.001, "rollback": 0.0}
    return DraftJudged(number, number, "<b>ngram</b>", guesses, 3, 5, extra, seconds, 3 + number)  # type: ignore[arg-type]


def trace(lanes: int = 2, steps: int = 5, chosen: int = 1, kept: int = 3) -> Trace:
    stages = (StageAbout("temperature", "warper", {"temperature": 0.5}, "asked"), StageAbout("top_k", "warper", {"top_k": kept}, "library"))
    # The last lane also searched beams and guessed ahead: what figures of these draw is there.
    strategies = ["sample"] * lanes if lanes == 1 else [*["sample"] * (lanes - 1), "speculative_sample"]
    lane = tuple(LaneAbout(f"lane <b>{n}</b>", "toy", strategies[n], {}, stages, 9, (), (), (1,), "p") for n in range(lanes))
    model = ModelAbout("toy", "toy <i>", None, "float32", "cpu", 1, 4, 2, 20, 64, 10, "2 × 5 B")
    names = tuple(TokenName(n, piece, special=piece == b"<|im_end|>") for n, piece in enumerate(PIECES))
    events: list[LaneEvent] = [(None, PromptRead(3, 3, 0.4, 30, shared=True)), *((n, PromptRead(3, 3, 0.0, 30, reused=True)) for n in range(lanes))]
    events.append((None, TokensNamed("toy", names)))
    for number, n in product(range(steps), range(lanes)):
        token = TokenChosen(number, chosen, math.log(0.2), math.log(0.25), 1, 1, u=0.8, interval=(0.7619, 0.9524), view=view(kept))
        took = 0.01 * (n + 1) + 0.001 * number
        timed = StepTimed(number, 1, took, {"forward": took}, 0.002, 0.0, 0.0, 1, 3 + number, 10 * (3 + number))
        judged = [(n, draft_of(number))] if n and n == lanes - 1 else []
        events += [(n, token), *judged, (n, timed)]
    events.append((lanes - 1, VerifyCalibrated(((1, 0.010), (2, 0.012), (4, 0.018)), 0.002, 3, 3)))
    searched = lane_of_beams(len(PIECES) - 4) if lanes > 1 else []
    events += [(lanes - 1, event) for event in searched]
    events += [(None, DeviceSampled(0.25 * n, 0.5 + 0.1 * n, 10**9 * (n + 1), 10**11, "a <GPU>")) for n in range(2)]
    about = About({}, (model,), lane, {}, "a <machine>", "2026-01-02T03:04:05", warm=False)
    return Trace(about, events)


PLAIN = Look()


def drawn(name: str, of: Trace, look: Look = PLAIN, lane: int | None = 1, position: int | None = None) -> dict:
    return json.loads(figure_json(name, of, lane, position, look))


def texts(figure: dict) -> list[str]:
    """Every string that Plotly would render: notes, names, labels, hovers."""
    found: list[str] = []
    for data in figure["data"]:
        for key in ("text", "hovertext", "name", "ticktext"):
            value = data.get(key)
            found += value if isinstance(value, list) else [value] if value else []
    labels = [label for value in figure["layout"].values() if isinstance(value, dict) for label in value.get("ticktext") or []]
    return found + labels + [note["text"] for note in figure["layout"].get("annotations", [])]


# --- every figure -----------------------------------------------------------------------------------


def test_the_figures_of_this_folder_are_found() -> None:
    assert {"pipeline", "latency", "parts", "kv", "entropy"} <= set(figures())
    with pytest.raises(BadValue, match="no figure called 'nonsense'"):
        get_figure("nonsense")


@pytest.mark.parametrize("name", list(figures()))
def test_plotly_accepts_every_figure_in_every_look(name: str) -> None:
    for look in LOOKS:
        figure = get_figure(name).draw(trace(), 1, 2, look)
        assert len(figure.data) > 0
        assert len(figure.to_json()) < 60_000  # Plotly's default template alone has more


@pytest.mark.parametrize("name", list(figures()))
def test_an_empty_trace_gives_a_sentence_and_no_error(name: str) -> None:
    empty = Trace(trace().about, [])
    for look in (Look(), Look(language="zh", narrow=True)):
        figure = drawn(name, empty, look, lane=0)
        assert figure["data"] == [] and len(figure["layout"]["annotations"]) == 1
        assert get_figure(name).table(empty, 0, None, look) == []
        assert get_figure(name).describe(empty, 0, None, look).zh


@pytest.mark.parametrize("name", list(figures()))
def test_names_and_tokens_never_become_markup(name: str) -> None:
    allowed = re.compile(r"</?(b|i|br)>|</?span( style='[a-z0-9#:;().,\-]*')?>")
    for look in LOOKS:
        for text in texts(drawn(name, trace(), look)):
            bare = allowed.sub("", text)
            assert "<" not in bare and "$" not in bare and "%{" not in bare, text


@pytest.mark.parametrize("name", list(figures()))
def test_every_figure_is_told_in_words_and_in_rows(name: str) -> None:
    figure = get_figure(name)
    told = figure.describe(trace(), 1, None, Look())
    assert isinstance(told, Text) and told.en != told.zh
    rows = figure.table(trace(), 1, None, Look())
    assert len(rows) > 1 and len({len(row) for row in rows}) == 1


def test_json_is_strict_and_the_same_figure_as_plotlys() -> None:
    for name in figures():
        of = trace()
        plain = drawn(name, of)
        plotly = json.loads(get_figure(name).draw(of, 1).to_json())
        assert len(plain["data"]) == len(plotly["data"])
        assert plain["layout"]["height"] == plotly["layout"]["height"]


# --- the pipeline -----------------------------------------------------------------------------------


def bars(figure: dict) -> list[dict]:
    return [data for data in figure["data"] if data["type"] == "bar" and data["yaxis"] == "y"]


def labels(figure: dict) -> list[str]:
    return [data["text"] for data in figure["data"] if data.get("mode") == "text"]


def test_a_column_for_the_model_and_one_per_stage_in_order() -> None:
    figure = drawn("pipeline", trace())
    raw, warm, top = bars(figure)
    assert raw["x"][:3] == [0.5, 0.25, 0.125]
    squares = [4.0 ** -(n + 1) for n in range(len(PIECES))]
    assert warm["x"][:3] == pytest.approx([square / sum(squares) for square in squares[:3]], abs=1e-6)
    assert top["x"][:3] == pytest.approx([16 / 21, 4 / 21, 1 / 21], abs=1e-6)
    headings = [text for text in texts(figure) if "→ <b>" in text or "<b>model</b>" in text]
    assert [re.search("<b>(.*?)</b>", text).group(1) for text in headings] == ["model", "temperature 0.5", "top-k 3"]
    assert "alive 20 → 3" in headings[2]


def test_a_removed_token_is_hollow_and_crossed_out_where_it_was_removed() -> None:
    figure = drawn("pipeline", trace())
    _, warm, top = bars(figure)
    _, warm_words, top_words = labels(figure)
    assert top["marker"]["color"][3] == "rgba(0,0,0,0)" and top["marker"]["line"]["color"][3] == PALETTES["light"].removed
    assert top["x"][3] == warm["x"][3]  # as long as it was before the stage
    assert "✕" in top_words[3] and "✕" not in warm_words[3] and "✕" not in top_words[2]


def test_the_chosen_token_is_always_drawn_and_marked_without_colour_too() -> None:
    for narrow in (False, True):
        figure = drawn("pipeline", trace(chosen=13, kept=14), Look(narrow=narrow))
        assert len(bars(figure)[0]["x"]) == (4 if narrow else 12)
        assert any("▶ <b>␣a" in text for text in texts(figure))


def test_the_die_stands_on_the_cumulative_bar_over_the_token_it_hit() -> None:
    figure = drawn("pipeline", trace())
    bar = next(data for data in figure["data"] if data.get("yaxis") == "y2" and data["type"] == "bar")
    die = next(data for data in figure["data"] if data.get("yaxis") == "y2" and data["type"] == "scatter")
    assert bar["base"] == pytest.approx([0, 16 / 21, 20 / 21], abs=1e-6)
    assert bar["x"] == pytest.approx([16 / 21, 4 / 21, 1 / 21], abs=1e-6)
    hit = bar["marker"]["color"].index(PALETTES["light"].chosen)
    assert die["x"] == [0.8] and bar["base"][hit] <= 0.8 < bar["base"][hit] + bar["x"][hit]
    assert die["marker"]["symbol"] == "triangle-down"


def test_greedy_has_no_die_but_an_argmax() -> None:
    of = trace(lanes=1, steps=1, chosen=0)
    of.events = [(lane, replace(event, u=None, interval=None) if isinstance(event, TokenChosen) else event) for lane, event in of.events]
    figure = drawn("pipeline", of, lane=0)
    die = next(data for data in figure["data"] if data.get("yaxis") == "y2" and data["type"] == "scatter")
    assert die["hovertext"] == ["argmax"] and die["x"][0] == pytest.approx(8 / 21, abs=1e-6)
    assert not any("u =" in text for text in texts(figure))


def test_a_position_selects_its_step_and_none_the_newest() -> None:
    of = trace(lanes=1, steps=1)
    later = replace(next(of.of(0, TokenChosen)), position=1, token=0)
    of.add([(0, later)])
    assert any("▶ <b>␣cache</b>" in text for text in texts(drawn("pipeline", of, lane=0, position=0)))
    assert any("▶ <b>␣the</b>" in text for text in texts(drawn("pipeline", of, lane=0)))


def test_with_many_stages_those_that_did_least_are_only_named() -> None:
    of = trace(lanes=1, steps=1)
    token = next(of.of(0, TokenChosen))
    idle = tuple(StageView(f"idle_{n}", 3, 0.5, token.view.stages[1].log_normaliser, 0.0) for n in range(6))
    full = replace(token, view=replace(token.view, stages=(*token.view.stages, *idle)))
    of.events = [(lane, full if event is token else event) for lane, event in of.events]
    figure = drawn("pipeline", of, lane=0)
    assert len(bars(figure)) == 6
    assert any("not drawn" in text and "idle-5" in text for text in texts(figure))


def test_a_long_title_keeps_its_numbers() -> None:
    about = StageAbout("repetition", "processor", {"repetition_penalty": 1.2, "scope": "prompt and output"}, "asked")
    assert stage_title("repetition", about, Look()) == "repetition 1.2, prompt and output"
    assert stage_title("repetition", about, Look(), 20) == "repetition 1.2"
    assert stage_title("repetition", about, Look(), 10) == "repet… 1.2"


def test_page_labels_name_the_stages() -> None:
    look = Look(language="zh", stage_labels={"temperature": Text("temperature", "温度")})
    assert any("<b>温度 0.5</b>" in text for text in texts(drawn("pipeline", trace(), look)))


def test_the_pipeline_table_crosses_out_what_was_removed() -> None:
    rows = get_figure("pipeline").table(trace(), 0, None, Look())
    assert rows[0] == ("token", "id", "model", "temperature 0.5", "top-k 3")
    assert rows[2] == ("▶ ␣cache", "1", "0.250000", "0.187500", "0.190476")
    assert rows[4][4] == "✕" and rows[4][3] != "✕"
    assert rows[5][0] == HOSTILE[0].replace(" ", "␣")  # a table is text, not markup: shown as it is


# --- the figures of a race --------------------------------------------------------------------------


def test_latency_draws_the_itl_of_every_lane_from_the_second_token_on() -> None:
    figure = drawn("latency", trace())
    lines = [data for data in figure["data"] if data.get("xaxis") is None]
    assert [line["x"] for line in lines] == [[2, 3, 4, 5]] * 2
    assert lines[1]["y"] == pytest.approx([21, 22, 23, 24])
    marks = [data for data in figure["data"] if data.get("xaxis") == "x2"]
    assert marks[1]["y"] == pytest.approx([22.5, 23.85])  # median and p95 of 21 … 24
    assert lines[0]["line"]["dash"] != lines[1]["line"]["dash"] and lines[0]["marker"]["symbol"] != lines[1]["marker"]["symbol"]


def test_a_shared_prompt_shows_one_ttft_for_the_race() -> None:
    told = [text for text in texts(drawn("latency", trace())) if "TTFT" in text]
    assert told == ["<b>TTFT</b> race (prompt read once) 410.0 ms"]


def test_times_say_whether_they_were_recorded_and_cold() -> None:
    assert any("RECORDED · a &lt;machine&gt; · 2026-01-02 · cold" in text for text in texts(drawn("latency", trace(), Look(recorded=True))))
    assert not any("RECORDED" in text for text in texts(drawn("latency", trace())))


def test_parts_stack_up_to_the_step_and_recording_stays_apart() -> None:
    figure = drawn("parts", trace())
    stack = [data for data in figure["data"] if data["type"] == "bar"]
    assert len(stack) == 6 and figure["layout"]["barmode"] == "stack"
    assert [sum(column) for column in zip(*(data["y"] for data in stack), strict=True)] == pytest.approx([20, 21, 22, 23, 24])
    assert figure["data"][-1]["y"] == [2.0] * 5 and figure["data"][-1]["type"] == "scatter"


def test_kv_draws_tokens_and_bytes_and_says_that_the_formula_holds() -> None:
    figure = drawn("kv", trace())
    tokens, megabytes = figure["data"][:2]
    assert tokens["y"] == [3, 4, 5, 6, 7] and megabytes["y"] == pytest.approx([3e-5, 4e-5, 5e-5, 6e-5, 7e-5])
    assert any("10 B" in text and "✓" in text for text in texts(figure))


def test_entropy_surprise_and_alive_share_one_axis() -> None:
    figure = drawn("entropy", trace())
    entropy, surprise, alive = figure["data"][:3]
    assert entropy["y"] == [1.38] * 5 and surprise["y"] == pytest.approx([1.386] * 5) and alive["y"] == [3] * 5
    assert figure["layout"]["yaxis3"]["type"] == "log" and {data["xaxis"] for data in figure["data"]} == {"x"}
    assert surprise["text"] == ["␣cache"] * 5 and surprise["customdata"] == [2.0] * 5


# --- names, numbers, colours ------------------------------------------------------------------------


def test_literal_text_and_short_labels() -> None:
    assert literal("<b>&${%{") == "&lt;b&gt;&amp;&#36;&#123;&#37;&#123;"
    assert shortened("abcdef", 6) == "abcdef" and shortened("abcdefg", 6) == "abcde…"
    assert shortened("你好世界", 6) == "你好…"
    assert literal("<<<<", 3) == "&lt;&lt;…"  # cut first: an entity is never cut in two


def test_probabilities_as_people_write_them() -> None:
    assert [probability(p) for p in (1.0, 0.314, 0.0451, 0.00123, 0.0001, 0.0)] == ["1.00", "0.31", "0.045", "0.0012", "<0.001", "0"]


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_background(theme: str) -> None:
    palette = PALETTES[theme]
    for ink in (palette.text, palette.muted, palette.chosen):
        assert contrast(ink, palette.surface) >= 4.5
    assert contrast(palette.on_bar, palette.bar) >= 4.5 and contrast(palette.on_chosen, palette.chosen) >= 4.5
    assert all(contrast(lane, palette.surface) >= 3 for lane in palette.lanes)
    assert css_variables(theme)["--lane-0"] == palette.lanes[0]


def test_lanes_differ_in_colour_dash_and_marker() -> None:
    for palette in PALETTES.values():
        for styles in (palette.lanes, LANE_DASHES, LANE_MARKERS, LANE_GLYPHS):
            assert len(set(styles)) == 6


# --- the figures of beams ---------------------------------------------------------------------------


def test_scores_are_lines_whose_winner_lies_at_zero() -> None:
    of = beam_trace(beams=4, steps=30, end=0.1)
    figure = drawn("beam_scores", of, lane=0)
    *lines, crossed = figure["data"]
    columns = list(zip(*(line["y"] for line in lines), strict=True))
    assert all(max(column) == pytest.approx(0, abs=1e-3) for column in columns)  # somebody wins at every mark
    assert lines[0]["x"][0] == -2 and lines[0]["x"][-1] == 3 and len(lines[0]["x"]) == len(get_figure("beam_scores").table(of, 0, None, PLAIN))
    assert len(crossed["x"]) >= len(columns) - 2


def test_kv_by_beam_stacks_up_to_the_measured_bytes() -> None:
    of = beam_trace(beams=4, steps=12)
    figure = drawn("beam_kv", of, lane=0)
    layers = [data for data in figure["data"] if data["type"] == "bar" and data["yaxis"] == "y"]
    bytes_of = [event.cache_bytes for event in of.of(0, StepTimed)]
    assert [sum(value or 0 for value in column) * 1e6 for column in zip(*(layer["y"] for layer in layers), strict=True)] == pytest.approx(bytes_of)
    assert any("derived" in text for text in texts(figure))


def test_variety_marks_where_the_greedy_text_leaves() -> None:
    figure = drawn("beam_variety", beam_trace(beams=4, steps=30, end=0.1), lane=0)
    assert len(figure["data"]) == 4 and len(figure["layout"]["shapes"]) == 1


def test_a_beam_is_no_argmax_in_the_pipeline() -> None:
    figure = drawn("pipeline", beam_trace(beams=4, steps=12), lane=0)
    assert any("its sum decides" in text for text in texts(figure)) and not any("argmax" in text for text in texts(figure))
