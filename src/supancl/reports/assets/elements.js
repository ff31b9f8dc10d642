// What several pages need: elements, data that Python put into the page, and CSV files that the reader saves.
"use strict";

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
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
