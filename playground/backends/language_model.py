"""A transformers model as a LanguageModel: over its KV cache, or over the whole text where it has none that can be used."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from playground.backends.cores import threads
from playground.backends.cpu_linear import SplitLinears
from playground.backends.growing_cache import GrowingLayer, growing_cache
from playground.errors import PlaygroundError, Text

#: What transformers' decoder-only models call the norm before the head, and the list of their layers.
FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
LAYER_LISTS = ("layers", "h", "blocks")


class OverWeights:
    """What every view of a loaded model has, whatever it keeps of the text."""

    def __init__(self, weights: Any, linears: SplitLinears | None = None) -> None:
        self.weights = weights
        self.linears = linears
        self.config = weights.config.get_text_config(decoder=True)
        self.device = weights.get_input_embeddings().weight.device
        self.vocabulary_size = int(weights.get_output_embeddings().weight.shape[0])
        self.context: int | None = getattr(self.config, "max_position_embeddings", None)
        self.layers = int(self.config.num_hidden_layers)

    def head(self, hidden: Tensor) -> Tensor:
        base = self.weights.base_model
        norm = next(getattr(base, name) for name in FINAL_NORMS if hasattr(base, name))
        return self.weights.get_output_embeddings()(norm(hidden)).float()

    def _run(self, tokens: Tensor, keep: int, hidden: Sequence[int], **keeping: Any) -> Any:
        """One forward over `tokens` `[B, T]`; its logits are cut to the last `keep` positions, `[B, keep, V]` in float32."""
        if self.device.type == "cpu":
            threads().adapt()
        # A few tokens at a time are bound by reading the weights; more of them are an ordinary matrix product.
        spread = self.linears.active() if self.linears is not None and tokens.numel() <= self.linears.rows else nullcontext()
        if "logits_to_keep" in parameters_of(type(self.weights)):
            keeping["logits_to_keep"] = keep
        with spread:
            if hidden and max(hidden) >= self.config.num_hidden_layers:
                raise ValueError("the last layer's hidden states are already behind the final norm: take the logits")
            output = self.weights(tokens, output_hidden_states=bool(hidden), **keeping)
        output.logits = output.logits[:, -keep:].float()
        return output


@cache
def parameters_of(kind: type) -> frozenset[str]:
    """The names that a model's forward takes."""
    return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from _tensors(value.values() if isinstance(value, dict) else value)


class TransformersModel(OverWeights):
    """One lane's view of a loaded transformers model: shared weights, its own KV cache."""

    def __init__(self, weights: Any, linears: SplitLinears | None = None, cache: Any = None, reads_in_pieces: bool = True, read: int = 0) -> None:
        super().__init__(weights, linears)
        self.cache = cache if cache is not None else growing_cache(weights.config)
        self.reads_in_pieces = reads_in_pieces
        self._read = read  # recurrent states don't tell how many tokens they have seen

    @property
    def length(self) -> int:
        counted = any(isinstance(layer, CacheLayerMixin) for layer in self.cache.layers)
        return int(self.cache.get_seq_length()) if counted else self._read

    @property
    def cache_length(self) -> int:
        return self.length

    @property
    def rows(self) -> int:
        tensor = next(self._held(), None)
        return 1 if tensor is None else int(tensor.shape[0])

    @property
    def cache_bytes(self) -> int:
        """What the tokens take; a growing layer's spare room behind them is not counted."""
        return sum(tensor.nbytes for tensor in self._held())

    @property
    def can_roll_back(self) -> bool:
        # A state that reads no pieces can't verify several guesses in one forward either.
        return self.reads_in_pieces and all(_can_shrink(layer) for layer in self.cache.layers)

    @property
    def can_exit_early(self) -> bool:
        base = self.weights.base_model
        return self.can_roll_back and base is not self.weights and any(len(base._modules[name]) == self.layers for name in _layer_lists(base))

    def _held(self) -> Iterator[Tensor]:
        """The tensors of the cache: keys and values, and whatever else a layer keeps (recurrent and convolution states)."""
        for layer in self.cache.layers:
            kept = (value for name, value in vars(layer).items() if not name.startswith("_"))  # `_room` is spare, `_sliding_window_tensor` a number
            yield from (tensor for tensor in _tensors(kept) if tensor.numel())

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor | tuple[Tensor, dict[int, Tensor]]:
        output = self._run(tokens, keep, hidden, cache=self.cache, use_cache=True)
        self._read += tokens.shape[1]
        return (output.logits, {layer: output.hidden_states[layer] for layer in hidden}) if hidden else output.logits

    def truncate(self, length: int) -> None:
        surplus = self.length - length
        if not 0 <= surplus <= self.length:
            raise ValueError(f"can't truncate a cache of {self.length} tokens to {length}")
        if surplus and not self.can_roll_back:
            raise PlaygroundError(
                "cache_not_croppable",
                Text("The KV cache of {model} can't be rolled back.", "{model} 的 KV 缓存无法回滚。"),
                model=self.config.model_type,
            )
        if surplus:
            self.cache.crop(-surplus)
            self._read = length

    def select_rows(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long).to(self.device, non_blocking=True)
        for layer in self.cache.layers:
            if isinstance(layer, GrowingLayer):
                layer.select_rows(rows)
            else:
                layer.reorder_cache(index)  # of a hybrid layer its states too, which `batch_select_indices` leaves behind

    def reserve(self, tokens: int) -> None:
        for layer in self.cache.layers:
            if isinstance(layer, GrowingLayer):
                layer.reserve(tokens)

    def fork(self) -> TransformersModel:
        """Copies the layer objects, not their tensors, where a layer can share them until either side appends."""
        cache = copy.copy(self.cache)
        cache.layers = [layer.fork() if isinstance(layer, GrowingLayer) else copy.deepcopy(layer) for layer in self.cache.layers]
        return TransformersModel(self.weights, self.linears, cache, self.reads_in_pieces, self._read)

    def early_exit(self, layer: int) -> TransformersModel:
        """A shallow copy of the model with its first layers only; `config` is copied too, never edited."""
        if not self.can_exit_early:
            raise _no_early_exit(self.config.model_type)
        weights, base, cache = copy.copy(self.weights), copy.copy(self.weights.base_model), copy.copy(self.cache)
        weights._modules, base._modules = dict(self.weights._modules), dict(self.weights.base_model._modules)
        base.config = copy.copy(base.config)
        base.config.num_hidden_layers = layer
        name = next(_layer_lists(base))
        base._modules[name] = base._modules[name][:layer]
        weights._modules[self.weights.base_model_prefix] = base
        cache.layers = self.cache.layers[:layer]  # the same layer objects: what grows or shrinks here does so there
        return TransformersModel(weights, self.linears, cache)


def _can_shrink(layer: Any) -> bool:
    """Whether a cache layer can forget its newest tokens at any time: a window or a recurrent state has dropped what stood before."""
    kept_whole = not getattr(layer, "is_sliding", False) and not isinstance(layer, LinearAttentionCacheLayerMixin)
    return kept_whole and getattr(layer, "is_croppable", False)


def _layer_lists(base: Any) -> Iterator[str]:
    return (name for name in LAYER_LISTS if isinstance(base._modules.get(name), nn.ModuleList))


def _no_early_exit(kind: str) -> PlaygroundError:
    return PlaygroundError(
        "early_exit_impossible",
        Text("A model of the kind {kind} can't end after its first layers.", "{kind} 类模型无法在前几层之后提前退出。"),
        kind=kind,
    )


class WholeTextModel(OverWeights):
    """A model that keeps nothing between forwards but the text itself: each forward reads all of it."""

    reads_in_pieces = False  # a piece would read everything before it once more
    can_roll_back = True
    can_exit_early = False
    cache_length = 0
    cache_bytes = 0

    def __init__(self, weights: Any, linears: SplitLinears | None = None, text: Tensor | None = None) -> None:
        super().__init__(weights, linears)
        self._text = text if text is not None else torch.empty(1, 0, dtype=torch.long, device=self.device)  # [B, T]

    @property
    def length(self) -> int:
        return int(self._text.shape[1])

    @property
    def rows(self) -> int:
        return int(self._text.shape[0])

    def forward(self, tokens: Tensor, keep: int = 1, hidden: Sequence[int] = ()) -> Tensor | tuple[Tensor, dict[int, Tensor]]:
        text = torch.cat([self._text, tokens], dim=1) if self.length else tokens
        uncached = {"use_cache": False} if "use_cache" in parameters_of(type(self.weights)) else {}
        output = self._run(text, keep, hidden, **uncached)
        self._text = text
        return (output.logits, {layer: output.hidden_states[layer][:, -tokens.shape[1] :] for layer in hidden}) if hidden else output.logits

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"can't truncate a text of {self.length} tokens to {length}")
        self._text = self._text[:, :length]

    def select_rows(self, rows: Sequence[int]) -> None:
        self._text = self._text[list(rows)]

    def reserve(self, tokens: int) -> None:
        """There is no cache to make room in."""

    def fork(self) -> WholeTextModel:
        return WholeTextModel(self.weights, self.linears, self._text)

    def early_exit(self, layer: int) -> WholeTextModel:
        raise _no_early_exit(self.config.model_type)
