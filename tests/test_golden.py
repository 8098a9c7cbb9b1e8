"""What must not change while the code is rebuilt: recordings and two hundred toy requests, held against what was frozen.

`python -m tests.golden` freezes anew, for a change of behaviour that is meant.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from playground.records import recordings
from tests.golden.frozen import differences, of_recording, of_request, read
from tests.golden.matrix import requests

#: How many toy requests one test runs.
TOGETHER = 20


@cache
def frozen_requests() -> list[Any]:
    return read("requests")


@pytest.mark.parametrize("name", [one.name for one in recordings.RECORDINGS])
def test_a_recording_has_the_numbers_tables_and_packets_that_were_frozen(name: str) -> None:
    found = list(differences(read(f"recording-{name}"), of_recording(name)))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("first", range(0, 200, TOGETHER))
def test_a_request_gives_the_trace_and_numbers_that_were_frozen(first: int) -> None:
    asked, was = requests(), frozen_requests()
    assert len(asked) == len(was) == 200
    for index in range(first, first + TOGETHER):
        found = list(differences(was[index], of_request(index, asked[index])))
        assert not found, f"{asked[index]}\n" + "\n".join(found[:20])


def test_another_token_another_number_and_another_table_are_seen() -> None:
    was = read("recording-classic")
    for change in (
        lambda now: now["numbers"]["0"]["tokens"].update(value=79),
        lambda now: now["packets"][4]["events"][0][2].update(token=1),
        lambda now: now["figures"]["latency 0 en"]["table"][1].__setitem__(1, "0"),
        lambda now: now.pop("record"),
    ):
        now = copy.deepcopy(was)
        change(now)
        assert list(differences(was, now)), "a change was not seen"
