// One small window for what is on hover: beside its anchor, or a bottom sheet on a narrow screen.

class Popover {
  constructor(root) {
    this.box = el("div.popover", { role: "tooltip", id: "playground-popover", hidden: true });
    root.append(this.box);
    this.anchor = null;
    this.timer = null;
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.escape());
    // What is held can be reached: it stays while the pointer or the keyboard is in it.
    this.box.addEventListener("pointerenter", () => this.held && clearTimeout(this.timer));
    this.box.addEventListener("pointerleave", (event) => this.held && event.pointerType === "mouse" && this.leave());
    this.box.addEventListener("focusout", () => this.held && this.leave());
    this.box.addEventListener("keydown", (event) => this.walk(event));
    document.addEventListener("pointerdown", (event) => {
      if (!this.box.hidden && !this.box.contains(event.target) && !this.anchor?.contains(event.target)) this.hide();
    });
    window.addEventListener("scroll", () => !isNarrow() && this.hide(), { passive: true });
  }

  /** Show what `build()` returns beside `anchor`, soon; `hold` it for what can be chosen there, and bring the keyboard into it. */
  show(anchor, build, wait = 90, hold = false, focus = false) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (!anchor.isConnected) return;
      this.box.classList.toggle("held", hold || (this.held && anchor === this.anchor));
      this.box.setAttribute("role", this.held ? "dialog" : "tooltip");
      this.anchor = anchor;
      if (this.held) this.box.setAttribute("aria-label", anchor.getAttribute("aria-label") ?? anchor.textContent);
      else this.box.removeAttribute("aria-label");
      this.box.replaceChildren(...[build()].flat());
      this.box.hidden = false;
      this.place();
      if (focus) this.buttons[0]?.focus({ preventScroll: true });
    }, wait);
  }

  get held() {
    return this.box.classList.contains("held");
  }

  get buttons() {
    return [...this.box.querySelectorAll("button:not(:disabled)")];
  }

  escape() {
    const back = this.box.contains(document.activeElement) ? this.anchor : null;
    this.hide();
    back?.focus({ preventScroll: true });
  }

  /** Up and down through what can be chosen. */
  walk(event) {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!move || !(this.held || this.box.querySelector(".menu"))) return;
    event.preventDefault();
    const { buttons } = this;
    buttons[(buttons.indexOf(document.activeElement) + move + buttons.length) % buttons.length]?.focus({ preventScroll: true });
  }

  hide() {
    clearTimeout(this.timer);
    this.box.hidden = true;
    this.box.classList.remove("held");
    this.anchor = null;
  }

  leave() {
    clearTimeout(this.timer);
    const inUse = () => this.held && (this.box.matches(":hover") || this.box.contains(document.activeElement));
    if (!isNarrow()) this.timer = setTimeout(() => inUse() || this.hide(), this.held ? 350 : 120);
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
