"""The README, held against the disk: its tree, its commands, its paths and the Space's front matter."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from playground.backends.embedded import HUB_ID

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FRONT_MATTER, BODY = README.removeprefix("---\n").split("\n---\n", 1)


def tree_paths() -> list[str]:
    """The paths of the README's tree; two spaces of indent are one folder deeper, folders end in a slash."""
    block = re.search(r"```tree\n(.*?)```", BODY, re.DOTALL)
    assert block, "the README has no tree"
    paths: list[str] = []
    folders: list[str] = []
    for line in block[1].splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        del folders[depth:]
        paths.append("".join(folders) + name)
        if name.endswith("/"):
            folders.append(name)
    return paths


def holds_files(folder: Path) -> bool:
    """Whether a clone would have this folder: git keeps no empty ones."""
    return any(path.is_file() and "__pycache__" not in path.parts for path in folder.rglob("*"))


def requirements() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {requirement.name: requirement for requirement in parsed}


@pytest.mark.parametrize("path", tree_paths())
def test_what_the_tree_names_exists(path: str) -> None:
    assert holds_files(ROOT / path) if path.endswith("/") else (ROOT / path).is_file()


def test_the_tree_names_every_folder_and_every_file_that_stands_alone() -> None:
    package = ROOT / "playground"
    folders = {f"{path.relative_to(ROOT).as_posix()}/" for path in package.rglob("*") if path.is_dir() and holds_files(path)}
    alone = {path.relative_to(ROOT).as_posix() for folder in (package, package / "engine") for path in folder.glob("[!_]*.py")}
    assert folders | alone <= set(tree_paths())


def test_make_targets_exist() -> None:
    named = set(re.findall(r"(?:`| {4})make ([a-z][a-z-]*)", BODY))
    assert {"run", "test"} <= named
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_commands_exist() -> None:
    named = set(re.findall(r"python -m playground ([a-z]+)", BODY))
    assert named
    helped = subprocess.run([sys.executable, "-m", "playground", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    listed = re.search(r"\{([a-z,]+)\}", helped)
    assert listed and named <= set(listed[1].split(","))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:playground|tests|assets)/[\w./]*)`", BODY))))
def test_paths_in_the_text_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_modules_that_make_starts_exist() -> None:
    modules = re.findall(r"-m (playground[\w.]*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    paths = [ROOT / module.replace(".", "/") for module in modules]
    assert paths and all(path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() for path in paths)


def test_the_space_runs_what_the_requirements_allow() -> None:
    front = yaml.safe_load(FRONT_MATTER)
    gradio = requirements()["gradio"]
    # A Space runs the lowest version allowed; a machine may have a newer one, so a release on the index can't turn this test red.
    (lowest,) = (Version(bound.version) for bound in gradio.specifier if bound.operator == ">=")
    assert Version(front["sdk_version"]) == lowest
    assert front["sdk_version"] in gradio.specifier
    assert front["sdk"] == "gradio" and (ROOT / front["app_file"]).is_file()
    assert isinstance(front["python_version"], str) and tuple(map(int, front["python_version"].split("."))) >= (3, 11)
    assert len(front["short_description"]) <= 60
    assert front["license"] == "apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_a_space_preloads_the_default_model() -> None:
    front = yaml.safe_load(FRONT_MATTER)
    assert front["models"] == [HUB_ID]
    for entry in front["preload_from_hub"]:
        repository, files, revision = entry.split()
        assert repository == HUB_ID
        assert "model.safetensors" in files.split(",") and re.fullmatch(r"[0-9a-f]{40}", revision)


@pytest.mark.parametrize("name", sorted(requirements()))
def test_what_is_installed_is_in_the_range(name: str) -> None:
    assert requirements()[name].specifier.contains(version(name), prereleases=True)
