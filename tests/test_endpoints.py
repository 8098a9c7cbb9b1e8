"""Comparisons for programs, asked as programs do: gradio_client and an MCP client over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

from playground.trace import Trace
from playground.ui.app import build, launch
from playground.ui.endpoints import register
from playground.ui.service import Service
from tests.tiny_folder import tiny_folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    page = build(Service(), register)
    launch(page, prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", server_port=None)
    yield page.local_url
    page.close()


def test_a_gradio_client_gets_states_and_the_record(address: str) -> None:
    client = Client(address, verbose=False)
    lanes = ["greedy", "sample temperature=0.7 name=warm"]
    job = client.submit("Hi", lanes, 6, 1, None, str(tiny_folder()), True, api_name="/compare")
    last = list(job)[-1]
    assert last["state"] == "done" and [lane["lane"] for lane in last["lanes"]] == ["greedy", "warm"]
    assert "| greedy |" in last["record"] and len(Trace.from_json(last["trace"]).about.lanes) == 2


def test_a_mistake_reaches_the_program_as_a_sentence(address: str) -> None:
    client = Client(address, verbose=False)
    with pytest.raises(AppError, match=r"top_p must be in \(0, 1\]"):
        list(client.submit("Hi", ["sample top_p=7"], 6, 1, None, str(tiny_folder()), False, api_name="/compare"))
        client.predict("Hi", ["sample top_p=7"], 6, 1, None, str(tiny_folder()), False, api_name="/compare")


def test_only_the_named_endpoints_are_public(address: str) -> None:
    named = Client(address, verbose=False).view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert sorted(named) == ["/compare", "/models"]
    parameters = {parameter["parameter_name"] for parameter in named["/compare"]["parameters"]}
    assert {"prompt", "lanes", "max_new_tokens", "seed", "chat", "model", "with_trace"} == parameters


def test_mcp_offers_both_tools_with_documented_arguments(address: str) -> None:
    async def ask() -> tuple[dict[str, Any], Any]:
        async with streamablehttp_client(address.rstrip("/") + "/gradio_api/mcp/") as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            name = next(name for name in tools if name.endswith("compare"))
            arguments = {"prompt": "Hi", "lanes": ["greedy"], "max_new_tokens": 4, "model": str(tiny_folder())}
            return tools, await session.call_tool(name, arguments)

    tools, result = asyncio.run(ask())
    compare = next(tool for name, tool in tools.items() if name.endswith("compare"))
    assert any(name.endswith("models") for name in tools) and len(tools) == 2
    assert "decoding configurations" in compare.description
    assert "strategy and its knobs" in json.dumps(compare.inputSchema)
    assert "greedy, max_new_tokens=4" in json.dumps([content.model_dump() for content in result.content])
