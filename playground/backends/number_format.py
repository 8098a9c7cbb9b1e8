"""The number format in which a file holds a model's weights, read from the file itself: what it is computed in is another matter."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from gguf import GGUFReader
from safetensors import SafetensorError, safe_open

#: What a conversion leaves beside the weights: the format that they had before it.
BEFORE_CONVERSION = "number_format.json"

#: Names of safetensors' formats as they are called elsewhere; any other stands as it is.
SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3", "F8_E5M2": "float8_e5m2"}


def of_gguf(file: Path) -> str | None:
    """The format of most of a GGUF file's numbers, by the name that its tensors give ("Q4_1"); vectors such as norms don't count."""
    return _most({tensor.name: (tensor.tensor_type.name, int(tensor.n_elements)) for tensor in GGUFReader(file).tensors if len(tensor.shape) > 1})


def of_folder(folder: Path) -> str | None:
    """The format of most of the numbers in a folder's weights, or the one that they had before a conversion; None if no file tells."""
    try:
        before = json.loads((folder / BEFORE_CONVERSION).read_text("utf-8"))
        return before if isinstance(before, str) and len(before) <= 40 else None
    except (OSError, ValueError):
        pass
    found: dict[str, tuple[str, int]] = {}
    try:
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "np") as weights:
                for name in weights.keys():
                    part = weights.get_slice(name)
                    shape = part.get_shape()
                    if len(shape) > 1:
                        count = 1
                        for size in shape:
                            count *= size
                        found[f"{file.name} {name}"] = (SAFETENSORS.get(part.get_dtype(), part.get_dtype()), count)
    except (OSError, SafetensorError):
        return None
    return _most(found)


def _most(tensors: dict[str, tuple[str, int]]) -> str | None:
    numbers: Counter[str] = Counter()
    for name, count in tensors.values():
        numbers[name] += count
    return numbers.most_common(1)[0][0] if numbers else None
