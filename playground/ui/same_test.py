"""The page's test whether a lane's text is distributed as its target's: one at a time, in the background, stepping aside for runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from playground.errors import BadValue, Cancelled, PlaygroundError, Text
from playground.experiments.same_as_target import DRAWS, SameTest
from playground.ui.packets import rounded
from playground.ui.views import Answer

log = logging.getLogger(__name__)

#: A test that nobody has asked about for so many seconds ends.
FORGOTTEN = 15.0
#: Called with what hears of progress; that raises where the test is to end.
Work = Callable[[Callable[[int], None]], SameTest]


@dataclass
class Testing:
    """One test: how far it is, and what came out."""

    key: tuple[str, int]
    done: int = 0
    asked: float = 0.0
    result: SameTest | None = None
    error: PlaygroundError | None = None
    ended: bool = False

    def to_json(self) -> Answer:
        found = self.result
        return {
            "state": "failed" if self.error else "done" if found else "running", "done": self.done, "draws": DRAWS,
            "error": self.error.to_json() if self.error else None, "verdict": found.verdict.to_json() if found else None,
            "p": rounded(found.p_value) if found else None, "rejected": found.significant if found else None,
        }  # fmt: skip


class SameTests:
    """The test that is on, and the newest results."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], Testing] = {}

    def state(self, key: tuple[str, int]) -> Answer:
        testing = self._known.get(key)
        if testing is None:
            return {"state": "idle", "done": 0, "draws": DRAWS, "error": None, "verdict": None, "p": None, "rejected": None}
        testing.asked = time.monotonic()
        return testing.to_json()

    def start(self, key: tuple[str, int], work: Work) -> Answer:
        """Begin a test, unless another one is on."""
        with self._lock:
            if any(not testing.ended for testing in self._known.values()):
                raise BadValue("busy", Text("Another test is on: try again when it has ended.", "另一个检验正在进行：请在其结束后再试。"))
            if len(self._known) > 50:
                self._known.clear()
            testing = self._known[key] = Testing(key, asked=time.monotonic())
        threading.Thread(target=self._run, args=(testing, work), name="same as target", daemon=True).start()
        return testing.to_json()

    def _run(self, testing: Testing, work: Work) -> None:
        def told(done: int) -> None:
            testing.done = done
            while self._busy() and not self._forgotten(testing):
                time.sleep(0.2)  # a run's times must not be disturbed
            if self._forgotten(testing):
                raise Cancelled

        try:
            testing.result = work(told)
        except Cancelled:
            self._known.pop(testing.key, None)
        except PlaygroundError as error:
            testing.error = error
        except Exception:
            log.exception("the test could not be made")
            testing.error = PlaygroundError("bug", Text("Something broke here; it is in the server's log.", "程序出错；详情在服务器日志中。"))
        finally:
            testing.ended = True

    @staticmethod
    def _forgotten(testing: Testing) -> bool:
        return time.monotonic() - testing.asked > FORGOTTEN
