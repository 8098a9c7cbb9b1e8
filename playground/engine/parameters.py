"""What the page "Parameters" says of each knob beyond its declaration: what larger does, its cost, its mistakes, other libraries.

The texts stand here, by the knob's name, and not in the classes, so that the algorithms stay readable. Names
in other libraries are part of the declaration (`Knob.names`); here stands how the same name differs. Facts:
transformers 5.24's source, vLLM 0.32, OpenAI's API reference, llama.cpp's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from playground.errors import Text

Alive = Literal["fewer", "more", "unchanged", "depends"]
ALIVE: tuple[Alive, ...] = get_args(Alive)


@dataclass(frozen=True)
class Parameter:
    """One knob's entry on the page "Parameters".

    `alive` says what a larger value (a longer list, a switch that is on) does to the number of tokens alive, `why` in words.
    `differences` maps a library to what differs there; a library with neither a name nor a difference doesn't have the knob.
    `examples` are settings at which the knob is drawn; `at_start` draws them at the first step of the output.
    """

    larger: Text
    alive: Alive
    why: Text
    cost: Text
    mistake: Text
    differences: Mapping[str, Text] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()
    at_start: bool = False


_NOTHING_REMOVED = Text("No token is removed; only the probabilities change.", "不移除任何词元，只改变概率。")
_FREE = Text("Nothing that could be noticed beside a forward pass.", "与一次前向计算相比可以忽略。")
_PER_LOGIT = Text("One operation per logit: far less than a forward pass.", "每个 logit 一次运算：远小于一次前向计算。")
_HISTORY = Text(
    "One look at the tokens so far: grows with the text, and stays far below a forward pass.",
    "查看一遍已有词元：随文本变长而增加，但远小于一次前向计算。",
)
_SOFTMAX = Text("One softmax over the vocabulary: far less than a forward pass.", "对整个词表做一次 softmax：远小于一次前向计算。")
_SORT = Text(
    "A softmax and a full sort of the vocabulary: the dearest kind of stage, still well below a forward pass.",
    "一次 softmax 加上整个词表的排序：各阶段中最贵的一类，但仍明显小于一次前向计算。",
)
_CHOOSES = Text("It removes nothing: it chooses among what the stages left.", "不移除任何词元：它只在各阶段留下的词元中选择。")
_LEFT_CORE = Text("In version 5 no longer in the core: custom code on the Hub.", "第 5 版起不在核心库中，而是 Hub 上的自定义代码。")
_SPECULATIVE_CONFIG = Text("In --speculative-config.", "写在 --speculative-config 中。")
_IDS = Text("Takes token ids, no text.", "接受词元编号，不接受文本。")

PARAMETERS: dict[str, Parameter] = {
    # --- processors --------------------------------------------------------------------------
    "sequence_bias": Parameter(
        larger=Text(
            "A larger number makes the sequence's last token likelier once the rest was said: +1 multiplies its odds by e, about 2.7.",
            "数值越大，前面部分已经出现时，序列的最后一个词元越容易出现：+1 使其几率乘以 e，约 2.7 倍。",
        ),
        alive="unchanged",
        why=Text("Even −100 leaves a token alive, with a probability next to 0.", "即使 −100，词元仍然存活，只是概率几乎为 0。"),
        cost=_HISTORY,
        mistake=Text(
            'Writing "cat" where the text would have " cat": with and without the space are two tokens, and only the one you named is biased.',
            "文本里其实是“ cat”却写成“cat”：带空格与不带空格是两个词元，只有写出的那个会被偏置。",
        ),
        differences={
            "transformers": Text("Takes token ids: {(id, id): number}.", "接受词元编号：{(编号, 编号): 数值}。"),
            "vllm": Text("Not there; logit_bias does it for single tokens.", "没有；单个词元可用 logit_bias。"),
            "openai": Text("Not there; logit_bias does it for single tokens.", "没有；单个词元可用 logit_bias。"),
        },
        examples=({"sequence_bias": (((9, 0), -2.0),)}, {"sequence_bias": (((9, 0), 2.0),)}, {"sequence_bias": (((9, 2), 2.0),)}),
    ),
    "encoder_repetition_penalty": Parameter(
        larger=Text("Pulls the output more strongly towards the words of the prompt.", "让输出更强烈地偏向提示词里的词。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_HISTORY,
        mistake=Text(
            "Taking it for a second repetition penalty: it is the reverse. Above 1 it makes the prompt's words likelier.",
            "把它当作另一个重复惩罚：其实相反。大于 1 时提示词里的词更容易出现。",
        ),
        differences={
            "transformers": Text(
                "Made for models with an encoder; without one, generate gives it the prompt.",
                "为带编码器的模型而设；没有编码器时，generate 把提示词交给它。",
            ),
        },
        examples=({"encoder_repetition_penalty": 0.7}, {"encoder_repetition_penalty": 1.2}, {"encoder_repetition_penalty": 1.8}),
    ),
    "repetition_penalty": Parameter(
        larger=Text("Holds back every token that was seen before more strongly.", "更强地抑制所有出现过的词元。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_HISTORY,
        mistake=Text(
            "Expecting it to count: a token seen once and one seen fifty times get the same penalty. "
            "And it hits the words that the prompt asks about, since the prompt counts as seen.",
            "以为它会计数：出现一次和出现五十次的词元受到同样的惩罚。而且提示词也算出现过，所以正要谈论的词也会被抑制。",
        ),
        differences={
            "transformers": Text("Counts the prompt in.", "提示词也算在内。"),
            "vllm": Text(
                "Counts the prompt in; applied before the presence and frequency penalties.", "提示词也算在内；先于存在惩罚和频率惩罚执行。"
            ),
            "openai": Text(
                "Not there; presence_penalty and frequency_penalty subtract instead of dividing, and see the output only.",
                "没有；presence_penalty 和 frequency_penalty 用减法而非除法，并且只看输出。",
            ),
        },
        examples=({"repetition_penalty": 1.1}, {"repetition_penalty": 1.3}, {"repetition_penalty": 2.0}),
    ),
    "repetition_scope": Parameter(
        larger=Text('"prompt+output" holds back more tokens than "output".', "“prompt+output”抑制的词元比“output”更多。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_FREE,
        mistake=Text(
            "Carrying a penalty over from another program without asking whether the prompt counts there: after a long one it matters.",
            "从别的程序照搬惩罚值，却没问那里是否计入提示词：提示词很长时差别很大。",
        ),
        differences={
            "transformers": Text(
                "generate always counts the prompt; its processor class has prompt_ignore_length.",
                "generate 总是计入提示词；其处理器类有 prompt_ignore_length 参数。",
            ),
            "vllm": Text("Always counts the prompt.", "总是计入提示词。"),
            "openai": Text("Has no repetition penalty; its other two see the output only.", "没有重复惩罚；另外两个惩罚只看输出。"),
        },
        examples=({"repetition_penalty": 1.5, "repetition_scope": "prompt+output"}, {"repetition_penalty": 1.5, "repetition_scope": "output"}),
    ),
    "no_repeat_ngram_size": Parameter(
        larger=Text(
            "Is milder: a longer sequence has to come back before anything is forbidden. 1 forbids every token that was there.",
            "更宽松：要更长的序列重现才会禁止。1 则禁止所有出现过的词元。",
        ),
        alive="more",
        why=Text("Fewer tokens would complete a repeat, so fewer are removed.", "能补全重复的词元更少，移除的也更少。"),
        cost=Text(
            "Collects all n-grams of the text anew at every step, in Python: grows with the text, and can be felt in long ones.",
            "每一步都在 Python 中重新收集文本的全部 n-gram：随文本变长而增加，长文本中可以察觉。",
        ),
        mistake=Text(
            'A small size where something has to recur: 2 forbids the second "New York", and any second pair of brackets in code.',
            "在需要重现的地方用了过小的长度：2 会禁止第二次出现的“New York”，也会禁止代码里再次出现的一对括号。",
        ),
        differences={"transformers": Text("The prompt counts too.", "提示词也算在内。")},
        examples=({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 4}),
    ),
    "bad_words": Parameter(
        larger=Text("Every further entry forbids one more sequence.", "每多一条，就多禁止一个序列。"),
        alive="fewer",
        why=Text("At each step at most the last token of each entry goes.", "每一步最多移除每条序列的最后一个词元。"),
        cost=_HISTORY,
        mistake=Text(
            'Forbidding "cat" and still reading " cat", "Cat" or "cats": they are other tokens, and each needs its own entry.',
            "禁止了“cat”，却仍看到“ cat”“Cat”或“cats”：它们是别的词元，需要各写一条。",
        ),
        differences={
            "transformers": Text("Takes lists of token ids, no text.", "接受词元编号的列表，不接受文本。"),
            "vllm": Text("Takes text, and forbids it with and without a space before it.", "接受文本，带前导空格和不带的都会禁止。"),
            "openai": Text("Not there; a logit_bias of −100 all but bans single tokens.", "没有；logit_bias 设为 −100 近乎禁止单个词元。"),
        },
        examples=({"bad_words": ((9, 0),)}, {"bad_words": ((9, 0), (9, 1), (10,))}),
    ),
    "min_length": Parameter(
        larger=Text("EOS stays forbidden for longer.", "结束词元被禁止得更久。"),
        alive="fewer",
        why=Text("While the text is too short, EOS is gone; no other token is touched.", "文本过短时结束词元被移除；其他词元不受影响。"),
        cost=_FREE,
        mistake=Text(
            "Forgetting that the prompt counts: after a prompt of 50 tokens a minimum of 40 does nothing.",
            "忘了提示词也算在内：提示词有 50 个词元时，最小长度 40 毫无作用。",
        ),
        differences={
            "transformers": Text("Counts the prompt in; min_new_tokens doesn't.", "提示词也算在内；min_new_tokens 则不算。"),
            "vllm": Text("Not there; min_tokens counts the output only.", "没有；min_tokens 只计输出。"),
        },
        examples=({"min_length": 10}, {"min_length": 20}),
    ),
    "min_new_tokens": Parameter(
        larger=Text("EOS stays forbidden for longer.", "结束词元被禁止得更久。"),
        alive="fewer",
        why=Text("While the output is too short, EOS is gone; no other token is touched.", "输出过短时结束词元被移除；其他词元不受影响。"),
        cost=_FREE,
        mistake=Text(
            "Expecting a longer thought: the model still wants to end, so it often goes on by repeating itself.",
            "期待内容更充实：模型仍想结束，于是常常靠重复来凑长度。",
        ),
        differences={
            "vllm": Text(
                "Forbids stop_token_ids as well as EOS; must not be above max_tokens.", "除结束词元外也禁止 stop_token_ids；不得大于 max_tokens。"
            )
        },
        examples=({"min_new_tokens": 5}, {"min_new_tokens": 10}),
    ),
    "forced_eos": Parameter(
        larger=Text(
            "On: the last token that the length limit allows is EOS, whatever the model says.",
            "打开后：长度上限允许的最后一个词元必为结束词元，不管模型怎么想。",
        ),
        alive="fewer",
        why=Text("At that one step only EOS is left.", "在那一步只剩下结束词元。"),
        cost=_FREE,
        mistake=Text("Hoping for a finished sentence: EOS is put behind whatever stands there.", "指望句子能写完：它只是在当前位置硬加上结束词元。"),
        differences={"transformers": Text("Takes the token id; works at max_length.", "接受词元编号；在 max_length 处生效。")},
        examples=({"forced_eos": False}, {"forced_eos": True}),
    ),
    "decay_start": Parameter(
        larger=Text("EOS begins to rise later.", "结束词元更晚开始升高。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_FREE,
        mistake=Text(
            "Leaving it at 0 with a factor above 1: EOS rises from the first token on.", "因子大于 1 而起点为 0：结束词元从第一个词元起就在升高。"
        ),
        differences={
            "transformers": Text(
                "The first of the pair (start, factor); counts from the end of the prompt.", "二元组（起点，因子）的第一项；从提示词末尾算起。"
            )
        },
        examples=({"decay_start": 0, "decay_factor": 1.2}, {"decay_start": 4, "decay_factor": 1.2}, {"decay_start": 8, "decay_factor": 1.2}),
    ),
    "decay_factor": Parameter(
        larger=Text("EOS rises faster, and the text ends sooner.", "结束词元升得更快，文本更早结束。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_FREE,
        mistake=Text(
            "Underestimating a power: 1.1 has grown to 2.6 after 10 tokens and to 117 after 50.",
            "低估了指数：1.1 在 10 个词元后是 2.6，50 个词元后是 117。",
        ),
        differences={"transformers": Text("The second of the pair (start, factor).", "二元组（起点，因子）的第二项。")},
        examples=({"decay_factor": 0.9}, {"decay_factor": 1.1}, {"decay_factor": 1.2}),
    ),
    "suppress_tokens": Parameter(
        larger=Text("Every further entry removes one more token.", "每多一条，就多移除一个词元。"),
        alive="fewer",
        why=Text("Exactly the listed tokens go, at every step.", "每一步都恰好移除所列的词元。"),
        cost=_FREE,
        mistake=Text(
            "Ids of another model: the same number is another word there. And a lane without EOS ends only at its length limit.",
            "用了别的模型的编号：同一个数字在那里是另一个词。另外，屏蔽结束词元后通道只会因长度上限而结束。",
        ),
        differences={
            "transformers": _IDS,
            "vllm": Text("Not there; a logit_bias of −100 comes next to it.", "没有；logit_bias 设为 −100 与之接近。"),
            "openai": Text("Not there; a logit_bias of −100 comes next to it.", "没有；logit_bias 设为 −100 与之接近。"),
        },
        examples=({"suppress_tokens": ((0,),)}, {"suppress_tokens": ((0, 1, 2),)}),
    ),
    "begin_suppress_tokens": Parameter(
        larger=Text("Every further entry removes one more token from the first step.", "每多一条，第一步就多移除一个词元。"),
        alive="fewer",
        why=Text("Exactly the listed tokens go, at the first step only.", "只在第一步移除所列的词元。"),
        cost=_FREE,
        mistake=Text(
            "Expecting it to last: from the second token of the output on it does nothing.", "以为它会持续：从输出的第二个词元起就不再起作用。"
        ),
        differences={"transformers": _IDS},
        examples=({"begin_suppress_tokens": ((0,),)}, {"begin_suppress_tokens": ((0, 3),)}),
        at_start=True,
    ),
    "presence_penalty": Parameter(
        larger=Text("Takes more off each token that is in the output, however often it is there.", "输出中出现过的词元，不论次数，都减得更多。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_HISTORY,
        mistake=Text(
            "Taking 2 for a ban: it takes 2 off a logit, which divides the token's odds by about 7.4.",
            "以为 2 就等于禁止：它只是从 logit 里减 2，使几率约除以 7.4。",
        ),
        differences={
            "transformers": Text(
                "Not there; repetition_penalty is nearest: it divides instead of subtracting, and counts the prompt.",
                "没有；最接近的是 repetition_penalty：它用除法而非减法，并且计入提示词。",
            ),
            "vllm": Text("From −2 to 2; sees the output only.", "−2 到 2；只看输出。"),
            "openai": Text("From −2 to 2; sees the output only.", "−2 到 2；只看输出。"),
        },
        examples=({"presence_penalty": -1.0}, {"presence_penalty": 1.0}, {"presence_penalty": 2.0}),
    ),
    "frequency_penalty": Parameter(
        larger=Text("Takes more off a token for every time that it is in the output.", "词元在输出中每出现一次，减得更多。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_HISTORY,
        mistake=Text(
            'Using it for long texts: the penalty of "the" and of commas grows without end, until the text avoids them.',
            "用在长文本上：“的”和逗号的惩罚不断累加，最后文本会刻意避开它们。",
        ),
        differences={
            "transformers": Text("Not there, and repetition_penalty doesn't count how often.", "没有，而 repetition_penalty 不计次数。"),
            "vllm": Text("From −2 to 2; sees the output only.", "−2 到 2；只看输出。"),
            "openai": Text("From −2 to 2; sees the output only.", "−2 到 2；只看输出。"),
        },
        examples=({"frequency_penalty": -1.0}, {"frequency_penalty": 1.0}, {"frequency_penalty": 2.0}),
    ),
    "logit_bias": Parameter(
        larger=Text(
            "Makes the token likelier: +1 multiplies its odds by e, about 2.7; −1 divides them by it.",
            "让词元更容易出现：+1 使几率乘以 e（约 2.7），−1 则除以它。",
        ),
        alive="unchanged",
        why=Text("Even −100 leaves a token alive, with a probability next to 0.", "即使 −100，词元仍然存活，只是概率几乎为 0。"),
        cost=_FREE,
        mistake=Text(
            "Ids of another model's tokenizer: the same number is another word there.",
            "用了别的模型分词器的编号：同一个数字在那里是另一个词。",
        ),
        differences={
            "transformers": Text(
                "Not there; sequence_bias with sequences of one token is the same.", "没有；用 sequence_bias 给单词元序列即可，效果相同。"
            ),
            "vllm": Text(
                "Token ids only; numbers beyond −100 to 100 are cut to it; refused together with speculative decoding.",
                "只接受词元编号；超出 −100 到 100 的数会被截断；与投机解码同用会被拒绝。",
            ),
            "openai": Text("Token ids only, from −100 to 100.", "只接受词元编号，范围 −100 到 100。"),
        },
        examples=({"logit_bias": (((2,), 1.0),)}, {"logit_bias": (((2,), 3.0),)}, {"logit_bias": (((0,), -100.0),)}),
    ),
    # --- warpers -----------------------------------------------------------------------------
    "temperature": Parameter(
        larger=Text("Flattens the distribution: unlikely tokens are drawn more often.", "使分布更平：不太可能的词元更常被抽到。"),
        alive="unchanged",
        why=Text(
            "Removes nothing itself; but a top-p or min-p behind it keeps more when it is larger.",
            "自身不移除词元；但它越大，其后的 top-p 或 min-p 保留得越多。",
        ),
        cost=_PER_LOGIT,
        mistake=Text(
            "Turning it in greedy decoding: dividing all scores leaves their order, so the same token wins. It matters only where a die is rolled.",
            "在贪心解码中调它：所有分数同除一个数，次序不变，胜出的还是同一个词元。只有掷骰子时它才有作用。",
        ),
        differences={
            "transformers": Text("Above 0, no upper limit; ignored without do_sample=True.", "必须大于 0，无上限；没有 do_sample=True 时被忽略。"),
            "vllm": Text(
                "From 0 to 2; 0 is greedy, what lies between 0 and 0.01 becomes 0.01. Runs before min-p, top-k and top-p.",
                "0 到 2；0 为贪心，0 与 0.01 之间的值变为 0.01。先于 min-p、top-k、top-p 执行。",
            ),
            "openai": Text(
                "From 0 to 2, 1 by default; change this or top_p, not both, they advise.", "0 到 2，默认 1；官方建议只改它或 top_p 之一。"
            ),
        },
        examples=({"temperature": 0.3}, {"temperature": 0.7}, {"temperature": 1.5}),
    ),
    "top_h": Parameter(
        larger=Text("Keeps more tokens.", "保留更多词元。"),
        alive="more",
        why=Text("More of the entropy may be used up, by at most 100 tokens.", "允许占用更多的熵，但最多 100 个词元。"),
        cost=Text("Looks at the 100 likeliest tokens only: far less than a forward pass.", "只看最可能的 100 个词元：远小于一次前向计算。"),
        mistake=Text(
            "Reading 1 as off: at most 100 tokens are kept even then; 0 is off here.", "以为 1 是关闭：那时仍最多保留 100 个词元；这里 0 才是关闭。"
        ),
        differences={"transformers": Text("In (0, 1]; off unless it is set.", "范围 (0, 1]；不设则关闭。")},
        examples=({"top_h": 0.2}, {"top_h": 0.5}, {"top_h": 0.8}),
    ),
    "top_k": Parameter(
        larger=Text("Keeps more tokens.", "保留更多词元。"),
        alive="more",
        why=Text(
            "k tokens are left, and whatever equals the k-th; fewer only if fewer were alive before.",
            "剩下 k 个词元以及与第 k 个并列的；只有此前存活的更少时才会更少。",
        ),
        cost=Text("Finds the k highest scores: less than the full sort of top-p.", "找出最高的 k 个分数：比 top-p 的完整排序便宜。"),
        mistake=Text(
            "Not knowing that it is on: with do_sample, transformers uses 50 unless you say 0. "
            "And one k fits no text: 50 is too many where one word is right, and too few where hundreds are.",
            "不知道它开着：do_sample 时 transformers 默认用 50，除非设为 0。而且没有哪个 k 处处合适：有时 50 太多，有时又太少。",
        ),
        differences={
            "transformers": Text(
                "50 where nothing is set; 0 is off, −1 an error; ties with the k-th stay.", "不设则为 50；0 为关闭，−1 报错；与第 k 个并列的保留。"
            ),
            "vllm": Text("0 or −1 is off; runs after min-p.", "0 或 −1 为关闭；在 min-p 之后执行。"),
        },
        examples=({"top_k": 1}, {"top_k": 3}, {"top_k": 6}),
    ),
    "top_p": Parameter(
        larger=Text("Keeps more tokens.", "保留更多词元。"),
        alive="more",
        why=Text(
            "How many depends on the step: few where the model is sure, hundreds where it isn't.",
            "具体多少取决于这一步：模型确定时很少，不确定时成百上千。",
        ),
        cost=_SORT,
        mistake=Text(
            "Reading 0.9 as “90 % of the tokens”: it is 90 % of the probability, often held by a handful. "
            "And a high temperature before it lets far more tokens through.",
            "把 0.9 理解为“90% 的词元”：它是 90% 的概率，往往只由少数几个词元占据。另外，前面温度较高时通过的词元会多得多。",
        ),
        differences={
            "transformers": Text(
                "0 keeps one token; above 1 is off without a word. Runs before min-p.", "0 保留一个词元；大于 1 会不声不响地关闭。先于 min-p 执行。"
            ),
            "vllm": Text("In (0, 1]; runs after min-p.", "范围 (0, 1]；在 min-p 之后执行。"),
            "openai": Text("1 by default; change this or temperature, not both, they advise.", "默认 1；官方建议只改它或 temperature 之一。"),
        },
        examples=({"top_p": 0.5}, {"top_p": 0.75}, {"top_p": 0.95}),
    ),
    "min_p": Parameter(
        larger=Text("Removes more tokens; 1 leaves the likeliest (and its equals).", "移除更多词元；1 时只剩最可能的（及与其并列的）。"),
        alive="fewer",
        why=Text(
            "The bar is a share of the likeliest token's probability: high where the model is sure, low where it isn't.",
            "门槛是最高概率的一个比例：模型确定时高，不确定时低。",
        ),
        cost=_SOFTMAX,
        mistake=Text(
            "Reading it as a probability: 0.1 isn't 10 %, but a tenth of what the likeliest token has.",
            "把它当作概率：0.1 不是 10%，而是最可能词元概率的十分之一。",
        ),
        differences={
            "transformers": Text("Off unless it is set; runs after top-k and top-p.", "不设则关闭；在 top-k、top-p 之后执行。"),
            "vllm": Text(
                "Runs before top-k and top-p, so the same numbers can keep other tokens; refused together with speculative decoding.",
                "先于 top-k、top-p 执行，因此同样的数值可能保留不同的词元；与投机解码同用会被拒绝。",
            ),
        },
        examples=({"min_p": 0.06}, {"min_p": 0.25}, {"min_p": 0.5}),
    ),
    "typical_p": Parameter(
        larger=Text("Keeps more tokens.", "保留更多词元。"),
        alive="more",
        why=Text(
            "Tokens join in the order of how near their surprise is to the entropy, until p is reached.",
            "词元按惊讶度与熵的接近程度依次加入，直到累计达到 p。",
        ),
        cost=_SORT,
        mistake=Text(
            "Expecting the likeliest token to be safe: where it is much less surprising than the entropy, it goes.",
            "以为最可能的词元总是安全的：当它的惊讶度远低于熵时，也会被移除。",
        ),
        differences={"transformers": Text("1 is off.", "1 为关闭。")},
        examples=({"typical_p": 0.2}, {"typical_p": 0.5}, {"typical_p": 0.9}),
    ),
    "epsilon_cutoff": Parameter(
        larger=Text("Removes more tokens.", "移除更多词元。"),
        alive="fewer",
        why=Text("Every token below the bar goes; the likeliest always stays.", "低于门槛的全部移除；最可能的始终保留。"),
        cost=_SOFTMAX,
        mistake=Text(
            "A bar as high as a word's probability: where hundreds of words fit, each has little, and nearly all of them go.",
            "门槛高到与单个词的概率相当：当几百个词都合适时，每个词的概率都很小，几乎全被移除。",
        ),
        differences={"transformers": Text("In (0, 1); 0 is off.", "范围 (0, 1)；0 为关闭。")},
        examples=({"epsilon_cutoff": 0.02}, {"epsilon_cutoff": 0.03}, {"epsilon_cutoff": 0.1}),
    ),
    "eta_cutoff": Parameter(
        larger=Text("Removes more tokens.", "移除更多词元。"),
        alive="fewer",
        why=Text(
            "Every token below min(ε, √ε · e^−entropy) goes; where the model is unsure the bar falls.",
            "低于 min(ε, √ε · e^−熵) 的词元被移除；模型不确定时门槛降低。",
        ),
        cost=_SOFTMAX,
        mistake=Text(
            "Reading it as the bar itself: ε is the highest that the bar can be; with much entropy it lies below.",
            "把它当作门槛本身：ε 只是门槛的上限；熵大时门槛更低。",
        ),
        differences={"transformers": Text("In (0, 1); 0 is off.", "范围 (0, 1)；0 为关闭。")},
        examples=({"eta_cutoff": 0.02}, {"eta_cutoff": 0.06}, {"eta_cutoff": 0.3}),
    ),
    "mirostat_tau": Parameter(
        larger=Text("Aims at more surprise per token: more, and less likely, tokens stay.", "目标惊讶度更高：保留更多、更不可能的词元。"),
        alive="more",
        why=Text(
            "On the average; at one step it depends on mu, which follows the surprise so far.",
            "平均而言如此；具体某一步取决于 mu，而 mu 跟随此前的惊讶度。",
        ),
        cost=_SOFTMAX,
        mistake=Text(
            "Combining it with top-k or top-p: they cap the surprise, and mirostat then keeps raising mu without reaching its aim.",
            "与 top-k 或 top-p 同用：它们限制了惊讶度，Mirostat 会不断提高 mu 却达不到目标。",
        ),
        differences={
            "llama.cpp": Text(
                "With --mirostat 2; 5 by default; its other cut-offs are then ignored.", "配合 --mirostat 2；默认 5；此时其他截断方式被忽略。"
            )
        },
        examples=({"mirostat_tau": 2.0}, {"mirostat_tau": 3.0}, {"mirostat_tau": 4.0}),
    ),
    "mirostat_eta": Parameter(
        larger=Text("Follows the surprise faster, and overshoots more.", "更快地跟随惊讶度，也更容易过冲。"),
        alive="depends",
        why=Text(
            "After surprising tokens mu falls further and fewer stay; after dull ones it rises further.",
            "遇到意外词元后 mu 降得更多、保留更少；遇到平淡词元后则升得更多。",
        ),
        cost=_FREE,
        mistake=Text(
            "Setting it to 0: mu then never moves, and mirostat is a fixed cut-off at twice tau.",
            "设为 0：mu 就不会变化，Mirostat 变成固定在 2 倍 tau 处的截断。",
        ),
        differences={"llama.cpp": Text("0.1 by default.", "默认 0.1。")},
        examples=({"mirostat_tau": 3.0, "mirostat_eta": 0.0}, {"mirostat_tau": 3.0, "mirostat_eta": 0.1}, {"mirostat_tau": 3.0, "mirostat_eta": 0.3}),
    ),
    # --- strategies --------------------------------------------------------------------------
    "num_beams": Parameter(
        larger=Text("Searches wider: the returned text has a score as high or, usually, higher.", "搜索更宽：返回文本的得分通常更高。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("A row more in every forward pass and in the KV cache for each beam.", "每多一束，每次前向计算和 KV 缓存就多一行。"),
        mistake=Text(
            "Expecting better text from more beams: in open-ended text the likeliest whole is short or repeats itself.",
            "以为束越多文本越好：在开放式文本中，整体概率最高的往往很短或不断重复。",
        ),
        differences={
            "vllm": Text(
                "Over HTTP: use_beam_search, with n as the width; no streaming.", "HTTP 接口：use_beam_search，以 n 为束数；不支持流式输出。"
            ),
            "openai": Text("No beam search.", "没有束搜索。"),
        },
    ),
    "length_penalty": Parameter(
        larger=Text(
            "Favours longer texts: sums of log-probabilities are below 0, and are divided by more.",
            "偏向更长的文本：对数概率之和为负，除数越大得分越高。",
        ),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Trusting the name: a larger “penalty” makes texts longer. 0 compares bare sums, which favours short ones.",
            "望文生义：“惩罚”越大文本越长。0 表示直接比较总和，这会偏向短文本。",
        ),
        differences={
            "transformers": Text("Divides by the length of the output, EOS included; 1 by default.", "除以输出长度（含结束词元）；默认 1。"),
            "vllm": Text("Divides by the length of prompt and output together.", "除以提示词与输出合计的长度。"),
        },
    ),
    "early_stopping": Parameter(
        larger=Text("true ends soonest, never searches longest.", "true 结束最早，never 搜索最久。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("Decides how many steps are still taken after enough texts have ended.", "决定在完成的文本足够之后还要走多少步。"),
        mistake=Text(
            "Taking false for “never early”: it stops by a rule of thumb. Only never waits until nothing can become better.",
            "把 false 当成“绝不提前”：它按经验规则停止。只有 never 会等到不可能更好为止。",
        ),
        differences={"transformers": Text('False, True or "never".', 'False、True 或 "never"。')},
    ),
    "num_return_sequences": Parameter(
        larger=Text("Returns more of the finished texts.", "返回更多完成的文本。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Expecting different texts: the best few of one search often differ in a word or two.",
            "以为会得到不同的文本：同一次搜索中最好的几个往往只差一两个词。",
        ),
        differences={
            "vllm": Text("In beam search n is width and number at once.", "束搜索中 n 同时是束数和返回数。"),
            "openai": Text("No beam search; n draws several samples.", "没有束搜索；n 表示抽取多个样本。"),
        },
    ),
    "num_beam_groups": Parameter(
        larger=Text("More groups that must differ from each other, each with fewer beams.", "彼此不同的组更多，每组的束更少。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("Groups choose one after another; the forward pass stays one for all beams.", "各组依次选择；前向计算仍是所有束一次。"),
        mistake=Text(
            "Setting it without a diversity penalty: all groups would then find the same.", "只设分组而不设多样性惩罚：各组会得到相同的结果。"
        ),
        differences={"transformers": _LEFT_CORE},
    ),
    "diversity_penalty": Parameter(
        larger=Text("Later groups avoid more strongly what earlier groups took.", "后面的组更强地避开前面的组选过的词元。"),
        alive="unchanged",
        why=_NOTHING_REMOVED,
        cost=_FREE,
        mistake=Text(
            "Expecting lasting differences: it compares tokens of the same step only, so two texts may be shifted by one and equal.",
            "以为差异会持续：它只比较同一步的词元，两段文本错开一个位置就可能相同。",
        ),
        differences={"transformers": _LEFT_CORE},
    ),
    "do_sample": Parameter(
        larger=Text("On: candidates are drawn by the die, none of them twice.", "打开后：候选由骰子抽取，不重复。"),
        alive="depends",
        why=Text("Only when it is on do temperature, top-k and top-p act, and remove tokens.", "只有打开后，温度、top-k、top-p 才起作用并移除词元。"),
        cost=_FREE,
        mistake=Text(
            "Expecting free samples: the best of the drawn beams wins, so the text is still likelier than a sample.",
            "以为得到的是普通样本：胜出的是抽到的束中最好的，因此仍比样本更“可能”。",
        ),
        differences={"transformers": Text("do_sample=True together with num_beams above 1.", "do_sample=True 且 num_beams 大于 1。")},
    ),
    "drafter": Parameter(
        larger=Text(
            "Another source of guesses; the output stays what the target alone would write.", "换一种猜测来源；输出仍与目标模型独自生成的一致。"
        ),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("From nothing (looking up text) to forward passes of a second model.", "从几乎为零（查找已有文本）到第二个模型的前向计算。"),
        mistake=Text(
            "Judging by acceptance alone: a good drafter that is slow can lose to a poor one that is free.",
            "只看接受率：准但慢的起草器可能输给差但免费的。",
        ),
        differences={
            "transformers": Text(
                "Follows from what is passed: assistant_model, prompt_lookup_num_tokens or assistant_early_exit.",
                "由传入的参数决定：assistant_model、prompt_lookup_num_tokens 或 assistant_early_exit。",
            ),
            "vllm": _SPECULATIVE_CONFIG,
        },
    ),
    "k": Parameter(
        larger=Text(
            "Guesses further ahead: more tokens per step if they are accepted, more wasted work if not.",
            "猜得更远：被接受时每步得到更多词元，被拒绝时浪费更多。",
        ),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text(
            "The drafter writes up to k tokens, and the target checks k + 1 positions in one forward pass.",
            "起草器最多写 k 个词元，目标模型在一次前向计算中检查 k + 1 个位置。",
        ),
        mistake=Text(
            "Thinking more is faster: every guess after the first rejected one is thrown away.", "以为越多越快：第一个被拒绝的猜测之后的全部作废。"
        ),
        differences={
            "transformers": Text(
                "Read from the draft model's generation_config; for lookup it is prompt_lookup_num_tokens.",
                "从草稿模型的 generation_config 读取；查找法则用 prompt_lookup_num_tokens。",
            ),
            "vllm": _SPECULATIVE_CONFIG,
        },
    ),
    "schedule": Parameter(
        larger=Text(
            "fixed wastes most where guesses fail; adaptive and confidence guess less there.",
            "猜测落空时 fixed 浪费最多；adaptive 和 confidence 会少猜。",
        ),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Comparing acceptance between schedules: one that guesses only when it is sure is accepted more often and may still be slower.",
            "在不同方式之间比较接受率：只在有把握时才猜的，接受率更高，却可能更慢。",
        ),
        differences={"transformers": Text("constant, heuristic or heuristic_transient.", "constant、heuristic 或 heuristic_transient。")},
    ),
    "confidence": Parameter(
        larger=Text("Drafts end sooner: fewer guesses, more of them accepted.", "草稿更早结束：猜测更少，接受的比例更高。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("Saves drafting that would likely be thrown away.", "省去很可能作废的起草。"),
        mistake=Text(
            "Celebrating an acceptance near 100 %: with a high threshold only the sure tokens are guessed, and little time is saved.",
            "为接近 100% 的接受率高兴：阈值高时只猜有把握的词元，省不了多少时间。",
        ),
        differences={
            "transformers": Text(
                "0.4 by default; re-estimated while running if scikit-learn is installed.", "默认 0.4；装有 scikit-learn 时会在运行中重新估计。"
            )
        },
    ),
    "drafting": Parameter(
        larger=Text(
            "probabilistic guesses vary with the die; greedy ones are always the drafter's likeliest.",
            "probabilistic 的猜测随骰子变化；greedy 总是起草器最可能的词元。",
        ),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Judging a greedy guess as if it had been drawn: the accept test must then take the drafter's probability as 1, or the output is biased.",
            "把 greedy 的猜测当作抽取来的检验：此时起草概率必须按 1 计，否则输出有偏差。",
        ),
        differences={"vllm": Text("greedy by default, in --speculative-config.", "默认 greedy，写在 --speculative-config 中。")},
    ),
    "draft_model": Parameter(
        larger=Text("A larger draft model guesses better and takes longer to do so.", "草稿模型越大，猜得越准，也越慢。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text(
            "A forward pass of the draft model for every guess, and its weights and cache in memory.",
            "每个猜测都要草稿模型做一次前向计算，其权重和缓存也占内存。",
        ),
        mistake=Text(
            "Pairing models with different vocabularies: the same id is another word, and guesses are noise.",
            "搭配词表不同的模型：同一编号是不同的词，猜测只是噪声。",
        ),
        differences={"vllm": _SPECULATIVE_CONFIG},
    ),
    "exit_layer": Parameter(
        larger=Text("More layers write a guess: better guesses, each of them dearer.", "更多的层参与猜测：更准，也更贵。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text(
            "Each guess costs its share of the model's layers; no second model.", "每个猜测的开销是所用层数占全部层数的比例；不需要第二个模型。"
        ),
        mistake=Text(
            "Using a model that wasn't trained to exit early: its middle layers predict poorly, and little is accepted.",
            "用没有为提前退出训练过的模型：中间层预测很差，几乎不被接受。",
        ),
        differences={"transformers": Text("Its draft reads the prompt itself, into a cache of its own.", "其草稿自己读一遍提示词，使用单独的缓存。")},
    ),
    "ngram_max": Parameter(
        larger=Text("Prefers longer matches, which are rarer and right more often.", "优先更长的匹配：更少见，也更常猜对。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("A search through the text so far: far less than a forward pass.", "在已有文本中查找：远小于一次前向计算。"),
        mistake=Text(
            "Using lookup where nothing repeats: it helps with summaries, edits and code, and hardly with free text.",
            "在没有重复的地方使用：它对摘要、改写和代码有用，对自由文本几乎无用。",
        ),
        differences={
            "transformers": Text("2 by default; takes the left-most match.", "默认 2；取最靠左的匹配。"),
            "vllm": Text("5 where neither end is set.", "两端都不设时为 5。"),
        },
    ),
    "ngram_min": Parameter(
        larger=Text("Short matches are passed over: fewer drafts, and more of them right.", "忽略短匹配：草稿更少，猜对的更多。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Leaving it at 1 and being surprised by rejections: one equal word says little of the next.",
            "保持 1 却对频繁被拒感到意外：一个相同的词几乎说明不了下一个。",
        ),
        differences={"vllm": Text("5 where neither end is set.", "两端都不设时为 5。")},
    ),
    "recorded": Parameter(
        larger=Text("A longer text offers more guesses.", "文本越长，可供猜测的越多。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Reading its speed as a drafter's: it knows the answer. It shows the most that speculation can gain here.",
            "把它的速度当作起草器的速度：它已知道答案，展示的是这里投机解码的上限。",
        ),
    ),
    "suffix_min": Parameter(
        larger=Text("Only longer matches count: fewer drafts, and more of them right.", "只认更长的匹配：草稿更少，猜对的更多。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Setting it high on short texts: nothing matches, and every step is an ordinary one.",
            "在短文本上设得太高：什么都匹配不上，每一步都是普通的一步。",
        ),
    ),
    "suffix_max": Parameter(
        larger=Text("Tells long matches apart further.", "能区分更长的匹配。"),
        alive="unchanged",
        why=_CHOOSES,
        cost=Text("A longer comparison of tokens: far less than a forward pass.", "词元比较更长：远小于一次前向计算。"),
        mistake=Text(
            "Expecting longer drafts from it: it limits what is matched; k limits what is guessed.",
            "以为它让草稿更长：它限制匹配的长度，猜测的数量由 k 限制。",
        ),
    ),
    "earlier_runs": Parameter(
        larger=Text(
            "On: text of earlier runs is searched too, so a repeated question is guessed almost whole.",
            "打开后：也查找早先的运行，重复的问题几乎能整段猜中。",
        ),
        alive="unchanged",
        why=_CHOOSES,
        cost=_FREE,
        mistake=Text(
            "Timing the second run of the same prompt: its guesses come from the first one's answer.",
            "测量同一提示词第二次运行的时间：它的猜测来自第一次的答案。",
        ),
    ),
}
