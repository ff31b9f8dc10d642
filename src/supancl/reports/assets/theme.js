// Light or dark: as the system has it, until the reader presses the button; a page that loads itself again keeps that.
"use strict";
{
  const button = document.getElementById("theme"), { dataset } = document.documentElement;
  const isDark = () => (dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  if (history.state?.theme) dataset.theme = history.state.theme;
  button.addEventListener("click", () => {
    dataset.theme = isDark() ? "light" : "dark";
    show();
    document.dispatchEvent(new Event("themechange"));
    // not in sessionStorage: of a page from disk Chromium loses it in some reloads
    history.replaceState({ ...history.state, theme: dataset.theme }, "");
  });
  show();
}
