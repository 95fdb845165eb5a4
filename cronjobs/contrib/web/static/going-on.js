// Sends the next step of a change of many after the first one was clicked in this tab: without it a button does.
// An address alone sends nothing, whoever made it: what was clicked is remembered here, and in no address.
"use strict";
(() => {
  const CLICKED = "cronjobs-going-on";
  const BREATH = 400; // milliseconds, to read and to stop it
  const NAMES = ["q", "upper", "as_of"]; // the same in each step of one change

  const form = document.querySelector("#begins form, #goes-on form");
  if (!form) {
    remember(null);
    return;
  }
  const change = [form.action, ...NAMES.map((name) => form.elements[name].value)].join("\n");
  form.addEventListener("submit", () => remember(change));

  // Not on a page that somebody has gone back to, or loaded again.
  const came = performance.getEntriesByType("navigation")[0]?.type;
  if (!document.getElementById("goes-on") || came !== "navigate" || remembered() !== change) return;

  const line = document.createElement("p");
  const button = document.createElement("button");
  line.setAttribute("role", "status");
  line.append("The next step starts by itself. ");
  button.type = "button";
  button.textContent = "Stop";
  line.append(button);
  form.before(line);
  const timer = setTimeout(() => form.requestSubmit(), BREATH);
  button.addEventListener("click", () => {
    clearTimeout(timer);
    remember(null);
    line.textContent = "Stopped. The button continues.";
  });

  function remembered() {
    try {
      return sessionStorage.getItem(CLICKED);
    } catch {
      return null;
    }
  }

  function remember(text) {
    try {
      if (text === null) sessionStorage.removeItem(CLICKED);
      else sessionStorage.setItem(CLICKED, text);
    } catch {
      // storage is off: each step takes a click
    }
  }
})();
