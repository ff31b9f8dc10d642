// Light or dark: as the system has it, until the reader presses the button; a page that loads itself again keeps that.
"use strict";
{
  const button = document.getElementById("theme"), { dataset } = document.documentElement;
  const isDark = () => (dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  try { if (sessionStorage.theme) dataset.theme = sessionStorage.theme; } catch { /* no storage */ }
  button.addEventListener("click", () => {
    dataset.theme = isDark() ? "light" : "dark";
    try { sessionStorage.theme = dataset.theme; } catch { /* not kept */ }
    show();
    document.dispatchEvent(new Event("themechange"));
  });
  show();
}
