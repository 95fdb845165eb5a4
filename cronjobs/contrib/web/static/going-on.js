// Once the first step of a change of many jobs was clicked in this tab, sends each next step. Without this script, each
// step takes a click. Opening an address sends nothing, since the click is remembered in this tab and in no address.
"use strict";
(() => {
  const CLICKED = "cronjobs-going-on";
  const BREATH = 400; // milliseconds before a step is sent, so that it can be stopped
  const NAMES = ["q", "upper", "as_of"]; // these fields are the same in each step of a change

  const form = document.querySelector("#begins form, #goes-on form");
  if (!form) {
    remember(null);
    return;
  }
  const change = [form.action, ...NAMES.map((name) => form.elements[name].value)].join("\n");
  form.addEventListener("submit", () => remember(change));

  // Send nothing if somebody has gone back to this page or has reloaded it.
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
      // the browser's storage is off, so each step takes a click
    }
  }
})();
