// One small window for what is on hover: beside its anchor, or a bottom sheet on a narrow screen.

class Popover {
  constructor(root) {
    this.box = el("div.popover", { role: "tooltip", id: "playground-popover", hidden: true });
    root.append(this.box);
    this.anchor = null;
    this.timer = null;
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
    document.addEventListener("pointerdown", (event) => {
      if (!this.box.hidden && !this.box.contains(event.target) && !this.anchor?.contains(event.target)) this.hide();
    });
    window.addEventListener("scroll", () => !isNarrow() && this.hide(), { passive: true });
  }

  /** Show what `build()` returns beside `anchor`, soon. */
  show(anchor, build, wait = 90) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (!anchor.isConnected) return;
      this.anchor = anchor;
      this.box.replaceChildren(...[build()].flat());
      this.box.hidden = false;
      this.place();
    }, wait);
  }

  hide() {
    clearTimeout(this.timer);
    this.box.hidden = true;
    this.anchor = null;
  }

  leave() {
    clearTimeout(this.timer);
    if (!isNarrow()) this.timer = setTimeout(() => this.hide(), 120);
  }

  place() {
    this.box.classList.toggle("sheet", isNarrow());
    if (isNarrow()) {
      this.box.style.left = this.box.style.top = "";
      return;
    }
    const at = this.anchor.getClientRects()[0] ?? this.anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
    const below = at.bottom + 8;
    const above = at.top - height - 8;
    const top = below + height <= innerHeight - 8 ? below : above > 8 ? above : Math.max(8, innerHeight - height - 8);
    this.box.style.left = `${left}px`;
    this.box.style.top = `${top}px`;
  }

  /** Give `node` a text that shows on hover and focus, and on tap where a tap does nothing else. */
  explain(node, build, tap = true) {
    const content = () => {
      const built = build();
      return typeof built === "string" ? el("p.hint", {}, built) : built;
    };
    node.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && this.show(node, content));
    node.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.leave());
    node.addEventListener("focus", () => node.matches(":focus-visible") && this.show(node, content));
    node.addEventListener("blur", () => this.leave());
    if (tap) node.addEventListener("click", () => touched() && this.show(node, content, 0));
  }
}
