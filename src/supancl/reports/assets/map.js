// The page of `supancl map`: maps of several encoders with one selection, filters, hovering, neighbours, CSV.
"use strict";

const MOST_SHOWN = 60;  // thumbnails of a selection

class ImageMap {
  constructor(data, sprites) {
    this.sprites = new Sprites(sprites);
    this.names = data.names;
    this.prefix = data.prefix;
    this.count = data.names.length;
    this.classes = [...data.classes, "(unlabelled)"];
    this.splits = data.splits;
    this.splitOf = unpackArray(data.split_of);
    this.colours = data.colours;
    const classOf = unpackArray(data.labels).map((label) => (label < 0 ? data.classes.length : label));
    // what all maps share; images are drawn in this order, so that no class hides all others
    this.shared = {
      classOf, order: unpackArray(data.order), visible: new Uint8Array(this.count).fill(1),
      selected: new Uint8Array(this.count), selectedCount: 0, hovered: -1, focus: -1, lassoMode: false,
      sprites: this.sprites, names: this.classes, unlabelled: data.classes.length, showsPictures: true,
    };
    this.classOf = classOf;
    this.cells = data.cells; // all labels of each image as in a .csv, if images have several; classOf is its colour
    this.hiddenClasses = new Set();
    this.counts = new Array(this.classes.length).fill(0);
    for (const label of classOf) this.counts[label]++;
    this.searchTexts = null;
    this.takeColours();
    this.scatters = data.encoders.map((encoder) => this.addPanel(encoder));
    this.addControls();
    this.filter();
    this.select([]);
  }

  addPanel(encoder) {
    const figure = element("figure", "map-panel"), canvas = element("canvas");
    canvas.setAttribute("aria-label", `map of ${encoder.title}`);
    figure.append(element("figcaption", "", encoder.title), canvas);
    document.getElementById("maps").append(figure);
    const scatter = new Scatter(canvas, unpackArray(encoder.points), this.shared, {
      hover: (...hovered) => this.hover(...hovered),
      click: (_, index) => this.focus(index),
      lasso: (map, polygon, adds) => this.selectInside(map, polygon, adds),
    });
    for (const name of ["neighbours", "predicted", "share"]) scatter[name] = unpackArray(encoder[name]);
    scatter.title = encoder.title;
    return scatter;
  }

  addControls() {
    const find = (id) => document.getElementById(id);
    for (const split of this.splits) find("split").append(new Option(split, split));
    find("split").hidden = this.splits.length < 2;
    find("split").addEventListener("change", () => this.filter());
    find("search").addEventListener("input", () => this.filter());
    find("lasso").addEventListener("click", () => {
      this.shared.lassoMode = !this.shared.lassoMode;
      find("lasso").setAttribute("aria-pressed", this.shared.lassoMode);
    });
    find("pictures").addEventListener("click", () => {
      this.shared.showsPictures = !this.shared.showsPictures;
      find("pictures").setAttribute("aria-pressed", this.shared.showsPictures);
      this.redraw();
    });
    find("fit").addEventListener("click", () => this.scatters.forEach((scatter) => scatter.fit()));
    find("select-shown").addEventListener("click", () => this.select(this.indices((i) => this.shared.visible[i])));
    find("clear").addEventListener("click", () => this.clear());
    find("save").addEventListener("click", () => this.save());
    find("all-classes").addEventListener("click", () => this.showClasses(true));
    find("no-classes").addEventListener("click", () => this.showClasses(false));
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.target.matches("[type=search]")) this.clear(); });
    document.addEventListener("themechange", () => this.changeTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.changeTheme());
    this.addClasses(find("classes"));
  }

  addClasses(list) {
    this.classes.forEach((name, label) => {
      if (!this.counts[label]) return;
      const line = element("label"), box = element("input"), key = element("span", "key");
      box.type = "checkbox";
      box.checked = true;
      box.dataset.label = label;
      box.addEventListener("change", () => {
        box.checked ? this.hiddenClasses.delete(label) : this.hiddenClasses.add(label);
        this.filter();
      });
      key.style.background = this.cssColour(label);
      line.append(box, key, element("span", "name", name), element("span", "small", this.counts[label].toLocaleString("en")));
      list.append(line);
    });
  }

  // --- colours -------------------------------------------------------------------------------------------------------

  // A class's colour as [red, green, blue]; moved towards the text's where the background is nearly the same.
  rgb(label) {
    const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const colour = parse(this.colours[label] ?? "#999999"), light = (rgb) => 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2];
    if (Math.abs(light(colour) - light(this.paper)) > 50) return colour;
    return colour.map((part, channel) => Math.round((part + this.ink[channel]) / 2));
  }

  cssColour(label) {
    return `rgb(${this.rgb(label).join(" ")})`;
  }

  takeColours() {
    const pack = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    const probe = document.getElementById("maps");
    const read = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    };
    this.paper = read("--paper");
    this.ink = read("--text");
    this.shared.accent = `rgb(${read("--accent").join(" ")})`;
    probe.style.color = "";
    this.shared.paper = pack(this.paper);
    this.shared.ink = `rgb(${this.ink.join(" ")})`;
    this.shared.colours = new Uint32Array(this.classes.map((_, label) => pack(this.rgb(label))));
    const fade = (rgb) => rgb.map((part, channel) => Math.round(0.3 * part + 0.7 * this.paper[channel]));
    this.shared.pale = new Uint32Array(this.classes.map((_, label) => pack(fade(this.rgb(label)))));
    this.shared.cssColours = this.classes.map((_, label) => this.cssColour(label));
    this.shared.cssPaper = `rgb(${this.paper.join(" ")})`;
  }

  changeTheme() {
    this.takeColours();
    for (const box of document.querySelectorAll("#classes input")) {
      box.nextSibling.style.background = this.cssColour(Number(box.dataset.label));
    }
    this.redraw();
  }

  redraw() {
    for (const scatter of this.scatters) scatter.redraw();
  }

  // --- filters -------------------------------------------------------------------------------------------------------

  indices(condition) {
    const found = [];
    for (let i = 0; i < this.count; i++) if (condition(i)) found.push(i);
    return found;
  }

  showClasses(isShown) {
    for (const box of document.querySelectorAll("#classes input")) {
      box.checked = isShown;
      isShown ? this.hiddenClasses.delete(Number(box.dataset.label)) : this.hiddenClasses.add(Number(box.dataset.label));
    }
    this.filter();
  }

  // Show images of the checked classes and the chosen split whose name or class has the text searched for.
  filter() {
    this.shared.filters = {}; // another one each time
    const { visible } = this.shared, words = document.getElementById("search").value.trim().toLowerCase();
    const split = this.splits.indexOf(document.getElementById("split").value);
    const isFound = this.classes.map((name) => name.toLowerCase().includes(words));
    if (words) this.searchTexts ??= this.names.map((name, i) => `${name} ${this.cells?.[i] ?? ""}`.toLowerCase());
    let shown = 0;
    for (let i = 0; i < this.count; i++) {
      visible[i] = !this.hiddenClasses.has(this.classOf[i]) && (split < 0 || this.splitOf[i] === split)
        && (!words || isFound[this.classOf[i]] || this.searchTexts[i].includes(words)) ? 1 : 0;
      shown += visible[i];
    }
    document.getElementById("shown").textContent = `${shown.toLocaleString("en")} of ${this.count.toLocaleString("en")} images shown`;
    this.redraw();
  }

  // --- selection -----------------------------------------------------------------------------------------------------

  selectInside(scatter, polygon, adds) {
    const { points } = scatter, { visible, selected } = this.shared;
    this.select(this.indices((i) => (adds && selected[i]) || (visible[i] && isInside(points[2 * i], points[2 * i + 1], polygon))));
  }

  select(indices) {
    this.shared.selected.fill(0);
    for (const index of indices) this.shared.selected[index] = 1;
    this.shared.selectedCount = indices.length;
    this.selection = indices;
    document.getElementById("selected").textContent = indices.length
      ? `${indices.length.toLocaleString("en")} selected` : "Nothing selected: draw a lasso (or drag with Shift)";
    document.getElementById("save").disabled = !indices.length;
    const more = indices.length > MOST_SHOWN ? [element("p", "small", `and ${(indices.length - MOST_SHOWN).toLocaleString("en")} more, in the CSV`)] : [];
    document.getElementById("selection").replaceChildren(this.thumbnails(indices.slice(0, MOST_SHOWN)), ...more);
    this.redraw();
  }

  clear() {
    this.select([]);
    this.focus(-1);
  }

  save() {
    const rows = this.selection.map((i) => [this.prefix + this.names[i], this.cell(i), this.splits[this.splitOf[i]], this.classes[this.scatters[0].predicted[i]] ?? ""]);
    saveCsv("selection.csv", [["path", "label", "split", "predicted"], ...rows]);
  }

  // --- one image -----------------------------------------------------------------------------------------------------

  // Its labels as a cell of a .csv.
  cell(index) {
    return this.cells?.[index] ?? (this.isLabelled(index) ? this.classes[this.classOf[index]] : "");
  }

  className(index) {
    return this.cell(index).split(";").filter(Boolean).join(", ") || this.classes[this.classes.length - 1];
  }

  isLabelled(index) {
    return this.classOf[index] < this.classes.length - 1;
  }

  describe(index) {
    const predictions = this.scatters.filter((scatter) => scatter.predicted[index] >= 0).map((scatter) => {
      const of = this.scatters.length > 1 ? ` (${scatter.title})` : "", label = scatter.predicted[index];
      const isOther = this.isLabelled(index) && label !== this.classOf[index];
      return element("span", isOther ? "small bad" : "small", `predicted ${this.classes[label]} ${scatter.share[index]}%${of}`);
    });
    return [element("strong", "", this.className(index)), ...predictions, element("span", "small", `${this.names[index]} (${this.splits[this.splitOf[index]]})`)];
  }

  thumbnail(index) {
    const canvas = element("canvas", "thumbnail pixels");
    giveName(canvas, `${this.className(index)}\n${this.names[index]}`, "button");
    canvas.tabIndex = 0;
    canvas.addEventListener("click", () => this.focus(index));
    canvas.addEventListener("keydown", (event) => { if (event.key === "Enter") this.focus(index); });
    canvas.addEventListener("pointerenter", () => this.mark(index));
    canvas.addEventListener("pointerleave", () => this.mark(-1));
    this.sprites.draw(canvas, index);
    return canvas;
  }

  thumbnails(indices) {
    const list = element("div", "thumbnails");
    list.append(...indices.map((index) => this.thumbnail(index)));
    return list;
  }

  mark(index) {
    if (index === this.shared.hovered) return;
    this.shared.hovered = index;
    this.redraw();
  }

  hover(scatter, index, event) {
    const tip = document.getElementById("tip");
    this.mark(index);
    tip.hidden = index < 0;
    if (index < 0) return;
    this.sprites.draw(tip.querySelector("canvas"), index);
    tip.querySelector("div").replaceChildren(...this.describe(index));
    const isLeft = event.clientX < innerWidth / 2, isTop = event.clientY < innerHeight / 2;
    tip.style.left = isLeft ? `${event.clientX + 18}px` : "";
    tip.style.right = isLeft ? "" : `${innerWidth - event.clientX + 18}px`;
    tip.style.top = isTop ? `${event.clientY + 12}px` : "";
    tip.style.bottom = isTop ? "" : `${innerHeight - event.clientY + 12}px`;
  }

  // Show an image and its nearest neighbours in the features of each encoder; -1 shows none.
  focus(index) {
    const section = document.getElementById("image");
    this.shared.focus = index;
    this.redraw();
    if (index < 0) {
      section.replaceChildren(element("p", "small", "Near points are images with similar features (t-SNE); distances between groups mean little. Click a point: its image and nearest neighbours appear here."));
      return;
    }
    const figure = element("figure", "large"), caption = element("figcaption");
    caption.append(...this.describe(index));
    figure.append(this.thumbnail(index), caption);
    const lists = this.scatters.flatMap((scatter) => {
      const neighbours = [...scatter.neighboursOf(index)], list = this.thumbnails(neighbours);
      list.dataset.encoder = scatter.title;
      const labelled = neighbours.filter((other) => this.isLabelled(other));
      const same = this.isLabelled(index) ? labelled.filter((other) => this.classOf[other] === this.classOf[index]) : labelled;
      neighbours.forEach((other, k) => list.children[k].classList.toggle("other", labelled.includes(other) && !same.includes(other)));
      const have = this.isLabelled(index) ? "have this class" : "have a label";
      const without = this.isLabelled(index) && labelled.length < neighbours.length ? `, ${neighbours.length - labelled.length} no label` : "";
      const many = labelled.length || this.isLabelled(index) ? `${same.length} of the ${neighbours.length} nearest ${have}${without}` : `the ${neighbours.length} nearest`;
      return [element("p", "small", `${scatter.title}: ${many}`), list];
    });
    section.replaceChildren(figure, ...lists);
  }
}

const imageMap = new ImageMap(readData("map"), readData("sprites"));
imageMap.focus(-1);
