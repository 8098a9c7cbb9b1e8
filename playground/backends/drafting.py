"""What speculative lanes need from the backend: a draft model of the same tokenizer, and earlier runs to look things up in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

from playground.backends.catalog import CatalogEntry, LoadedModel, paired_draft, public_host, resolve
from playground.errors import PlaygroundError, Text
from playground.request import Lane, Request

#: How many earlier runs of a model are kept, and how many tokens of each.
KEPT_RUNS = 32
KEPT_TOKENS = 4096

_earlier: WeakKeyDictionary[LoadedModel, deque[tuple[int, ...]]] = WeakKeyDictionary()


def draft_name(lane: Lane, entry: CatalogEntry) -> str | None:
    """The catalog name of the model that drafts for a lane on this model; None if the lane needs none."""
    asked = lane.strategy.drafts_with
    return asked if asked is None else asked or paired_draft(entry).id


def models_of(request: Request, public: bool | None = None) -> set[str]:
    """The catalog ids of every model that a request needs here, the drafters' included."""
    entries = [(lane, resolve(lane.model or request.model, public)) for lane in request.lanes if lane.server is None]
    drafts = [name for lane, entry in entries if (name := draft_name(lane, entry)) is not None]
    return {entry.id for _, entry in entries} | {resolve(name, public).id for name in drafts}


def load_draft(lane: Lane, loaded: LoadedModel, load: Callable[[str | None], LoadedModel]) -> tuple[LoadedModel, int] | None:
    """The model that drafts for a lane, and how many ids it shares with the lane's; None if the lane needs none."""
    name = draft_name(lane, loaded.entry)
    if name is None:
        return None
    draft = load(name)
    return draft, shared_ids(loaded, draft)


def shared_ids(target: LoadedModel, draft: LoadedModel) -> int:
    """How many ids, from 0 on, are the same tokens in both tokenizers; raises where an id is another token, or known to one alone in between.

    Vocabularies of one size can be different ones, and equal ones can be padded to different sizes: every id is compared.
    """
    ours, theirs = ({token: text for text, token in model.tokenizer.get_vocab().items()} for model in (target, draft))
    both = ours.keys() & theirs.keys()
    alone = min(ours.keys() ^ theirs.keys(), default=None)
    differs = next((token for token in sorted(both) if ours[token] != theirs[token]), None)
    if differs is None and alone is not None and alone < max(both, default=0):
        differs = alone
    if differs is not None:
        raise PlaygroundError(
            "draft_tokenizer",
            Text(
                "{draft} can't draft for {target}: a draft model needs the same tokenizer, and token {token} is {ours} here and {theirs} there.",
                "{draft} 不能为 {target} 起草：草稿模型须使用同一分词器，而词元 {token} 在一方是 {ours}，在另一方是 {theirs}。",
            ),
            draft=draft.entry.name, target=target.entry.name, token=differs,
            ours=repr(ours.get(differs))[:40], theirs=repr(theirs.get(differs))[:40],
        )  # fmt: skip
    return min(target.vocabulary.size, draft.vocabulary.size) if alone is None else alone


def earlier_runs(loaded: LoadedModel) -> tuple[tuple[int, ...], ...]:
    """Prompt and output of this model's finished runs in this process, newest last.

    None on a public host: there a rejected guess would show one visitor a piece of another's text.
    """
    return () if public_host() else tuple(_earlier.get(loaded, ()))


def remember(loaded: LoadedModel, ids: tuple[int, ...]) -> None:
    """Keep a finished run for later ones to look things up in."""
    kept = _earlier.setdefault(loaded, deque(maxlen=KEPT_RUNS))
    if ids[-KEPT_TOKENS:] not in kept:
        kept.append(ids[-KEPT_TOKENS:])
