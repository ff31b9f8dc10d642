// One map of points on a canvas: draw, zoom, pan, find the point below the pointer, draw a lasso.
// Pixels are computed here and not by WebGL, so that a machine without a GPU shows the map as fast.
"use strict";

const FAINT = 56, FULL = 256;  // opacity of a point, of 256

// Pixels of a disc on an image of this width: where each is from the middle, and how much of it is covered (of 256).
function discStamp(radius, width) {
  const reach = Math.ceil(radius), offsets = [], covers = [];
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const cover = Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(x, y)));
      if (cover <= 0.05) continue;
      offsets.push(y * width + x);
      covers.push(Math.round(FULL * cover));
    }
  }
  return { offsets: Int32Array.from(offsets), covers: Int32Array.from(covers) };
}

// Whether a point is inside a polygon of [x, y] pairs, by the even-odd rule.
function isInside(x, y, polygon) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

class Scatter {
  // `shared`: what all maps of a page have in common (see ImageMap); `on`: hover, click and lasso of the reader.
  constructor(canvas, points, shared, on) {
    Object.assign(this, { canvas, points, shared, on, lasso: [], drag: null, zoom: 1 });
    this.count = points.length / 2;
    this.context = canvas.getContext("2d");
    this.bounds = this.findBounds();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.fit();
  }

  findBounds() {
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < this.points.length; i += 2) {
      left = Math.min(left, this.points[i]); right = Math.max(right, this.points[i]);
      bottom = Math.min(bottom, this.points[i + 1]); top = Math.max(top, this.points[i + 1]);
    }
    return { x: (left + right) / 2, y: (bottom + top) / 2, width: right - left || 1, height: top - bottom || 1 };
  }

  fit() {
    Object.assign(this, { x: this.bounds.x, y: this.bounds.y, zoom: 1 });
    this.redraw();
  }

  resize() {
    this.image = null;
    this.redraw();
  }

  // CSS pixels per unit of the map, across and down: it fills its frame, because distances of t-SNE mean little
  get scales() {
    const { canvas, bounds } = this, room = 0.92 * this.zoom;
    return [room * canvas.clientWidth / bounds.width, room * canvas.clientHeight / bounds.height];
  }

  toScreen(index) {
    const { scales: [across, down], canvas, points } = this;
    return [canvas.clientWidth / 2 + (points[2 * index] - this.x) * across,
            canvas.clientHeight / 2 - (points[2 * index + 1] - this.y) * down];
  }

  toMap(left, top) {
    const { scales: [across, down], canvas } = this;
    return [this.x + (left - canvas.clientWidth / 2) / across, this.y - (top - canvas.clientHeight / 2) / down];
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  get radius() {
    const room = Math.sqrt(this.canvas.clientWidth * this.canvas.clientHeight / this.count);
    return Math.max(1.2, Math.min(7, 0.28 * room * Math.sqrt(this.zoom), 3.2 * this.zoom));
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, { canvas, shared } = this;
    const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (!width || !height) return;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      canvas.width = width;
      canvas.height = height;
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(shared.paper);
    const stamp = discStamp(this.radius * ratio, width), faint = shared.selectedCount > 0;
    if (faint) this.stampPoints(stamp, ratio, 0, FAINT);
    this.stampPoints(stamp, ratio, faint ? 1 : null, FULL);
    this.context.putImageData(this.image, 0, 0);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawMarks();
  }

  // Stamp the visible points, all or those that are (not) selected.
  stampPoints(stamp, ratio, selected, opacity) {
    const { points, pixels, scales } = this, { width, height } = this.image, { offsets } = stamp;
    const { visible, classOf, order, selected: isSelected } = this.shared, [across, down] = scales.map((scale) => scale * ratio);
    const covers = stamp.covers.map((cover) => (cover * opacity) >> 8);
    const left = width / 2 - this.x * across, top = height / 2 + this.y * down, reach = Math.ceil(this.radius * ratio);
    for (let k = 0; k < order.length; k++) {
      const i = order[k];
      if (!visible[i] || (selected !== null && isSelected[i] !== selected)) continue;
      const x = Math.round(left + points[2 * i] * across), y = Math.round(top - points[2 * i + 1] * down);
      if (x < reach || y < reach || x >= width - reach || y >= height - reach) continue;
      const colour = this.colourOf(i, classOf[i]), redBlue = colour & 0xff00ff, green = colour & 0xff00;
      for (let s = 0; s < offsets.length; s++) {
        const at = y * width + x + offsets[s], cover = covers[s];
        if (cover === FULL) { pixels[at] = colour; continue; }
        const below = pixels[at], rest = FULL - cover;
        pixels[at] = (0xff000000 | (((redBlue * cover + (below & 0xff00ff) * rest) >>> 8) & 0xff00ff)
          | (((green * cover + (below & 0xff00) * rest) >>> 8) & 0xff00)) >>> 0;
      }
    }
  }

  // Unlabelled points are pale, in the colour of the class that is predicted for them.
  colourOf(index, label) {
    const { colours, pale, unlabelled } = this.shared, { predicted } = this;
    return label < unlabelled ? colours[label] : predicted && predicted[index] >= 0 ? pale[predicted[index]] : pale[unlabelled];
  }

  // Pictures of points that are not close to one another.
  drawPictures() {
    const { context, canvas, shared } = this, { visible, order, classOf, unlabelled } = shared, side = 40, taken = new Set();
    for (let k = order.length - 1; k >= Math.max(0, order.length - 5000); k--) {
      const i = order[k], [x, y] = this.toScreen(i), column = Math.floor(x / 60), row = Math.floor(y / 55);
      if (!visible[i] || classOf[i] === unlabelled || Math.min(x, y, canvas.clientWidth - x, canvas.clientHeight - y) < side / 2) continue;
      if ([-1, 0, 1].some((right) => [-1, 0, 1].some((below) => taken.has(`${column + right} ${row + below}`)))) continue;
      taken.add(`${column} ${row}`);
      shared.sprites.paint(context, i, x - side / 2, y - side / 2, side, shared.cssColours[classOf[i]], () => this.redraw());
    }
  }

  // The middle of the visible points of each class, the largest first; they change with the filters alone.
  findMiddles() {
    const { visible, classOf, unlabelled } = this.shared, rows = new Map();
    for (let i = 0; i < this.count; i++) {
      if (!visible[i] || classOf[i] === unlabelled) continue;
      rows.has(classOf[i]) ? rows.get(classOf[i]).push(i) : rows.set(classOf[i], [i]);
    }
    const middle = (found, channel) => found.map((i) => this.points[2 * i + channel]).sort((a, b) => a - b)[found.length >> 1];
    const largest = [...rows].sort((a, b) => b[1].length - a[1].length).slice(0, 40);
    this.middles = { of: this.shared.filters, list: largest.map(([label, found]) => [label, middle(found, 0), middle(found, 1)]) };
  }

  drawNames() {
    const { context, shared, canvas, scales: [across, down] } = this, taken = [];
    if (this.middles?.of !== shared.filters) this.findMiddles();
    Object.assign(context, { font: "600 13px system-ui, sans-serif", textAlign: "center", lineJoin: "round", lineWidth: 4, strokeStyle: shared.cssPaper, fillStyle: shared.ink });
    for (const [label, mapX, mapY] of this.middles.list) {
      const text = shared.names[label].slice(0, 30), half = context.measureText(text).width / 2;
      const x = canvas.clientWidth / 2 + (mapX - this.x) * across;
      let y = canvas.clientHeight / 2 - (mapY - this.y) * down;
      while (taken.some((other) => Math.abs(other.x - x) < other.half + half + 4 && Math.abs(other.y - y) < 17)) y += 6;
      if (x < half || x > canvas.clientWidth - half || y < 16 || y > canvas.clientHeight) continue;
      taken.push({ x, y, half });
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    }
  }

  drawMarks() {
    const { context, shared } = this;
    if (shared.showsPictures) { this.drawPictures(); this.drawNames(); }
    const ring = (index, radius, width) => {
      const [x, y] = this.toScreen(index);
      context.lineWidth = width;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.stroke();
    };
    context.strokeStyle = shared.ink;
    for (const neighbour of this.neighboursOf(shared.focus)) ring(neighbour, this.radius + 2.5, 1);
    if (shared.focus >= 0) ring(shared.focus, this.radius + 5, 2.5);
    if (shared.hovered >= 0) ring(shared.hovered, this.radius + 3.5, 2);
    if (this.lasso.length) {
      context.strokeStyle = shared.accent;
      context.lineWidth = 1.5;
      context.beginPath();
      for (const [left, top] of this.lasso) context.lineTo(left, top);
      context.closePath();
      context.stroke();
    }
  }

  neighboursOf(index) {
    if (index < 0) return [];
    const many = this.neighbours.length / this.count;
    return this.neighbours.subarray(index * many, (index + 1) * many);
  }

  // The visible point nearest to a place on the screen, within a few pixels; -1 if there is none.
  find(left, top) {
    const [x, y] = this.toMap(left, top), { points, scales: [across, down] } = this, { visible } = this.shared;
    let best = (this.radius + 5) ** 2, nearest = -1;
    for (let i = 0; i < this.count; i++) {
      const distance = ((points[2 * i] - x) * across) ** 2 + ((points[2 * i + 1] - y) * down) ** 2;
      if (distance <= best && visible[i]) [best, nearest] = [distance, i];
    }
    return nearest;
  }

  zoomAt(left, top, factor) {
    const [x, y] = this.toMap(left, top);
    this.zoom = Math.max(0.5, Math.min(2000, this.zoom * factor));
    const [newX, newY] = this.toMap(left, top);
    this.x += x - newX;
    this.y += y - newY;
    this.redraw();
  }

  listen() {
    const { canvas, on, shared } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomAt(event.offsetX, event.offsetY, Math.exp(-0.002 * event.deltaY));
    }, { passive: false });
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.drag = { left: event.offsetX, top: event.offsetY, moved: false, lasso: shared.lassoMode || event.shiftKey };
      if (this.drag.lasso) this.lasso = [[event.offsetX, event.offsetY]];
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.forgetDrag());
    canvas.addEventListener("pointerleave", () => { if (!this.drag) on.hover(this, -1); });
  }

  forgetDrag() {
    this.drag = null;
    this.lasso = [];
    this.redraw();
  }

  move(event) {
    const { drag } = this, [left, top] = [event.offsetX, event.offsetY];
    if (!drag) {
      this.on.hover(this, this.find(left, top), event);
      return;
    }
    drag.moved ||= Math.hypot(left - drag.left, top - drag.top) > 3;
    if (!drag.moved) return;
    this.on.hover(this, -1);
    if (drag.lasso) {
      this.lasso.push([left, top]);
    } else {
      const [across, down] = this.scales;
      this.x -= (left - drag.left) / across;
      this.y += (top - drag.top) / down;
      [drag.left, drag.top] = [left, top];
    }
    this.redraw();
  }

  release(event) {
    const { drag } = this, lasso = this.lasso;
    this.drag = null;
    this.lasso = [];
    if (drag && !drag.moved) this.on.click(this, this.find(event.offsetX, event.offsetY));
    if (drag && drag.moved && drag.lasso) {
      this.on.lasso(this, lasso.map(([left, top]) => this.toMap(left, top)), event.ctrlKey || event.metaKey);
    }
    this.redraw();
  }
}
