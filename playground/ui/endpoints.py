"""Comparisons for programs: the same line and the same limits as the page, over the API and as MCP tools."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from playground.errors import PlaygroundError


def register(service: Any) -> None:
    """Add the endpoints to the Blocks that is being built."""
    gr.api(_compare(service), api_name="compare", concurrency_limit=None)
    gr.api(_models(service), api_name="models", queue=False)


def _compare(service: Any) -> Callable[..., Iterator[dict[str, Any]]]:
    def compare(
        prompt: str,
        lanes: list[str] = ["greedy", "sample temperature=0.8 top_p=0.95"],  # noqa: B006  (Gradio shows the default in its docs)
        max_new_tokens: int = 80,
        seed: int = 0,
        chat: bool | None = None,
        model: str | None = None,
        with_trace: bool = False,
        request: gr.Request = None,  # type: ignore[assignment]  # Gradio fills it in by its annotation
    ) -> Iterator[dict[str, Any]]:
        """Run one prompt under several decoding configurations on a real model and compare output, latency and KV cache.

        Args:
            prompt: The text that every lane answers.
            lanes: One lane per entry, written as a strategy and its knobs, for example "greedy" or "sample temperature=0.8 top_p=0.95 top_k=50".
            max_new_tokens: How many tokens every lane may write, unless it says otherwise.
            seed: What every die follows from; the same seed gives the same tokens.
            chat: Wrap the prompt in the model's chat template; null means if the model has one.
            model: A model id from the endpoint "models"; null means the default model.
            with_trace: Also return the whole trace (every step's distribution before and after every stage) as JSON text.

        Returns:
            While it runs {"state": ..., "tokens": ...}; at the end {"record": Markdown table, "lanes": [an object per lane], "trace": JSON or null}.
        """
        visitor = f"api-{(request and request.session_hash) or secrets.token_urlsafe(12)}"
        try:
            yield from service.compare(prompt, lanes, max_new_tokens, seed, chat, model, with_trace, visitor)
        except PlaygroundError as error:
            raise gr.Error(error.text.en, print_exception=False) from error

    return compare


def _models(service: Any) -> Callable[[], dict[str, Any]]:
    def models() -> dict[str, Any]:
        """List the models that a comparison can name, the default one, and the device that they run on."""
        return service.models()

    return models
