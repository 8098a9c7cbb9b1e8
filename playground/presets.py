"""Ready-made lanes, and the classic experiment that the page opens with."""

from __future__ import annotations

from typing import Any

from playground.errors import Text

#: The die with which greedy, top-p and top-k write the same five tokens and part at the sixth, on the default model.
CLASSIC_SEED = 66

CLASSIC_PROMPT = "Explain why KV cache matters for LLM serving in three bullets."

#: Each preset is a lane as plain values: `Lane.from_json` checks it like any other.
PRESETS: tuple[tuple[Text, dict[str, Any]], ...] = (
    (Text("greedy", "贪心"), {"name": "greedy", "strategy": "greedy"}),
    (Text("beam 4", "束搜索，4 束"), {"name": "beam 4", "strategy": "beam", "knobs": {"num_beams": 4}}),
    # `generate` inherits top-k 50 from the library when it samples: the lane says so, one click removes it.
    (
        Text("top-p 0.95, temperature 0.8", "top-p 0.95，温度 0.8"),
        {"name": "top-p", "strategy": "sample", "defaults": "inherit", "knobs": {"temperature": 0.8, "top_p": 0.95}},
    ),
    (
        Text("top-k 50, temperature 0.8", "top-k 50，温度 0.8"),
        {"name": "top-k", "strategy": "sample", "knobs": {"temperature": 0.8, "top_k": 50}},
    ),
    (Text("pure sampling", "纯采样"), {"name": "pure sampling", "strategy": "sample"}),
    (Text("min-p 0.1", "min-p 0.1"), {"name": "min-p", "strategy": "sample", "knobs": {"min_p": 0.1}}),
    (
        Text("cold: temperature 0.2", "低温：0.2"),
        {"name": "cold", "strategy": "sample", "knobs": {"temperature": 0.2}},
    ),
    (Text("hot: temperature 1.8", "高温：1.8"), {"name": "hot", "strategy": "sample", "knobs": {"temperature": 1.8}}),
    (
        Text("no repeats: penalty 1.3, no 3-gram twice", "不重复：惩罚 1.3，三元组不重复"),
        {"name": "no repeats", "strategy": "greedy", "knobs": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}},
    ),
    (
        Text("what generate() inherits", "generate() 的默认采样"),
        {"name": "generate()", "strategy": "sample", "defaults": "inherit"},
    ),
    (
        Text("mirostat v2, surprise 3 bits", "mirostat v2，惊奇度 3 比特"),
        {"name": "mirostat", "strategy": "sample", "knobs": {"mirostat_tau": 3.0, "mirostat_eta": 0.1}},
    ),
    (
        Text("speculative: n-gram lookup, greedy", "投机解码：n-gram 查找，贪心"),
        {"name": "speculative", "strategy": "speculative_greedy", "knobs": {"drafter": "ngram", "k": 6, "schedule": "fixed"}},
    ),
)

#: Guesses by n-gram lookup, always as many as k: what they win and lose is plain to see. The strategy's own default adapts.
SPECULATIVE = PRESETS[-1][1]

CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        self.balance = self.balance - amount
        return self.balance
"""

#: The classic pair, plain and speculative, on a prompt that makes the model copy and on one that doesn't.
PAIRS: dict[str, tuple[Text, str]] = {
    "copying": (
        Text("plain and speculative, on code to be rewritten", "普通与投机：改写一段代码"),
        f"Rewrite this code with the class name BankAccount instead of Account. Change nothing else.\n\n{CODE}",
    ),
    "not_copying": (
        Text("plain and speculative, on a story to be invented", "普通与投机：编一个故事"),
        "Write the first lines of a story about a robot who learns to cook.",
    ),
}

CLASSIC_LANES = tuple(lane for _, lane in PRESETS[:4])


def classic() -> dict[str, Any]:
    """The classic experiment as plain values."""
    return {"prompt": {"text": CLASSIC_PROMPT}, "lanes": [{"max_new_tokens": 80, **lane} for lane in CLASSIC_LANES], "seed": CLASSIC_SEED}


def pair(name: str) -> dict[str, Any]:
    """One of the pairs as plain values."""
    lanes = [{"max_new_tokens": 80, **lane} for lane in ({"name": "plain", "strategy": "greedy"}, SPECULATIVE)]
    return {"prompt": {"text": PAIRS[name][1]}, "lanes": lanes, "seed": CLASSIC_SEED}
