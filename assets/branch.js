// Branches: a new lane that goes on from a token of another lane, with another choice there.

Object.assign(TEXTS, {
  branch_from_here: { en: "Continue from here with", zh: "从这里改用" },
  branch_with: { en: "Continue from here with “{text}” ({p}) in a new lane", zh: "在新通道中从这里改用“{text}”（{p}）继续" },
  branch_hint: { en: "Click the token to continue from one of these in a new lane.", zh: "点击词元后，可选其中一个在新通道中继续。" },
  branch_choose: { en: "Choose one: a new lane continues from here with it.", zh: "选一个：新通道将从这里用它继续。" },
  branch_full: { en: "There are {most} lanes, the most possible: remove one to branch.", zh: "已有 {most} 条通道，达到上限：移除一条后才能分支。" },
  branch_of: { en: "branched from {name} at token {number}", zh: "自 {name} 第 {number} 个词元分出" },
  branch_show_origin: { en: "Show token {number} of {name}, where this lane branched off", zh: "查看 {name} 的第 {number} 个词元，即此通道分出之处" },
  branch_drop: { en: "Drop the branch: the lane chooses every token itself", zh: "去掉分支：通道自己选择每个词元" },
  branch_added: { en: "Added the lane {name}.", zh: "已添加通道 {name}。" },
  branch_waits: { en: "Added the lane {name}: it runs with the next run.", zh: "已添加通道 {name}：下次运行时开始。" },
  forced_label: { en: "forced", zh: "指定" },
  forced_same: { en: "forced: taken over from {name}", zh: "指定：沿用自 {name}" },
  forced_other: { en: "forced: chosen by hand, instead of {name}’s token", zh: "指定：手动选择，代替 {name} 的词元" },
  parting_given: { en: "{name} was given {token} ({p}).", zh: "{name} 被指定了 {token}（{p}）。" },
  sentence_forced: { en: "was given {token}: {raw} in the model, {final} after the stages. No die decided here.", zh: "被指定了 {token}：模型给 {raw}，各阶段之后 {final}。此处没有掷骰子。" },
});

const FORK = "↳";
const LONGEST_NAME = 60;

class Branches {
  constructor(app) {
    this.app = app;
    this.label = el("span.branches-label");
    this.list = el("div.branches-list");
    this.note = el("span.muted");
    this.root = el("div.branches", { role: "group", hidden: true }, this.label, this.list, this.note);
    this.drawn = null;
  }

  /** The candidates of the selected token, each a button; drawn anew only when they are others. */
  draw(uid, token) {
    const { app } = this;
    const choices = (serverOf(app, uid) ? [] : token?.top ?? []).filter(([, , , chosen]) => !chosen);
    this.root.hidden = !choices.length;
    const key = JSON.stringify([app.run?.id, uid, token?.p, token?.t, language, cantBranch(app)]);
    if (this.root.hidden || this.drawn === key) return;
    this.drawn = key;
    this.label.textContent = t("branch_from_here");
    this.root.setAttribute("aria-label", t("branch_from_here"));
    this.list.replaceChildren(...choices.map((choice) => branchButton(app, uid, token, choice, "secondary.small.branch-go",
      el("code.candidate-text", {}, choice[0]), el("span.muted", {}, choice[2] === null ? `${probability(choice[1])} · ${t("removed")}` : probability(choice[1])))));
    this.note.textContent = cantBranch(app) ?? "";
  }
}

/** Why no lane can be added; null if one can. */
function cantBranch(app) {
  if (!app.whole) return "";
  const most = app.declarations.limits.lanes;
  return app.request.lanes.length >= most ? t("branch_full", { most }) : null;
}

/** A button that continues a lane of the run from a token with one of its other candidates. */
function branchButton(app, uid, token, [text, before, , , id], classes, ...content) {
  const label = t("branch_with", { text, p: probability(before) });
  return el(`button.${classes}`, { type: "button", "aria-label": label, title: label, disabled: cantBranch(app) !== null, onclick: () => branchOff(app, uid, token.p, text, id) }, ...content);
}

/** Add a lane beside its origin that takes `id` at `position`, and run it if that can be done now. */
async function branchOff(app, uid, position, text, id) {
  const at = app.request.lanes.findIndex((lane) => lane.uid === uid);
  const index = app.run?.uids.indexOf(uid) ?? -1;
  if (at < 0 || index < 0 || cantBranch(app) !== null) return;
  const { uid: _, ...origin } = clone(app.request.lanes[at]);
  const name = app.laneName(uid);
  const tokens = [...app.run.lanes[index].tokens.slice(0, position).map((token) => token.t), id];
  const lane = {
    ...origin, name: branchName(name, position, text), max_new_tokens: Math.max(origin.max_new_tokens, tokens.length),
    branch: { tokens, lane: shortName(name), position, model: app.run.about.lanes[index].model },
  };
  app.popover.hide();
  const made = app.insert(lane, at + 1, false);
  app.lanes.pinned = uid; // on a narrow screen the two stand together
  app.lanes.draw();
  const runs = app.ready && !app.live;
  app.announce(t(runs ? "branch_added" : "branch_waits", { name: lane.name }));
  if (runs) {
    await app.start();
    app.select(made, position);
  }
}

/** "top-p ↳ 7: ‘caching’": where the lane left which other one, and with what. */
function branchName(name, position, text) {
  const [root] = name.split(` ${FORK} `);
  return shortName(`${root} ${FORK} ${position + 1}: ‘${text.replace(/^␣/, "")}’`);
}

/** No longer than a name may be, and no character cut in two. */
const shortName = (text) => Array.from(text).slice(0, LONGEST_NAME).join("");

/** The lane that a branch left, if it is still there: by its name, and by the tokens that both begin with. */
function originOf(app, lane) {
  const { branch: from } = lane;
  const begins = (uid) => from.tokens.slice(0, from.position).every((id, at) => app.run?.lane(uid)?.tokens[at]?.t === id);
  const named = app.request.lanes.filter((one) => one.uid !== lane.uid && shortName(app.laneName(one.uid)) === from.lane);
  return (named.find((one) => begins(one.uid)) ?? named[0])?.uid ?? null;
}

/** On a branched lane's card: where it comes from, a way there, and a way to be rid of it. */
function branchChip(app, lane) {
  const values = { name: lane.branch.lane, number: lane.branch.position + 1 };
  const origin = originOf(app, lane);
  const show = el("button.chip-open", { type: "button", disabled: origin === null, title: t("branch_show_origin", values), "aria-label": `${t("branch_of", values)}. ${t("branch_show_origin", values)}`,
    onclick: () => app.select(origin, lane.branch.position, true) }, el("span.fork-mark", { "aria-hidden": "true" }, `${FORK} `), t("branch_of", values));
  const drop = el("button.chip-off", { type: "button", "aria-label": t("branch_drop"), title: t("branch_drop"), onclick: () => app.edit(lane.uid, (one) => { one.branch = null; }) }, icon("close"));
  return el("li.chip.branched", {}, show, drop);
}

/** Where a token of a branched lane comes from, in words; null for one that the lane chose. */
function forcedWords(app, uid, token) {
  if (token.o !== "forced") return null;
  const from = branchOf(app, uid);
  return t(token.p === from?.position ? "forced_other" : "forced_same", { name: from?.lane ?? "?" });
}

/** The branch that a lane ran with. */
const branchOf = (app, uid) => app.run?.about?.lanes[app.run.uids.indexOf(uid)]?.branch ?? null;
