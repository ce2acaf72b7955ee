"use strict";
// What the page can do beyond being read: copy commands, unfold all, and nothing else. Without it everything is still there.
(() => {
  const said = document.createElement("p");
  said.className = "unseen";
  said.setAttribute("role", "status");
  document.querySelector("main").append(said);

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Browsers that give a local file no clipboard still copy a selection.
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "unseen";
      area.setAttribute("aria-hidden", "true");
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };

  for (const code of document.querySelectorAll("code.command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", `copy ${code.textContent}`);
    button.addEventListener("click", async () => {
      const done = await copied(code.textContent);
      button.textContent = done ? "copied" : "not copied";
      said.textContent = done ? "copied" : "could not copy; select the text instead";
      button.focus();
      setTimeout(() => { button.textContent = "copy"; said.textContent = ""; }, 5000);
    });
    code.after(button);
  }

  const folds = [...document.querySelectorAll("details")];
  const unfold = (open) => { for (const fold of folds) fold.open = open; };
  if (folds.length > 0) {
    const all = document.createElement("button");
    all.type = "button";
    all.className = "all";
    all.textContent = "unfold all";
    all.addEventListener("click", () => {
      const open = folds.some((fold) => !fold.open);
      unfold(open);
      all.textContent = open ? "fold all" : "unfold all";
    });
    document.querySelector("header").append(all);
  }
  let before = [];
  addEventListener("beforeprint", () => { before = folds.filter((fold) => !fold.open); unfold(true); });
  addEventListener("afterprint", () => { for (const fold of before) fold.open = false; });

  // A box that does not scroll needs no stop of the Tab key.
  const boxes = [...document.querySelectorAll("[tabindex='0']")];
  const stops = () => {
    for (const box of boxes) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
      if (scrolls) box.setAttribute("tabindex", "0"); else box.removeAttribute("tabindex");
    }
  };
  stops();
  addEventListener("resize", stops);
  document.addEventListener("toggle", stops, true);
})();
