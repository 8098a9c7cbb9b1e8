"""The commands that start the two servers of the experiment: the baseline, and each way of speculating.

`CHECKED` says for each which arguments somebody saw work, and where: a command that was only read in vLLM's source says that.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any, Literal

from playground.errors import BadValue, Text

#: The version whose arguments these are.
VLLM = "0.32.0"

Checked = Literal["ran", "read"]
CHECKED: dict[Checked, Text] = {
    "ran": Text(f"These arguments ran on vLLM {VLLM} (CPU build).", f"这些参数已在 vLLM {VLLM}（CPU 版）上运行过。"),
    "read": Text(f"Arguments as in the source of vLLM {VLLM}; not run.", f"参数依据 vLLM {VLLM} 源码；未实际运行。"),
}

#: So that every request tells its own times, and every step of its speculation; a server that doesn't speculate refuses to start with the latter.
TELLING_TIMES = ("--enable-per-request-metrics",)
TELLING_STEPS = ("--per-request-spec-decode-metrics", "detailed")

#: The number of guesses that vLLM takes at most.
MOST_GUESSES = 128


@dataclass(frozen=True)
class ServeCommand:
    """One server to start: the shell line, what it is, what to know about it, and whether it was seen to work."""

    name: str
    title: Text
    command: str
    config: dict[str, Any] | None
    checked: Checked
    notes: tuple[Text, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "title": self.title.to_json(), "command": self.command, "config": self.config,
            "checked": {"how": self.checked, "text": CHECKED[self.checked].to_json()}, "notes": [note.to_json() for note in self.notes],
        }  # fmt: skip


def commands(model: str = "Qwen/Qwen3-8B", draft: str = "Qwen/Qwen3-0.6B", eagle: str = "", k: int = 4, port: int = 8000) -> list[ServeCommand]:
    """The baseline and five ways of speculating for one model: the baseline on `port`, the speculating server on the next.

    `draft` and `eagle` are models of the user's; where `eagle` is empty its command holds a place for one.
    """
    _check(k, port, model, draft, eagle)
    beside = port + 1
    return [
        serve("baseline", Text("Baseline: no speculation", "基线：不推测"), model, None, port, "ran"),
        serve(
            "ngram",
            Text("N-gram: guesses are looked up in the prompt and the text so far", "N-gram：从提示和已生成文本中查找草稿"),
            model,
            {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            beside,
            "ran",
            Text(
                "Needs no second model. Pays where the answer repeats the prompt: editing, code, extraction.",
                "无需第二个模型。适合答案重复提示内容的任务：改写、代码、抽取。",
            ),
        ),
        serve(
            "draft_model",
            Text("Draft model: a smaller one guesses", "草稿模型：由小模型猜测"),
            model,
            {"method": "draft_model", "model": draft, "num_speculative_tokens": k},
            beside,
            "ran",
            Text(
                "Both must have the same vocabulary, or the server refuses. Both share the GPU's memory.",
                "两者词表必须相同，否则服务器拒绝启动。两者共享显存。",
            ),
        ),
        serve(
            "eagle3",
            Text("EAGLE-3: a trained head guesses from hidden states", "EAGLE-3：训练好的头根据隐藏状态猜测"),
            model,
            {"method": "eagle3", "model": eagle or "EAGLE3-HEAD-FOR-YOUR-MODEL", "num_speculative_tokens": min(k, 3)},
            beside,
            "read",
            Text("The head was trained for one target model and works with no other.", "该头只为一个目标模型训练，不能用于其他模型。"),
        ),
        serve(
            "mtp",
            Text("MTP: the model's own multi-token heads guess", "MTP：模型自带的多词元头猜测"),
            model,
            {"method": "mtp", "num_speculative_tokens": 1},
            beside,
            "read",
            Text(
                "Only for models that come with such heads (DeepSeek-V3, GLM-4.5, Qwen3-Next).",
                "仅适用于自带此类头的模型（DeepSeek-V3、GLM-4.5、Qwen3-Next）。",
            ),
        ),
        serve(
            "suffix",
            Text("Suffix decoding: guesses from a tree of earlier texts", "后缀解码：从历史文本的后缀树中猜测"),
            model,
            {"method": "suffix", "num_speculative_tokens": max(k, 16)},
            beside,
            "read",
            Text(
                "Needs arctic-inference 0.1.1. How many guesses a step makes varies; k is the most.",
                "需要 arctic-inference 0.1.1。每步猜测数可变，k 为上限。",
            ),
        ),
    ]


def classic(k: int = 4, port: int = 8000) -> list[ServeCommand]:
    """The pair of the first papers: Llama-2-7B, guessed for by a Llama of 160 million parameters."""
    _check(k, port)
    target, draft = "meta-llama/Llama-2-7b-hf", "JackFram/llama-160m"
    return [
        serve(
            "classic_baseline",
            Text("Classic pair, baseline", "经典组合：基线"),
            target,
            None,
            port,
            "read",
            Text(
                "The model is gated: accept Meta's licence on the Hub and set HF_TOKEN.", "该模型需授权：请在 Hub 上接受 Meta 的许可并设置 HF_TOKEN。"
            ),
            Text("It is a base model: it continues a text and has no chat template.", "这是基座模型：续写文本，没有对话模板。"),
            dtype="float16",
        ),
        serve(
            "classic_draft",
            Text("Classic pair, with llama-160m as the draft model", "经典组合：以 llama-160m 为草稿模型"),
            target,
            {"method": "draft_model", "model": draft, "num_speculative_tokens": k},
            port + 1,
            "read",
            Text(
                "Both have Llama's vocabulary of 32,000 tokens, which is what makes them a pair.",
                "两者都使用 Llama 的 32,000 词元词表，因此可以配对。",
            ),
            Text(
                "llama-160m reads at most 2,048 tokens: keep prompt and answer below that.", "llama-160m 最多读 2,048 个词元：提示加回答须少于此数。"
            ),
            Text(
                "It is 40 times smaller and trained apart from the target: expect an acceptance well below that of a trained head.",
                "它小约 40 倍，且与目标模型分开训练：接受率会明显低于训练好的头。",
            ),
            dtype="float16",
            max_model_len=2048,
        ),
    ]


def serve(
    name: str, title: Text, model: str, config: dict[str, Any] | None, port: int, checked: Checked, *notes: Text,
    dtype: str | None = None, max_model_len: int | None = None,
) -> ServeCommand:  # fmt: skip
    """One command, quoted for a shell whatever the names in it are."""
    words = ["vllm", "serve", model, "--port", str(port), *TELLING_TIMES]
    if dtype is not None:
        words += ["--dtype", dtype]
    if max_model_len is not None:
        words += ["--max-model-len", str(max_model_len)]
    if config is not None:
        words += [*TELLING_STEPS, "--speculative-config", json.dumps(config, ensure_ascii=False)]
    return ServeCommand(name, title, shlex.join(words), config, checked, notes)


def experiment(baseline: str, speculative: str, concurrency: tuple[int, ...] = (1, 2, 4, 8), repeats: int = 3) -> str:
    """The command that compares the two servers."""
    loads = ",".join(map(str, concurrency))
    return shlex.join(["python", "-m", "playground", "load", baseline, speculative, "--concurrency", loads, "--repeats", str(repeats)])


def _check(k: int, port: int, *names: str) -> None:
    if not 1 <= k <= MOST_GUESSES:
        raise BadValue(
            "serve_k", Text("k must be in [1, {most}], got {value}.", "k 必须在 [1, {most}] 内，给出的是 {value}。"), most=MOST_GUESSES, value=k
        )
    if not 1 <= port <= 65534:
        raise BadValue("serve_port", Text("A port is in [1, 65534], got {value}.", "端口必须在 [1, 65534] 范围内，而给出的是 {value}。"), value=port)
    for name in names:
        if len(name) > 300 or name.startswith("-") or any(not character.isprintable() or character.isspace() for character in name):
            raise BadValue(
                "serve_model",
                Text("A model is a Hub id or a folder, without spaces, got {name}.", "模型应为 Hub 名称或文件夹，不含空格，而给出的是 {name}。"),
                name=repr(name)[:80],
            )  # fmt: skip
