// A page that is written again while a run trains: load it again, unless the reader is looking at a value.
"use strict";
{
  const every = 1000 * JSON.parse(document.getElementById("data-live").textContent).seconds; // milliseconds
  let lastMove = 0;
  addEventListener("pointermove", () => { lastMove = Date.now(); });
  setInterval(() => {
    const isZoomed = document.querySelector("figure[data-zoomed]") !== null;
    if (document.visibilityState === "visible" && !isZoomed && Date.now() - lastMove > every / 3) location.reload();
  }, every);
}
