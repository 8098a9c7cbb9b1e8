// Building the page. Every text goes in as textContent: prompts, names and tokens are untrusted.

/** An element: `el("button.primary", {type: "button", onclick}, "text", child)`. */
function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || (name in node && typeof value !== "string")) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A drawing of a few lines, in the colour of the text around it. */
function icon(name) {
  const paths = {
    play: "M7 4.5v15l12-7.5z",
    pause: "M8 5v14M16 5v14",
    step: "M6 5v14l9-7zM18 5v14",
    stop: "M6 6h12v12H6z",
    gear: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
    more: "M5 12h.01M12 12h.01M19 12h.01",
    plus: "M12 5v14M5 12h14",
    close: "M6 6l12 12M18 6L6 18",
    up: "M12 19V5M6 11l6-6 6 6",
    down: "M12 5v14M6 13l6 6 6-6",
    left: "M19 12H5M11 6l-6 6 6 6",
    right: "M5 12h14M13 6l6 6-6 6",
    copy: "M9 9h11v11H9zM5 15H4V4h11v1",
    trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
    pin: "M9 4h6l-1 6 4 3v2H6v-2l4-3zM12 15v5",
    sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19",
    moon: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.500 10.500z",
    share: "M18 8a3 3 0 1 0-2.900-2.200L8.900 9.300a3 3 0 1 0 0 5.400l6.200 3.500A3 3 0 1 0 18 16a3 3 0 0 0-2.100.9l-6-3.400a3 3 0 0 0 0-3l6-3.400A3 3 0 0 0 18 8z",
    check: "M5 13l5 5 9-11",
    download: "M12 4v12M6 11l6 6 6-6M4 20h16",
  };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", paths[name]);
  svg.append(path);
  return svg;
}

/** Call `work` once things have been quiet for `wait` ms. */
function debounced(work, wait) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}

/** Put a text on the clipboard. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without the clipboard (plain http on a LAN) an old way still works.
    const area = el("textarea", { value: text, style: "position:fixed;opacity:0" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

const clone = (value) => JSON.parse(JSON.stringify(value));
const isNarrow = () => window.matchMedia("(max-width: 640px)").matches;
const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
const touched = () => window.matchMedia("(hover: none)").matches;

/** What the browser remembers, where it lets us: private windows may refuse. */
const memory = {
  read(store, key, otherwise = null) {
    try {
      return JSON.parse(store.getItem(`playground.${key}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(store, key, value) {
    try {
      if (value === null) store.removeItem(`playground.${key}`);
      else store.setItem(`playground.${key}`, JSON.stringify(value));
    } catch {
      // Nothing is lost but the memory of it.
    }
  },
};
