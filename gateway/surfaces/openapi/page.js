"use strict";
// A filter over routes and shapes, and opening what a link points to. The page is complete without it.
const filter = document.getElementById("filter");
const rows = [...document.querySelectorAll("[data-find]")];
const groups = [...document.querySelectorAll("nav details")];
const sections = [...document.querySelectorAll("main section")];

function show() {
  const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every((word) => row.dataset.find.includes(word));
  for (const group of groups) {
    const found = group.querySelector("li:not([hidden])") !== null;
    group.hidden = !found;
    group.open = found && words.length > 0;
  }
  for (const section of sections) {
    const operations = [...section.querySelectorAll(".operation")];
    section.hidden = words.length > 0 && !operations.some((one) => !one.hidden);
  }
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target === null) return;
  if (target.hidden) {
    filter.value = "";
    show();
  }
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView();
}

filter.hidden = false;
filter.addEventListener("input", show);
addEventListener("hashchange", openTarget);
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  }
});
openTarget();
