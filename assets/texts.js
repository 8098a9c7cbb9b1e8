// Every text that the page itself says, in both of its languages.

const TEXTS = {
  title: { en: "Decoding Playground", zh: "解码实验场" },
  tagline: { en: "One prompt, several ways to choose the next token.", zh: "同一个提示词，多种选择下一个词元的方式。" },
  skip: { en: "Skip to the lanes", zh: "跳到通道" },
  theme_dark: { en: "Switch to dark", zh: "切换到深色" },
  theme_light: { en: "Switch to light", zh: "切换到浅色" },
  language: { en: "Language", zh: "语言" },
  settings: { en: "Settings", zh: "设置" },
  close: { en: "Close", zh: "关闭" },

  prompt: { en: "Prompt", zh: "提示词" },
  prompt_placeholder: { en: "What should the model continue or answer?", zh: "让模型续写或回答什么？" },
  chat: { en: "Chat", zh: "对话" },
  raw: { en: "Raw text", zh: "原始文本" },
  chat_help: { en: "Chat wraps the prompt in the model's chat template; raw text is continued as it stands.", zh: "“对话”会套用模型的对话模板；“原始文本”则原样续写。" },
  system: { en: "System text", zh: "系统提示" },
  system_help: { en: "Stands before the prompt in the chat template.", zh: "在对话模板中位于提示词之前。" },
  seed: { en: "Seed", zh: "种子" },
  seed_help: { en: "Every lane with the same seed rolls the same die at the same position.", zh: "种子相同的通道在同一位置掷出同样的骰子。" },
  rendered: { en: "What the model reads", zh: "模型实际读到的内容" },
  prompt_tokens: { en: "{count} tokens", zh: "{count} 个词元" },
  share_prompt: { en: "Read the prompt once for all lanes", zh: "所有通道共享一次提示词读取" },
  share_prompt_help: { en: "The cache is copied to each lane, and the time to the first token is the race's. Off: every lane reads it alone.", zh: "缓存会复制给每条通道，首词元时间属于整场比赛。关闭时每条通道各自读取。" },
  align: { en: "Align lanes by step", zh: "按步对齐各通道" },
  align_help: { en: "All lanes take their steps in turn. Off: the lane that has used the least time goes next, so a slower lane falls behind.", zh: "各通道轮流走步。关闭时由用时最少的通道先走，较慢的通道会落后。" },
  classic: { en: "The classic experiment", zh: "经典实验" },
  classic_help: { en: "Put the prompt and the lanes back as they were at the start.", zh: "把提示词和通道恢复为初始状态。" },
  about_seconds: { en: "about {time}", zh: "约 {time}" },

  model: { en: "Model", zh: "模型" },
  models: { en: "Models", zh: "模型" },
  model_other: { en: "Another model: Hub id or folder", zh: "其他模型：Hub 名称或本地文件夹" },
  model_use: { en: "Use", zh: "使用" },
  model_loaded: { en: "loaded", zh: "已加载" },
  model_classic: { en: "use gpt2, the classic", zh: "换用经典的 gpt2" },
  model_unreachable: { en: "not reachable from here", zh: "此处无法获取" },
  model_offer: { en: "Use {name}", zh: "改用 {name}" },
  model_same: { en: "same as the comparison", zh: "与整场对比相同" },
  target: { en: "target", zh: "目标" },
  draft: { en: "draft", zh: "草稿" },
  device: { en: "Device", zh: "设备" },
  computed_in: { en: "computed in {dtype}", zh: "以 {dtype} 计算" },
  dtype: { en: "Number format", zh: "数值格式" },
  state_absent: { en: "The model is not here yet.", zh: "模型尚未就绪。" },
  state_downloading: { en: "Downloading the model.", zh: "正在下载模型。" },
  state_converting: { en: "Preparing the weights (only once).", zh: "正在准备权重（仅一次）。" },
  state_loading: { en: "Loading the model.", zh: "正在加载模型。" },
  state_failed: { en: "The model could not be loaded.", zh: "模型加载失败。" },

  run: { en: "Run", zh: "运行" },
  run_here: { en: "Run it here", zh: "在此运行" },
  run_again: { en: "Run again", zh: "再次运行" },
  pause: { en: "Pause", zh: "暂停" },
  resume: { en: "Resume", zh: "继续" },
  step: { en: "Step", zh: "单步" },
  stop: { en: "Stop", zh: "停止" },
  run_key: { en: "Ctrl + Enter", zh: "Ctrl + Enter" },
  no_pause: { en: "Pause and step are off on this host.", zh: "此主机不支持暂停与单步。" },
  status_starting: { en: "Asking for a place in the line…", zh: "正在排队…" },
  status_next: { en: "Next in line.", zh: "下一个就轮到。" },
  status_queued: { en: "{place} ahead in the line.", zh: "前面还有 {place} 个。" },
  status_queued_seconds: { en: "{place} ahead in the line, about {time}.", zh: "前面还有 {place} 个，约 {time}。" },
  status_loading: { en: "Loading the model…", zh: "正在加载模型…" },
  status_prompt: { en: "Reading the prompt: {tokens} of {total} tokens.", zh: "正在读取提示词：{tokens} / {total} 个词元。" },
  status_running: { en: "Generating on {machine}.", zh: "正在 {machine} 上生成。" },
  status_paused: { en: "Paused.", zh: "已暂停。" },
  status_done: { en: "Finished.", zh: "已完成。" },
  status_stopped: { en: "Stopped.", zh: "已停止。" },
  status_failed: { en: "The run failed.", zh: "运行失败。" },
  status_reconnecting: { en: "The stream broke off: picking it up again…", zh: "数据流中断：正在恢复…" },
  status_cold: { en: "First run after loading: it warms up, and its times are longer.", zh: "加载后的首次运行：处于预热，用时偏长。" },
  viewers: { en: "{count} watching", zh: "{count} 人在看" },
  said_started: { en: "The run has started.", zh: "运行已开始。" },
  said_finished: { en: "The run has finished.", zh: "运行已完成。" },
  status_opening: { en: "Starting up…", zh: "正在启动…" },

  recorded: { en: "Recorded", zh: "录制" },
  recorded_region: { en: "Recording", zh: "录制" },
  recorded_from: { en: "{model} · {machine} · {date}", zh: "{model} · {machine} · {date}" },
  recorded_times: { en: "Recorded, not measured now: {machine}, {date}.", zh: "录制时的数据，并非此刻实测：{machine}，{date}。" },
  recordings: { en: "Recordings", zh: "录制" },
  recordings_help: { en: "Experiments that were recorded on the default model: they play at once, without it.", zh: "用默认模型录制的实验：无需加载模型即可播放。" },
  play: { en: "Play", zh: "播放" },
  play_on: { en: "Play on", zh: "继续播放" },
  play_again: { en: "Play again", zh: "重新播放" },
  speed: { en: "Speed: {speed} times the recorded pace", zh: "速度：录制速度的 {speed} 倍" },
  replay_step: { en: "One step of every lane", zh: "每条通道走一步" },
  parting: { en: "Token {number}: they part.", zh: "第 {number} 个词元：从这里分开。" },
  parting_greedy: { en: "{name} took {token} ({p}), the most likely.", zh: "{name} 选了最可能的 {token}（{p}）。" },
  parting_drawn: { en: "{name}’s die {u} hit {token} ({p}).", zh: "{name} 的骰子 {u} 落在 {token}（{p}）。" },

  lanes: { en: "Lanes", zh: "通道" },
  lane: { en: "Lane {number}", zh: "通道 {number}" },
  lane_name: { en: "Name of lane {number}", zh: "通道 {number} 的名称" },
  add_lane: { en: "Add a lane", zh: "添加通道" },
  duplicate: { en: "Duplicate", zh: "复制" },
  remove: { en: "Remove", zh: "移除" },
  move_left: { en: "Move left", zh: "左移" },
  move_right: { en: "Move right", zh: "右移" },
  pin: { en: "Pin for comparison", zh: "固定以便对比" },
  unpin: { en: "Unpin", zh: "取消固定" },
  preset: { en: "Preset", zh: "预设" },
  lane_menu: { en: "More for {name}", zh: "{name} 的更多操作" },
  lane_settings: { en: "Settings of {name}", zh: "{name} 的设置" },
  lane_empty: { en: "Tokens appear here as the model chooses them.", zh: "模型选出的词元会出现在这里。" },
  lane_reading: { en: "Reading the prompt…", zh: "正在读取提示词…" },
  lane_waiting: { en: "Waiting for its turn…", zh: "等待中…" },
  lane_changed: { en: "Prompt or settings changed since this run.", zh: "本次运行后提示词或设置已更改。" },
  lane_new: { en: "Not in this run.", zh: "不在本次运行中。" },
  origin_library: { en: "transformers’ default", zh: "transformers 默认" },
  origin_model: { en: "the model’s default", zh: "模型默认" },
  idle: { en: "idle", zh: "空闲" },
  idle_help: { en: "{name}: can't change which token is the most likely, so greedy skips it.", zh: "{name}：不会改变最可能的词元，因此贪心会跳过它。" },
  switch_off: { en: "Switch {name} off", zh: "关闭 {name}" },
  no_stages: { en: "no stages", zh: "无阶段" },
  strip_label: { en: "Tokens of {name}", zh: "{name} 的词元" },
  token_label: { en: "Token {position}: {text}, probability {p}", zh: "第 {position} 个词元：{text}，概率 {p}" },

  measure_e2e: { en: "E2E", zh: "端到端" },
  measure_decode: { en: "decode", zh: "解码" },
  measure_ttft: { en: "TTFT", zh: "首词元" },
  measure_itl_p50: { en: "ITL p50", zh: "间隔 p50" },
  measure_itl_p95: { en: "ITL p95", zh: "间隔 p95" },
  measure_speed: { en: "tok/s", zh: "词元/秒" },
  measure_tokens: { en: "tokens", zh: "词元" },
  measure_kv: { en: "KV", zh: "KV" },
  measure_peak: { en: "peak mem", zh: "峰值内存" },
  reason_eos: { en: "end of text", zh: "文本结束" },
  reason_stop: { en: "stop string", zh: "停止串" },
  reason_length: { en: "length limit", zh: "达到长度上限" },
  reason_context: { en: "context full", zh: "上下文已满" },
  reason_server_stop: { en: "stopped by the server", zh: "由服务器停止" },
  reason_server_length: { en: "the server's length limit", zh: "服务器的长度上限" },
  reason_cancelled: { en: "stopped", zh: "已停止" },
  reason_error: { en: "error", zh: "错误" },

  colour_by: { en: "Colour tokens by", zh: "词元着色" },
  colour_probability: { en: "Probability", zh: "概率" },
  colour_entropy: { en: "Entropy", zh: "熵" },
  colour_rank: { en: "Rank", zh: "排名" },
  colour_help_probability: { en: "the model's own probability of the token it took", zh: "模型自身给所选词元的概率" },
  colour_help_entropy: { en: "how undecided the model was before the stages, in nats", zh: "各阶段之前模型的不确定程度（奈特）" },
  colour_help_rank: { en: "the token's place in the model's own order", zh: "词元在模型自身排序中的位次" },

  raw_probability: { en: "model", zh: "模型" },
  final_probability: { en: "after the stages", zh: "各阶段之后" },
  rank_word: { en: "rank", zh: "排名" },
  entropy_word: { en: "entropy", zh: "熵" },
  alive_word: { en: "alive", zh: "存活" },
  die: { en: "die", zh: "骰子" },
  removed: { en: "removed", zh: "已移除" },
  removed_by: { en: "removed by {stage}", zh: "被 {stage} 移除" },
  no_die: { en: "no die: the most likely token is taken", zh: "不掷骰子：取最可能的词元" },
  die_hit: { en: "die {u} fell into [{low}, {high})", zh: "骰子 {u} 落入 [{low}, {high})" },
  token_number: { en: "Token {number}", zh: "第 {number} 个词元" },
  of_tokens: { en: "of {count}", zh: "共 {count} 个" },

  tab_pipeline: { en: "Pipeline", zh: "流水线" },
  tab_loop: { en: "The loop", zh: "循环" },
  tab_latency: { en: "Latency", zh: "延迟" },
  tab_parts: { en: "Parts of a step", zh: "步的构成" },
  tab_gpu: { en: "GPU", zh: "GPU" },
  tab_kv: { en: "KV cache", zh: "KV 缓存" },
  tab_entropy: { en: "Entropy", zh: "熵" },
  tab_record: { en: "Record", zh: "记录" },
  focus: { en: "Closer look", zh: "细看" },
  focus_empty: { en: "Run a comparison or play a recording, then choose any token to see how it was chosen.", zh: "先运行一次对比或播放录制，再点任意词元，查看它是如何被选中的。" },
  newest: { en: "Follow the newest", zh: "跟随最新" },
  previous_token: { en: "Previous token", zh: "上一个词元" },
  next_token: { en: "Next token", zh: "下一个词元" },
  sentence_greedy: { en: "took {token} because nothing scored higher: {raw} in the model, {final} after the stages.", zh: "选了 {token}，因为没有更高分的词元：模型给 {raw}，各阶段之后 {final}。" },
  sentence_drawn: { en: "took {token}: {raw} in the model, {final} after the stages. Die {u} fell into its part, [{low}, {high}).", zh: "选了 {token}：模型给 {raw}，各阶段之后 {final}。骰子 {u} 落在它的区间 [{low}, {high})。" },
  look_up: { en: "Look up a token", zh: "查询词元" },
  look_up_placeholder: { en: "text, or #id", zh: "文本，或 #编号" },
  look_up_button: { en: "Look up", zh: "查询" },
  look_up_result: { en: "{text} #{id}: {raw} in the model (rank {rank}) → {final}", zh: "{text} #{id}：模型给 {raw}（排名 {rank}）→ {final}" },
  look_up_final: { en: "{p} after the stages (rank {rank})", zh: "各阶段之后 {p}（排名 {rank}）" },
  as_table: { en: "Show as a table", zh: "以表格显示" },
  loop_help: { en: "One decode step as the code that it is. Milliseconds: the median per step of this lane so far. Percent: the part’s share of the time of all its steps, as under Latency.", zh: "一个解码步骤就是这段代码。毫秒数为本通道目前每步的中位数；百分比为该部分占全部步总时间的比例，与“延迟”中的相同。" },
  loop_slow: { en: "lit in slow motion: one step of {ms} takes {seconds} here", zh: "慢动作点亮：{ms} 的一步在此播放 {seconds}" },
  loop_other: { en: "everything else", zh: "其余" },
  loop_recording: { en: "recording (ours, not counted)", zh: "记录（我们的开销，不计入）" },
  loop_step: { en: "one step", zh: "一步" },
  copy: { en: "Copy as Markdown", zh: "复制为 Markdown" },
  copied: { en: "Copied.", zh: "已复制。" },
  download: { en: "Download the trace (JSON)", zh: "下载记录（JSON）" },

  strategy: { en: "Strategy", zh: "策略" },
  stages: { en: "Stages", zh: "阶段" },
  more_stages: { en: "More stages", zh: "更多阶段" },
  order: { en: "Stage order", zh: "阶段顺序" },
  order_transformers: { en: "transformers order", zh: "transformers 顺序" },
  order_vllm: { en: "vLLM order", zh: "vLLM 顺序" },
  order_own: { en: "own order", zh: "自定义顺序" },
  order_help: { en: "Only stages that are on are listed; each works on what the one above it left.", zh: "只列出已启用的阶段；每个阶段处理上一个阶段的结果。" },
  order_empty: { en: "No stage is on.", zh: "没有启用的阶段。" },
  earlier: { en: "{name}: earlier", zh: "{name}：提前" },
  later: { en: "{name}: later", zh: "{name}：推后" },
  defaults: { en: "Where nothing is set", zh: "未设置之处" },
  defaults_off: { en: "Off", zh: "关闭" },
  defaults_inherit: { en: "Inherit", zh: "继承" },
  defaults_help: { en: "Inherit takes what generate would: the model's own settings, then transformers' (top-k 50). Off leaves every stage off.", zh: "“继承”与 generate 一致：先用模型自带的设置，再用 transformers 的（top-k 50）。“关闭”则所有阶段都不启用。" },
  limits: { en: "Limits", zh: "限制" },
  max_new_tokens: { en: "max new tokens", zh: "最多新词元" },
  max_new_tokens_help: { en: "The lane ends when it has written this many.", zh: "写满这么多词元后，通道结束。" },
  stop_strings: { en: "stop strings", zh: "停止串" },
  stop_help: { en: "One per line, \\n for a line break. The text is cut where the first one begins.", zh: "每行一个，\\n 表示换行。文本在最先出现的停止串处截断。" },
  name: { en: "Name", zh: "名称" },
  reset_knob: { en: "Reset {name}", zh: "重置 {name}" },
  off: { en: "off", zh: "关" },
  on: { en: "on", zh: "开" },
  range: { en: "range {range}", zh: "范围 {range}" },
  not_applied: { en: "This value was refused, so the last good one stays: {text}", zh: "该值被拒绝，保留上一个有效值：{text}" },

  how_measured: { en: "measured", zh: "实测" },
  how_derived: { en: "derived", zh: "推导" },
  how_estimated: { en: "estimated", zh: "估计" },
  how_reported: { en: "reported by the server", zh: "服务器报告" },
};

const LANGUAGES = ["en", "zh"];

/** The language now: ?lang=, then what was chosen before, then the browser's. */
let language = (() => {
  const asked = new URLSearchParams(location.search).get("lang");
  if (LANGUAGES.includes(asked)) return asked;
  const kept = memory.read(localStorage, "language");
  if (LANGUAGES.includes(kept)) return kept;
  return (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
})();

/** A text of the page in the language now, its {places} filled. */
function t(key, values = {}) {
  return fill(TEXTS[key][language], values);
}

function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (place, name) => (name in values ? String(values[name]) : place));
}

/** A text that the server sent as {en, zh}. */
function said(text) {
  if (text === null || text === undefined) return "";
  return typeof text === "string" ? text : String(text[language] ?? text.en ?? "");
}

/** The languages that a model was trained for, in words: it gives their codes. */
function languagesOf(entry) {
  if (!Array.isArray(entry?.languages)) return said(entry?.languages);
  const names = new Intl.DisplayNames([language], { type: "language" });
  return entry.languages.map((code) => names.of(code)).join(language === "zh" ? "、" : ", ");
}

/** Fill everything below `root` that names its text in data-t, data-t-label or data-t-placeholder. */
function translate(root) {
  for (const node of root.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of root.querySelectorAll("[data-t-label]")) {
    node.setAttribute("aria-label", t(node.dataset.tLabel));
    node.setAttribute("title", t(node.dataset.tLabel));
  }
  for (const node of root.querySelectorAll("[data-t-placeholder]")) node.setAttribute("placeholder", t(node.dataset.tPlaceholder));
}
