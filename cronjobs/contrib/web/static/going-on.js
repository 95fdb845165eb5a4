// Sends each next step of a change to many jobs, after somebody has clicked the first step in this tab. Without this
// script, each step takes a click. For somebody who only opens the address of a step, the script sends nothing, because
// it looks for the click in the memory of the same tab.
"use strict";
(() => {
  const CLICKED = "cronjobs-going-on";
  const BREATH = 400; // milliseconds to wait before sending a step, so that the user can stop the change
  const NAMES = ["q", "upper", "as_of"]; // these fields are the same in each step of a change

  const form = document.querySelector("#begins form, #goes-on form");
  if (!form) {
    remember(null);
    return;
  }
  const change = [form.action, ...NAMES.map((name) => form.elements[name].value)].join("\n");
  form.addEventListener("submit", () => remember(change));

  // Send nothing if the user went back to this page, or reloaded it.
  const came = performance.getEntriesByType("navigation")[0]?.type;
  if (!document.getElementById("goes-on") || came !== "navigate" || remembered() !== change) return;

  const line = document.createElement("p");
  const button = document.createElement("button");
  line.setAttribute("role", "status");
  line.append("The next step starts automatically. ");
  button.type = "button";
  button.textContent = "Stop";
  line.append(button);
  form.before(line);
  const timer = setTimeout(() => form.requestSubmit(), BREATH);
  button.addEventListener("click", () => {
    clearTimeout(timer);
    remember(null);
    line.textContent = "Stopped. Press the button to continue.";
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
      // The browser's storage is off, so each step takes a click.
    }
  }
})();
