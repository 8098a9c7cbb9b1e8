"""Turns skipped browser tests into failures where a browser is a must.

A machine without Chromium skips the tests that need one; in continuous integration
(`PLAYGROUND_REQUIRE_BROWSER=1`) a skip would hide that the page was never looked at.
"""

from __future__ import annotations

import os

import pytest


def _required() -> bool:
    return os.environ.get("PLAYGROUND_REQUIRE_BROWSER", "") not in ("", "0")


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"PLAYGROUND_REQUIRE_BROWSER is set, and this browser test did not run: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("browser") and _required():
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """A whole file that skips itself (`importorskip("playwright")`) has no tests that could carry the mark."""
    report = yield
    reason = str(report.longrepr).lower()
    if report.skipped and _required() and any(word in reason for word in ("playwright", "chromium", "browser")):
        _fail(report)
    return report
