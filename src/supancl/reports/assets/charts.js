// Line charts: <figure class="chart" data-chart="NAME">, with data {title, x, curves: [{name, colour, points: [[x, y], ...]}]}.
// Curves are named if there are several, or if `legend` is true.
// Move over a chart or use arrows, Home and End to read values; drag to zoom in, double-click or Escape to see everything.
"use strict";
{
  const WIDTH = 400, HEIGHT = 220, LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 30;
  const SVG = "http://www.w3.org/2000/svg";

  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };

  const shorten = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
    return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
  };

  // round numbers between low and high, about `count` of them
  const ticks = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-6; i += 1) found.push(i * step);
    return found;
  };

  // around a single value lies `room` on both sides
  const bounds = (values, room = Math.abs(values[0]) * 0.05 || 0.5) => {
    const low = Math.min(...values), high = Math.max(...values);
    return low === high ? [low - room, high + room] : [low, high];
  };

  class Chart {
    constructor(figure, spec) {
      this.spec = spec;
      this.range = null; // of x, while zoomed
      this.at = null; // the x that is read
      this.hidden = new Set();
      const caption = document.createElement("figcaption");
      caption.textContent = spec.title;
      this.svg = document.createElementNS(SVG, "svg");
      this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
      this.svg.setAttribute("role", "img");
      this.svg.setAttribute("aria-label", `${spec.title}; arrow keys read values`);
      this.svg.setAttribute("tabindex", "0");
      this.readout = document.createElement("div");
      this.readout.className = "readout";
      this.readout.setAttribute("role", "status"); // a screen reader says it
      figure.append(caption, this.svg, this.readout);
      this.isNamed = spec.curves.length > 1 || spec.legend;
      if (this.isNamed) figure.append(this.legend());
      this.listen();
      this.draw();
    }

    legend() {
      const legend = document.createElement("div");
      legend.className = "legend small";
      for (const curve of this.spec.curves) {
        const button = document.createElement("button"), key = document.createElement("span");
        key.className = "key";
        key.style.background = `var(--s${curve.colour})`;
        button.append(key, curve.name);
        button.setAttribute("aria-pressed", "true");
        button.addEventListener("click", () => {
          if (!this.hidden.delete(curve.name)) this.hidden.add(curve.name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(curve.name)));
          this.draw();
        });
        legend.append(button);
      }
      return legend;
    }

    visible() {
      const [low, high] = this.range ?? [-Infinity, Infinity];
      return this.spec.curves.filter((curve) => !this.hidden.has(curve.name))
        .map((curve) => ({ ...curve, points: curve.points.filter(([x, y]) => y !== null && x >= low && x <= high) }));
    }

    draw() {
      this.svg.replaceChildren();
      const curves = this.visible(), points = curves.flatMap((curve) => curve.points);
      this.drawn = curves;
      if (!points.length) return;
      this.xs = this.range ?? bounds(points.map(([x]) => x), 1);
      const [low, high] = bounds(points.map(([, y]) => y)), margin = (high - low) * 0.05;
      this.ys = [low - margin, high + margin];
      for (const y of ticks(...this.ys, 5)) {
        make("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: this.toY(y), y2: this.toY(y) }, this.svg);
        make("text", { x: LEFT - 6, y: this.toY(y) + 4, "text-anchor": "end" }, this.svg).textContent = shorten(y);
      }
      for (const x of ticks(...this.xs, 5)) {
        const anchor = this.toX(x) > WIDTH - 3 * RIGHT ? "end" : "middle"; // the last one must not be cut off
        make("text", { x: this.toX(x), y: HEIGHT - 15, "text-anchor": anchor }, this.svg).textContent = shorten(x);
      }
      make("text", { x: WIDTH - RIGHT, y: HEIGHT - 2, "text-anchor": "end" }, this.svg).textContent = this.spec.x;
      for (const curve of curves) {
        const path = curve.points.map(([x, y], i) => `${i ? "L" : "M"}${this.toX(x).toFixed(1)} ${this.toY(y).toFixed(1)}`);
        make("path", { class: "curve", d: path.join(""), style: `stroke: var(--s${curve.colour})` }, this.svg);
        if (curve.points.length === 1) {
          const [[x, y]] = curve.points;
          make("circle", { cx: this.toX(x), cy: this.toY(y), r: 3, style: `fill: var(--s${curve.colour})` }, this.svg);
        }
      }
      this.cursor = make("line", { class: "axis", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, this.svg);
      this.box = make("rect", { class: "zoom", y: TOP, height: HEIGHT - TOP - BOTTOM, visibility: "hidden" }, this.svg);
    }

    zoom(range) {
      this.range = range;
      this.svg.parentElement.toggleAttribute("data-zoomed", range !== null);
      this.draw();
    }

    toX(value) { return LEFT + (value - this.xs[0]) / (this.xs[1] - this.xs[0]) * (WIDTH - LEFT - RIGHT); }

    toY(value) { return TOP + (this.ys[1] - value) / (this.ys[1] - this.ys[0]) * (HEIGHT - TOP - BOTTOM); }

    // the x under the pointer
    fromEvent(event) {
      const box = this.svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * WIDTH;
      const share = Math.min(Math.max((at - LEFT) / (WIDTH - LEFT - RIGHT), 0), 1);
      return this.xs[0] + share * (this.xs[1] - this.xs[0]);
    }

    read(x) {
      const nearest = (points) => points.reduce((best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best);
      const found = this.drawn.filter((curve) => curve.points.length).map((curve) => [curve.name, nearest(curve.points)]);
      if (!found.length) return;
      const at = this.at = found[0][1][0];
      this.cursor.setAttribute("x1", this.toX(at));
      this.cursor.setAttribute("x2", this.toX(at));
      this.cursor.setAttribute("visibility", "visible");
      this.readout.textContent = `${this.spec.x} ${shorten(at)}: ` +
        found.map(([name, [, y]]) => (this.isNamed ? `${name} ` : "") + shorten(y)).join(", ");
    }

    stopReading() {
      this.at = null;
      this.readout.textContent = "";
      this.cursor?.setAttribute("visibility", "hidden");
    }

    // whether the chart knows the key
    press(event) {
      const points = this.drawn.find((curve) => curve.points.length)?.points;
      if (!points || event.ctrlKey || event.metaKey || event.altKey) return false;
      const { key } = event, last = points.length - 1, index = points.findIndex(([x]) => x === this.at);
      const steps = { ArrowLeft: index < 0 ? last : index - 1, ArrowRight: index + 1, Home: 0, End: last };
      if (key in steps) this.read(points[Math.min(Math.max(steps[key], 0), last)][0]);
      else if (key === "Escape") this.zoom(null);
      else return false;
      return true;
    }

    listen() {
      let from = null;
      this.svg.addEventListener("pointerdown", (event) => {
        if (!this.drawn.some((curve) => curve.points.length)) return;
        from = this.fromEvent(event);
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointermove", (event) => {
        if (!this.cursor) return;
        const x = this.fromEvent(event);
        this.read(x);
        if (from === null) return;
        const ends = [this.toX(from), this.toX(x)].sort((a, b) => a - b);
        this.box.setAttribute("x", ends[0]);
        this.box.setAttribute("width", ends[1] - ends[0]);
        this.box.setAttribute("visibility", "visible");
      });
      this.svg.addEventListener("pointerup", (event) => {
        if (from === null) return;
        const range = [from, this.fromEvent(event)].sort((a, b) => a - b);
        from = null;
        if (this.toX(range[1]) - this.toX(range[0]) > 6) this.zoom(range);
      });
      this.svg.addEventListener("pointerleave", () => this.stopReading());
      this.svg.addEventListener("blur", () => this.stopReading());
      this.svg.addEventListener("keydown", (event) => { if (this.press(event)) event.preventDefault(); });
      this.svg.addEventListener("dblclick", () => this.zoom(null));
    }
  }

  const data = JSON.parse(document.getElementById("data-charts").textContent);
  for (const figure of document.querySelectorAll("figure[data-chart]")) new Chart(figure, data[figure.dataset.chart]);
}
