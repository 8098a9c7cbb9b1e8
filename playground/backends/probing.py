"""What a server can do with a model, found out once by asking it: by what it answers, never by its version.

A handful of requests of a token or two each: models and names, a stream with everything asked for, a chat, the same step at
two temperatures (are its log-probabilities from before or after?), min-p and logit bias, a beam search, `/metrics`.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from typing import Any, Literal

import httpx2

from playground.backends import guarded_http
from playground.backends.guarded_http import Bounds, ServerFailed, error_words, failure, malformed, refusal, words_of
from playground.backends.openai_api import chunks, metrics_text, opened
from playground.backends.servers import Capabilities, ServerEntry
from playground.errors import BadValue, PlaygroundError, Text

#: A probe is a question of a token or two: whoever takes longer for it is too slow to be looked at.
BOUNDS = Bounds(connect=4.0, silence=20.0, seconds=40.0, bytes=4_000_000)

#: How many of the likeliest tokens are asked for, until a server agrees.
MOST_LOGPROBS = (50, 20, 5, 1)

#: It repeats itself, so that a server that looks drafts up in the prompt finds some.
PROMPT = "one two three four, one two three four, one two three four, one"

#: How far two log-probabilities of the same step may differ and still be the same number.
SAME = 0.02


class Prober:
    """Asks every server once for every model, however many lanes want to know; failures are asked again."""

    def __init__(self) -> None:
        self._known: dict[tuple[ServerEntry, str | None], Capabilities] = {}
        self._lock = threading.Lock()

    def remember(self, entry: ServerEntry, model: str | None, can: Capabilities) -> None:
        """Take over what is known already."""
        self._known[entry, model] = can

    def known(self, entry: ServerEntry, model: str | None = None) -> Capabilities | None:
        """What was found out already, without asking anybody."""
        return self._known.get((entry, model))

    def capabilities(self, entry: ServerEntry, model: str | None = None, again: bool = False) -> Capabilities:
        """What the server can do with a model (None: its first). Raises `PlaygroundError`."""
        with self._lock:
            if again or (entry, model) not in self._known:
                self._known[entry, model] = probe(entry, model)
            return self._known[entry, model]


def probe(entry: ServerEntry, model: str | None = None) -> Capabilities:
    """Ask one server everything; what it refuses is something that it can't, and only a server that can't be used raises."""
    listed, owner = _models(entry)
    model = model or listed[0][0]
    if model not in dict(listed):
        raise BadValue(
            "server_model_unknown",
            Text("{server} has no model {model}; it has {names}.", "{server} 没有模型 {model}；可用的有 {names}。"),
            server=entry.name, model=repr(model)[:100], names=", ".join(name for name, _ in listed[:20]),
        )  # fmt: skip
    kind, version, context = _identity(entry, owner)
    if dict(listed)[model] is None and context is not None:
        listed = tuple((name, context if name == model else most) for name, most in listed)
    text = _metrics(entry)
    families = _families(text)
    raw, chat = _stream(entry, model, False), _stream(entry, model, True)
    answered = [reply for reply in (raw, chat) if reply is not None]
    if not answered:
        # Neither path works: the plainest request tells why in the server's own words.
        _answers(entry, False, {"model": model, "prompt": PROMPT, "max_tokens": 1})
        raise malformed("no completions")
    refused = tuple(name for name, value in (("min_p", 0.1), ("logit_bias", {"0": 1.0})) if not _takes(entry, model, raw is None, {name: value}))
    return Capabilities(
        kind=kind,
        version=version,
        models=listed,
        model=model,
        completions=raw is not None,
        chat=chat is not None,
        token_ids=all(reply["token_ids"] for reply in answered),
        logprobs=min(reply["logprobs"] for reply in answered),
        scale=_scale(entry, model, raw is None) if all(reply["logprobs"] for reply in answered) else None,
        usage=all(reply["usage"] for reply in answered),
        request_metrics=all(reply["metrics"] for reply in answered),
        request_speculation=any(reply["speculation"] for reply in answered),
        metrics=text is not None,
        families=families,
        speculation=_speculates(families, kind, refused, any(reply["speculation"] for reply in answered)),
        beam_search=_beam_search(entry, model) if raw is not None else False,
        refused=refused,
    )


def _get(entry: ServerEntry, url: str) -> httpx2.Response:
    with guarded_http.client(entry.private, entry.key, BOUNDS) as http:
        try:
            return http.get(url)
        except (httpx2.HTTPError, PlaygroundError) as error:
            raise failure(error, entry.name, BOUNDS) from error


def _models(entry: ServerEntry) -> tuple[tuple[tuple[str, int | None], ...], str]:
    """The models with the longest text that each takes, and who the server says owns the first."""
    reply = _get(entry, f"{entry.api}/models")
    if reply.status_code != 200:
        raise refusal(reply.status_code, words_of(reply.text), entry.name, reply.headers.get("location"))
    try:
        raw = json.loads(reply.text)["data"]
        listed = [model for model in raw if isinstance(model, dict) and isinstance(model.get("id"), str) and model["id"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise malformed("/v1/models") from error
    if not listed:
        raise ServerFailed("server_empty", Text("{server} serves no model.", "{server} 没有提供任何模型。"), server=entry.name)
    models = tuple((model["id"][:300], _length(model)) for model in listed[:200])
    return models, str(listed[0].get("owned_by"))


def _length(model: dict[str, Any]) -> int | None:
    meta = model.get("meta")
    found = (model.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    return next((length for length in found if isinstance(length, int) and length > 0), None)


def _identity(entry: ServerEntry, owner: str) -> tuple[Literal["vllm", "llama.cpp", "other"], str | None, int | None]:
    """Which program answers, by pages that only it has; its version, and the context where that is told there."""
    properties = _json(entry, f"{entry.root}/props")
    if owner == "llamacpp" or "build_info" in properties:
        settings = properties.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        build = properties.get("build_info")
        return "llama.cpp", build if isinstance(build, str) else None, context if isinstance(context, int) and context > 0 else None
    version = _json(entry, f"{entry.root}/version").get("version")
    if owner == "vllm":
        return "vllm", version if isinstance(version, str) else None, None
    return "other", version if isinstance(version, str) else None, None


def _json(entry: ServerEntry, url: str) -> dict[str, Any]:
    """A page as a JSON object; empty where the server has no such page."""
    try:
        reply = _get(entry, url)
        found = json.loads(reply.text) if reply.status_code == 200 else {}
    except (ValueError, RecursionError, PlaygroundError):
        return {}
    return found if isinstance(found, dict) else {}


def _metrics(entry: ServerEntry) -> str | None:
    text = metrics_text(entry)
    return text if text and re.search(r"(?m)^[A-Za-z_:][\w:]*(\{[^\n]*\})? [-+.\dNI]", text) else None


def _families(text: str | None) -> tuple[str, ...]:
    """The names of what a `/metrics` page publishes, without what histograms and counters add to them."""
    names = (re.split(r"[{ ]", line, maxsplit=1)[0] for line in (text or "").splitlines() if line and not line.startswith("#"))
    return tuple(sorted({re.sub(r"(_created|_bucket|_count|_sum|_total)$", "", name) for name in names}))


def _body(model: str, chat: bool, tokens: int) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    return {"model": model, "max_tokens": tokens, "temperature": 0.0, **asked}


def _stream(entry: ServerEntry, model: str, chat: bool) -> dict[str, Any] | None:
    """What comes back when everything is asked for; None where the path doesn't work even when nothing is."""
    everything = {"stream_options": {"include_usage": True}, "return_token_ids": True, "include_metrics": True}
    for extra in (everything, {"stream_options": {"include_usage": True}}, {}):
        most: int | None = MOST_LOGPROBS[0]
        tried = [*MOST_LOGPROBS, 0]
        while tried:
            most = tried.pop(0)
            asked = ({"logprobs": True, "top_logprobs": most} if chat else {"logprobs": most}) if most else {}
            try:
                return _streamed(entry, chat, {**_body(model, chat, 8), "stream": True, **extra, **asked})
            except ServerFailed as error:
                if error.code in ("server_gone", "server_slow", "server_key", "server_redirects", "server_endless"):
                    raise
                if error.values.get("status") in (404, 405, 501):
                    return None
                allowed = re.search(r"max(?:imum)?(?: allowed)?:? (?:of )?(\d+)", str(error.values.get("words", "")))
                if allowed and 0 < int(allowed[1]) < most:
                    tried = [int(allowed[1]), 0]
    return None


def _streamed(entry: ServerEntry, chat: bool, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"token_ids": False, "logprobs": 0, "usage": False, "metrics": False, "speculation": False}
    named: list[int] = []
    with opened(entry, chat, body, bounds=BOUNDS) as pieces:
        for chunk, _ in chunks(pieces, entry.name, BOUNDS.silence):
            choices = chunk.get("choices")
            choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
            found["token_ids"] |= isinstance(choice.get("token_ids"), list) and bool(choice["token_ids"])
            found["usage"] |= isinstance(chunk.get("usage"), dict)
            metrics = chunk.get("metrics")
            found["metrics"] |= isinstance(metrics, dict) or isinstance(chunk.get("timings"), dict)
            found["speculation"] |= isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict)
            named += [len(rivals) for rivals in _rivals(choice.get("logprobs"))]
    asked = body.get("top_logprobs") or body.get("logprobs") or 0
    found["logprobs"] = min(max(named), int(asked)) if named else 0
    return found


def _rivals(raw: Any) -> list[dict[str, float]]:
    """The likeliest tokens of each step as texts with numbers, in either shape."""
    if not isinstance(raw, dict):
        return []
    if isinstance(raw.get("content"), list):
        tops = [entry.get("top_logprobs") for entry in raw["content"] if isinstance(entry, dict)]
        return [{str(rival.get("token")): rival.get("logprob") for rival in top if isinstance(rival, dict)} for top in tops if isinstance(top, list)]
    tops = raw.get("top_logprobs")
    return [top for top in tops if isinstance(top, dict)] if isinstance(tops, list) else []


def _answers(entry: ServerEntry, chat: bool, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a reply that is not streamed."""
    with opened(entry, chat, body, bounds=BOUNDS) as pieces, closing(pieces):  # type: ignore[type-var]
        data = b"".join(pieces)
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise malformed("no JSON") from error
    if isinstance(raw, dict) and (words := error_words(raw)) is not None:
        raise refusal(200, words, entry.name)
    choices = raw.get("choices") if isinstance(raw, dict) else None
    if not isinstance(choices, list):
        raise malformed("no choices")
    return [choice for choice in choices if isinstance(choice, dict)]


def _takes(entry: ServerEntry, model: str, chat: bool, extra: dict[str, Any]) -> bool:
    try:
        _answers(entry, chat, {**_body(model, chat, 1), "temperature": 1.0, **extra})
    except ServerFailed:
        return False
    return True


def _scale(entry: ServerEntry, model: str, chat: bool) -> Literal["raw_log_probability", "processed_log_probability"] | None:
    """Whether the numbers of one step move with the temperature; None where that can't be seen."""
    steps = []
    for temperature in (1.0, 2.0):
        asked = {"logprobs": True, "top_logprobs": 5} if chat else {"logprobs": 5}
        try:
            choices = _answers(entry, chat, {**_body(model, chat, 1), "temperature": temperature, "seed": 1, **asked})
            steps.append(_rivals(choices[0].get("logprobs"))[0])
        except (ServerFailed, IndexError):
            return None
    both = [(steps[0][token], steps[1][token]) for token in steps[0] if token in steps[1]]
    if not both or not all(isinstance(number, float | int) for pair in both for number in pair):
        return None
    moved = max(abs(a - b) for a, b in both)
    return "processed_log_probability" if moved > SAME else "raw_log_probability"


def _beam_search(entry: ServerEntry, model: str) -> bool | None:
    """Whether two beams come back as two different texts; a server that doesn't know the word gives one, or one twice."""
    try:
        choices = _answers(entry, False, {**_body(model, False, 3), "use_beam_search": True, "n": 2})
    except ServerFailed:
        return False
    return len({choice.get("text") for choice in choices}) >= 2


def _speculates(families: tuple[str, ...], kind: str, refused: tuple[str, ...], told: bool) -> bool | None:
    """Whether the server guesses ahead: by its counters, by its figures, or by what it refuses because of it."""
    if told or any("spec_decode" in family for family in families):
        return True
    if kind == "vllm":
        return {"min_p", "logit_bias"} <= set(refused) if not families else False
    return None
