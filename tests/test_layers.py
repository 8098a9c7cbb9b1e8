"""The layers of the design, held against the imports: data flows one way, and nothing points back."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LEAVES = {"errors", "trace"}
BELOW_THE_SCREEN = {
    "errors", "trace", "terminal", "engine", "request", "presets", "expected", "line", "backends", "measures", "figures", "policies", "lessons",
    "experiments", "records",
}  # fmt: skip

#: Layer -> the layers that it may know. Every layer may know itself and the package's version.
MAY_KNOW: dict[str, set[str]] = {
    "errors": set(),
    "trace": {"errors"},
    "terminal": set(),
    "engine": LEAVES,
    "request": {"engine", "errors"},
    "presets": {"request", "errors"},
    "expected": {"engine", "request", *LEAVES},
    "line": {"expected", "request", *LEAVES},
    "backends": {"engine", "request", *LEAVES},
    "measures": LEAVES,
    "figures": {"measures", *LEAVES},
    "policies": {"engine", "request", *LEAVES},
    "lessons": BELOW_THE_SCREEN,
    "experiments": BELOW_THE_SCREEN,
    "records": BELOW_THE_SCREEN,
    "ui": BELOW_THE_SCREEN,
    "cli": BELOW_THE_SCREEN | {"ui"},
    "__main__": {"cli"},
    "app": {"ui"},
}

#: what_if re-decides recorded steps with the stages' own `redecide` and the one `draw`: the allowed second path to a token.
EXCEPTIONS: dict[str, set[str]] = {"playground.measures.what_if": {"engine"}}

#: Library -> the only layers that import it.
ONLY_IN: dict[str, set[str]] = {
    "gradio": {"ui", "app"},
    "spaces": {"ui", "app"},
    "plotly": {"figures"},
    "tokenizers": {"backends"},
    "safetensors": {"backends"},
    "gguf": {"backends"},
    "accelerate": {"backends"},
    "huggingface_hub": {"backends"},
    "torch": {"engine", "backends", "experiments"},
    "transformers": {"engine", "backends", "experiments"},
}

#: Names that load weights or a tokenizer; `Auto...` and `PreTrained...` are transformers'.
LOADERS = ("Auto", "PreTrained", "from_pretrained")

FORBIDDEN_FILES = {"utils", "helpers", "common", "misc", "manager"}


@dataclass(frozen=True)
class Import:
    """One import: the module (`playground.engine.task`, `gradio.themes`), its line, and whether it runs when the file is imported."""

    module: str
    line: int
    at_import: bool


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """`playground.engine.task` -> engine, `app` -> app, `playground` -> "" (the version, which everybody may know)."""
    if not module.startswith("playground"):
        return module.partition(".")[0]
    return module.split(".")[1] if "." in module else ""


def imports_of(source: str, module: str, modules: set[str]) -> list[Import]:
    """Every import in a file, inside functions too; `modules` are ours, so that `from package import file` names the file."""
    found: list[Import] = []

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import; say the whole name"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append(Import(whole if whole in modules else node.module or "", node.lineno, at_import))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, False)
            for child in node.orelse:
                visit(child, at_import)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                visit(child, at_import and not inside)

    visit(ast.parse(source), True)
    return found


def loaders_of(source: str) -> list[tuple[str, int]]:
    """Where a file names something that loads weights or a tokenizer."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "transformers":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        else:
            continue
        found += [(name, node.lineno) for name in names if name.startswith(LOADERS)]
    return found


def layer_faults(module: str, imports: list[Import]) -> list[str]:
    layer = layer_of(module)
    allowed = MAY_KNOW[layer] | {layer} | EXCEPTIONS.get(module, set()) if layer else set()
    faults = []
    for found in imports:
        top = found.module.partition(".")[0]
        if top == "playground":
            if (known := layer_of(found.module)) and known not in allowed:
                faults.append(f"{module}:{found.line}: {layer or 'playground'} must not know {known}")
        elif layer not in ONLY_IN.get(top, {layer}):
            faults.append(f"{module}:{found.line}: {top} is imported only in {', '.join(sorted(ONLY_IN[top]))}")
    return faults


def cycle_in(edges: dict[str, set[str]]) -> list[str]:
    """One cycle as the list of its modules, or nothing."""
    done: set[str] = set()
    path: list[str] = []

    def walk(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for other in sorted(edges.get(module, ())):
            if cycle := walk(other):
                return cycle
        path.pop()
        done.add(module)
        return []

    return next((cycle for module in sorted(edges) if (cycle := walk(module))), [])


def sources(root: Path = ROOT) -> dict[str, str]:
    files = [*sorted((root / "playground").rglob("*.py")), *root.glob("app.py")]
    return {module_name(path, root): path.read_text(encoding="utf-8") for path in files}


@pytest.fixture(scope="module")
def tree() -> dict[str, str]:
    return sources()


@pytest.fixture(scope="module")
def imports(tree: dict[str, str]) -> dict[str, list[Import]]:
    return {module: imports_of(source, module, set(tree)) for module, source in tree.items()}


def test_every_layer_is_in_the_table(tree: dict[str, str]) -> None:
    assert {layer_of(module) for module in tree} - {""} <= set(MAY_KNOW)


def test_layers_know_only_what_lies_below_them(imports: dict[str, list[Import]]) -> None:
    assert not [fault for module, found in imports.items() for fault in layer_faults(module, found)]


def test_weights_and_tokenizers_are_loaded_only_in_backends(tree: dict[str, str]) -> None:
    outside = {module: source for module, source in tree.items() if layer_of(module) != "backends"}
    assert not [f"{module}:{line}: {name}" for module, source in outside.items() for name, line in loaders_of(source)]


def test_no_module_imports_itself_in_a_circle(imports: dict[str, list[Import]]) -> None:
    edges = {module: {found.module for found in all_of if found.at_import and found.module in imports} for module, all_of in imports.items()}
    assert cycle_in(edges) == []


def test_the_table_itself_has_no_circle() -> None:
    screens = {"lessons", "experiments", "records"}  # siblings on one level: their files are held apart by the circle test
    assert cycle_in({layer: known - screens for layer, known in MAY_KNOW.items()}) == []


def test_files_are_named_for_what_they_hold() -> None:
    files = [path for folder in ("playground", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert not [str(path.relative_to(ROOT)) for path in files if FORBIDDEN_FILES & set(path.stem.split("_"))]


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("playground.engine.task", "def f():\n    import gradio as gr", "gradio is imported only in app, ui"),
        ("playground.cli", "from gradio.themes import Base", "gradio is imported only in app, ui"),
        ("playground.ui.page", "import plotly.graph_objects as go", "plotly is imported only in figures"),
        ("playground.ui.page", "import torch", "torch is imported only in"),
        ("playground.engine.task", "from playground import request", "engine must not know request"),
        ("playground.engine.task", "from playground.backends.local import load", "engine must not know backends"),
        ("playground.measures.kv", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from playground.engine.task import Task", "know engine"),
        ("playground.trace", "import playground.ui", "trace must not know ui"),
        ("playground", "from playground.trace import Trace", "playground must not know trace"),
    ],
)
def test_a_breach_is_seen(module: str, source: str, fault: str) -> None:
    modules = {"playground", "playground.request", "playground.trace", "playground.ui"}
    (found,) = layer_faults(module, [i for i in imports_of(source, module, modules) if i.module != "typing"])
    assert fault in found


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AutoModelForCausalLM",
        "from transformers.models.auto import AutoTokenizer",
        "import transformers\nmodel = transformers.AutoModel",
        "model = LlamaForCausalLM.from_pretrained(folder)",
    ],
)
def test_a_loader_is_seen(source: str) -> None:
    assert loaders_of(source)


def test_a_circle_is_seen_and_a_late_import_is_none() -> None:
    modules = {"playground.a", "playground.b"}
    late = imports_of("def f():\n    from playground.b import x", "playground.a", modules)
    early = imports_of("class A:\n    from playground import b", "playground.a", modules)
    assert [(i.module, i.at_import) for i in late + early] == [("playground.b", False), ("playground.b", True)]
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
