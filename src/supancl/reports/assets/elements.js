// What several pages need: elements, data that Python put into the page, and CSV files that the reader saves.
"use strict";

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Name an element for the pointer and for readers that do not see it.
function giveName(made, text, role) {
  made.title = text;
  made.setAttribute("role", role);
  made.setAttribute("aria-label", text.replaceAll("\n", ", "));
}

// A text that wraps after underscores, hyphens and slashes: `english_cocker_spaniel/7.jpg`.
function wrappable(made, text) {
  made.append(...text.split(/(?<=[_/-])/).flatMap((part) => [part, element("wbr")]));
  return made;
}

// A cell of a CSV file; a text that a spreadsheet would compute gets an apostrophe, as in files.py.
function csvCell(text) {
  const isFormula = /^\s*[=+\-@]/.test(text) && (text.trim() === "" || Number.isNaN(Number(text)));
  const safe = isFormula ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

// Let the reader save rows of texts as a CSV file.
function saveCsv(name, rows) {
  const text = rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

function readData(name) {
  return JSON.parse(document.getElementById(`data-${name}`).textContent);
}
