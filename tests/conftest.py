"""What the tests share: the default model, fetched once into the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from playground.backends import embedded
from playground.backends.catalog import Catalog, LoadedModel
from playground.backends.progress import unreported


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The folder of the embedded default model; the first session on a machine downloads and converts it."""
    return embedded.ensure_model(unreported)


@pytest.fixture(scope="session")
def default_model(default_model_folder: Path) -> LoadedModel:
    """The embedded default model on the CPU in float32."""
    return Catalog().get(device="cpu", dtype="float32")
