// Fetches the page again every few seconds while its tab is visible, and replaces the old content with the new.
// Without this script, the pages look the same but do not update.
"use strict";
(() => {
  const EVERY = 5000; // milliseconds
  const SHARE = 20; // fetch a slow page less often, so that fetching takes at most a twentieth of the time
  const LONGEST = 60000; // milliseconds between two fetches
  const GIVE_UP = 20000; // milliseconds to wait for one answer
  const PAUSED = "cronjobs-reload-paused";

  const line = document.getElementById("reload");
  if (!line || !window.fetch || !window.DOMParser) return;
  const button = document.createElement("button");
  const said = document.createElement("span");
  button.type = "button";
  said.setAttribute("role", "status");
  line.append(said, " ", button);
  line.hidden = false;

  let shown = document.getElementById("content").innerHTML; // the content as the server sent it
  let timer = 0;
  let asking = false;
  let failures = 0;
  let took = 0;
  let paused = remembered();

  function remembered() {
    try {
      return sessionStorage.getItem(PAUSED) === "1";
    } catch {
      return false;
    }
  }

  function remember() {
    try {
      sessionStorage.setItem(PAUSED, paused ? "1" : "0");
    } catch {
      // The browser's storage is off, so the pause ends with this page.
    }
  }

  function say(text) {
    if (said.textContent !== text) said.textContent = text; // screen readers read every change aloud
  }

  function showState() {
    button.textContent = paused ? "Resume reloading" : "Pause reloading";
    if (paused) say("Reloading is paused.");
    else if (!failures) say("");
  }

  function plan() {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    const wait = Math.max(EVERY, SHARE * took, failures ? EVERY * 2 ** Math.min(failures, 4) : 0);
    timer = setTimeout(reload, Math.min(wait, LONGEST));
  }

  async function reload() {
    if (asking || paused || document.hidden) return;
    asking = true;
    const stop = new AbortController();
    const late = setTimeout(() => stop.abort(), GIVE_UP);
    const began = performance.now();
    try {
      const answer = await fetch(location.href.split("#")[0], {
        cache: "no-store", credentials: "same-origin", redirect: "error", signal: stop.signal,
      });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const content = fresh.getElementById("content");
      if (!content || !fresh.getElementById("reload")) throw new Error("the answer is another page");
      failures = 0;
      if (!paused) put(fresh, content);
      showState();
    } catch (error) {
      failures += 1;
      const why = error.name === "AbortError" ? "there was no answer" : error.message || "there was no answer";
      if (!paused) say(`This page is from ${clock()}: ${why}. Trying again.`);
    } finally {
      clearTimeout(late);
      took = performance.now() - began;
      asking = false;
      plan();
    }
  }

  function clock() {
    return document.querySelector("footer").textContent.trim();
  }

  // --- replace the content, but keep what the reader has opened, scrolled or focused ---------------------------------

  function put(fresh, content) {
    if (content.innerHTML === shown || inUse()) return;
    const old = document.getElementById("content");
    const place = [window.scrollX, window.scrollY];
    const open = new Map(named(old, "details").map(([name, each]) => [name, each.open]));
    const inner = new Map(named(old, "pre, .wide").map(([name, each]) => [name, placeIn(each)]));
    const focused = named(old, "a, button, summary, pre").find(([, each]) => each === document.activeElement);
    shown = content.innerHTML;
    old.replaceChildren(...Array.from(content.childNodes, (node) => document.importNode(node, true)));
    boxForAll();
    for (const [name, each] of named(old, "details")) if (open.has(name)) each.open = open.get(name);
    for (const [name, each] of named(old, "pre, .wide")) if (inner.has(name)) goTo(each, inner.get(name));
    if (focused) {
      const again = named(old, "a, button, summary, pre").find(([name]) => name === focused[0]);
      if (again) again[1].focus({ preventScroll: true });
    }
    window.scrollTo(...place);
    document.querySelector("footer").textContent = fresh.querySelector("footer").textContent;
  }

  // Put a checkbox for all jobs of the page into the column's header. It needs this script, so the server's HTML does
  // not have it.
  function boxForAll() {
    const boxes = document.querySelectorAll('input[name="job"][form="ticked"]');
    const head = document.querySelector(".jobs th:first-child");
    if (!boxes.length || !head || head.querySelector("input")) return;
    const all = document.createElement("input");
    all.type = "checkbox";
    all.autocomplete = "off";
    all.setAttribute("aria-label", "all jobs of this page");
    all.addEventListener("change", () => boxes.forEach((box) => (box.checked = all.checked)));
    head.replaceChildren(all);
  }

  // Return true if the content must stay: the user is typing, has changed a field, or has selected text.
  function inUse() {
    const content = document.getElementById("content");
    const active = document.activeElement;
    if (active && content.contains(active) && active.matches("input, select, textarea")) return true;
    for (const field of content.querySelectorAll("input, textarea, select")) {
      if (field.type === "checkbox" || field.type === "radio") {
        if (field.checked !== field.defaultChecked || (field.type === "checkbox" && field.checked)) return true;
      } else if (field.matches("select")) {
        const given = Array.from(field.options).findIndex((option) => option.defaultSelected);
        if (field.selectedIndex !== Math.max(given, 0)) return true;
      } else if (field.type !== "hidden" && field.value !== field.defaultValue) return true;
    }
    const marked = document.getSelection();
    return Boolean(marked && !marked.isCollapsed && content.contains(marked.anchorNode));
  }

  // Give each element a name that is the same in each answer of the server: the heading of its section, and its address
  // or text.
  function named(root, selector) {
    const seen = new Map();
    return Array.from(root.querySelectorAll(selector), (each) => {
      const heading = each.closest("section")?.querySelector("h2")?.textContent ?? "";
      const label = each.matches("details") ? each.querySelector("summary") : each;
      const what = each.getAttribute("href") ?? (each.matches("pre, .wide") ? "" : label.textContent.trim());
      const name = [each.tagName, each.closest("[id]:not(main)")?.id ?? "", heading, what].join("\n");
      seen.set(name, (seen.get(name) ?? 0) + 1);
      return [`${name}\n${seen.get(name)}`, each];
    });
  }

  // If the reader has scrolled to the end of an output, stay at the end while the output grows.
  function placeIn(box) {
    const atEnd = box.scrollHeight > box.clientHeight && box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    return { top: atEnd ? Infinity : box.scrollTop, left: box.scrollLeft };
  }

  function goTo(box, { top, left }) {
    box.scrollTop = top === Infinity ? box.scrollHeight : top;
    box.scrollLeft = left;
  }

  button.addEventListener("click", () => {
    paused = !paused;
    remember();
    showState();
    if (paused) clearTimeout(timer);
    else reload();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : reload()));

  boxForAll();
  showState();
  plan();
})();
