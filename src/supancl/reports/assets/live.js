// A page that is written again while a run trains: load it again, unless the reader is looking at a value.
"use strict";
{
  const EVERY = 15000, REST = 5000; // milliseconds
  let lastMove = 0;
  addEventListener("pointermove", () => { lastMove = Date.now(); });
  setInterval(() => {
    const isZoomed = document.querySelector("figure[data-zoomed]") !== null;
    if (document.visibilityState === "visible" && !isZoomed && Date.now() - lastMove > REST) location.reload();
  }, EVERY);
}
