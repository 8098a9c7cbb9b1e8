"""What speculation did in a lane on a server, as the page shows it: counts, rates and rounds. Nothing here needs a server or a model."""

from __future__ import annotations

from typing import Any

from playground.errors import Text
from playground.measures import Quantity
from playground.measures.server_rounds import rounds
from playground.measures.server_speculation import SpeculationRecord, speculation_record
from playground.trace import ChunkArrived, Trace
from playground.ui.packets import rounded
from playground.ui.views import Answer, lane_of


def lane_speculation(trace: Trace, lane: Any) -> Answer:
    """The ledger of a server lane: counts, rates and rounds, from the best source that there is."""
    lane = lane_of(trace, lane)
    record = speculation_record(trace, lane)
    found = rounds(record, [chunk.tokens for chunk in trace.of(lane, ChunkArrived)])
    return {
        "source": record.source,
        "fields": record.fields,
        "window": rounded(record.window, 3),
        "other_tokens": record.other_tokens,
        "rows": [{"name": name, **quantity_json(quantity)} for name, quantity in ledger_rows(record)],
        "positions": [
            [
                rounded(one.value, 4) if isinstance(one.value, float) else one.value,
                rounded(other.value, 4) if isinstance(other.value, float) else None,
            ]
            for one, other in zip(record.position_rates(), record.position_rates(conditional=True), strict=True)
        ],
        "histogram": record.histogram,
        "most": record.most,
        # By round: drafted, accepted, and the output positions that it wrote, where they are known.
        "rounds": [[one.drafted, one.accepted, one.start, one.stop] for one in found],
    }


STEPS = Text("steps with a draft", "有草稿的步数")
DRAFTED = Text("tokens drafted", "草稿词元数")
ACCEPTED = Text("tokens accepted", "被接受的词元数")


def ledger_rows(record: SpeculationRecord) -> list[tuple[str, Quantity]]:
    """The ledger's numbers in the order in which they are shown."""
    return [
        ("steps", Quantity(record.steps, "1", "reported", STEPS, record.fields or None)),
        ("drafted", Quantity(record.drafted, "tokens", "reported", DRAFTED, record.fields or None)),
        ("accepted", Quantity(record.accepted, "tokens", "reported", ACCEPTED, record.fields or None)),
        ("acceptance", record.acceptance_rate),
        ("length", record.mean_acceptance_length),
        ("forwards", record.target_forwards),
        ("per_forward", record.tokens_per_forward),
    ]


def quantity_json(quantity: Quantity) -> Answer:
    """A quantity as short as a screen needs it."""
    value = quantity.value
    return {**quantity.to_json(), "value": rounded(value, 5) if isinstance(value, float) else value}
