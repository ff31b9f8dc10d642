// The page of `supancl audit`: suspects, duplicates and outliers, a page at a time; new labels are saved as CSV.
"use strict";

const PER_PAGE = 25;
const KEYS = { r: "relabelled", k: "kept", e: "emptied", u: "" };

class AuditPage {
  constructor(data, sprites) {
    this.sprites = new Sprites(sprites);
    this.data = data;
    this.labels = unpackArray(data.labels);
    this.splitOf = unpackArray(data.split_of);
    this.tabs = {
      suspects: { title: "Suspects", ...data.suspects, card: (entry) => this.suspectCard(entry), shows: { "": "all suspects", undecided: "undecided", relabelled: "relabelled", kept: "kept", emptied: "emptied" } },
      duplicates: { title: "Duplicates", ...data.duplicates, card: (entry) => this.duplicateCard(entry), shows: { "": "all pairs", splits: "across splits", labels: "with different labels", same: "with the same pixels" } },
      outliers: { title: "Outliers", ...data.outliers, card: (entry) => this.outlierCard(entry), shows: { "": "all outliers" } },
    };
    this.store = `supancl-audit ${location.pathname}`;
    this.decisions = new Map(); // image -> relabelled, kept or emptied
    this.restore();
    this.addControls();
    this.open(Object.keys(this.tabs).find((name) => this.tabs[name].entries.length) ?? "suspects");
  }

  isShown(entry, show) {
    const [first, second] = entry.images;
    if (this.tab === this.tabs.suspects) return (this.decisions.get(first) ?? "undecided") === show;
    if (show === "same") return entry.kind === "same pixels";
    return show === "splits" ? this.splitOf[first] !== this.splitOf[second] : this.hasOtherLabel(entry);
  }

  className(label, unlabelled = "(unlabelled)") {
    return label < 0 ? unlabelled : this.data.classes[label];
  }

  hasOtherLabel(entry) {
    const [first, second] = entry.images.map((image) => this.labels[image]);
    return first !== second && Math.min(first, second) >= 0;
  }

  // --- controls ------------------------------------------------------------------------------------------------------

  addControls() {
    const find = (id) => document.getElementById(id);
    for (const [name, tab] of Object.entries(this.tabs)) {
      const button = element("button", "", `${tab.title} (${tab.total.toLocaleString("en")})`);
      Object.assign(button, { type: "button", id: `tab-${name}` });
      button.addEventListener("click", () => this.open(name));
      find("tabs").append(button);
    }
    const used = new Set(Object.values(this.tabs).flatMap((tab) => tab.entries).flatMap((entry) => this.labelsOf(entry)));
    this.data.classes.forEach((name, label) => { if (used.has(label)) find("class").append(new Option(name, label)); });
    find("search").addEventListener("input", () => this.filter());
    for (const id of ["class", "show"]) find(id).addEventListener("change", () => this.filter());
    find("previous").addEventListener("click", () => this.leaf(-1));
    find("next").addEventListener("click", () => this.leaf(1));
    find("save").addEventListener("click", () => this.save());
    document.addEventListener("keydown", (event) => this.press(event));
  }

  labelsOf(entry) {
    return [...entry.images.map((image) => this.labels[image]), ...(entry.suggested === undefined ? [] : [entry.suggested])];
  }

  open(name) {
    this.tab = this.tabs[name];
    for (const button of document.querySelectorAll("#tabs button")) {
      button.setAttribute("aria-pressed", button.id === `tab-${name}`);
    }
    const list = document.getElementById("show");
    list.replaceChildren(...Object.entries(this.tab.shows).map(([value, text]) => new Option(text, value)));
    list.hidden = list.length < 2;
    document.getElementById("keys").hidden = name !== "suspects";
    this.filter();
  }

  filter() {
    const read = (id) => document.getElementById(id).value;
    const words = read("search").trim().toLowerCase(), label = read("class"), show = read("show");
    this.shown = this.tab.entries.filter((entry) =>
      (!label || this.labelsOf(entry).includes(Number(label)))
      && (!show || this.isShown(entry, show))
      && (!words || this.searchText(entry).includes(words)));
    this.turn(0);
  }

  searchText(entry) {
    entry.text ??= [...entry.images.map((image) => this.data.prefix + this.data.names[image]), ...this.labelsOf(entry).map((label) => this.className(label))].join("\n").toLowerCase();
    return entry.text;
  }

  // --- a page of cards -----------------------------------------------------------------------------------------------

  turn(page) {
    const pages = Math.max(1, Math.ceil(this.shown.length / PER_PAGE));
    this.page = Math.min(Math.max(page, 0), pages - 1);
    this.entries = this.shown.slice(this.page * PER_PAGE, (this.page + 1) * PER_PAGE);
    this.cards = this.entries.map((entry) => this.tab.card(entry));
    const nothing = element("p", "small", this.tab.total ? "Nothing fits these filters." : "Nothing was found.");
    document.getElementById("list").replaceChildren(...(this.cards.length ? this.cards : [nothing]));
    document.getElementById("page").textContent = `page ${this.page + 1} of ${pages}`;
    document.getElementById("previous").disabled = this.page === 0;
    document.getElementById("next").disabled = this.page === pages - 1;
    const { total, entries } = this.tab, count = (number) => number.toLocaleString("en");
    const left = entries.length < total ? `; the table has all ${count(total)}` : "";
    document.getElementById("shown").textContent = `${count(this.shown.length)} of ${count(entries.length)} shown${left}`;
    this.focusCard(-1);
    this.countDecisions();
  }

  // The next or previous page, from its first card.
  leaf(step) {
    const list = document.getElementById("list");
    this.turn(this.page + step);
    if (list.getBoundingClientRect().top < 0) list.scrollIntoView();
  }

  // With a red frame if both labels are known and differ.
  thumbnail(image, given) {
    const canvas = element("canvas", "thumbnail pixels");
    canvas.classList.toggle("other", given >= 0 && this.labels[image] >= 0 && this.labels[image] !== given);
    giveName(canvas, `${this.className(this.labels[image])}\n${this.data.prefix}${this.data.names[image]} (${this.data.splits[this.splitOf[image]]})`, "img");
    this.sprites.draw(canvas, image);
    return canvas;
  }

  // A picture with its label below.
  figure(image, given) {
    const figure = element("figure");
    figure.append(this.thumbnail(image, given), wrappable(element("figcaption"), this.className(this.labels[image], "no label")));
    return figure;
  }

  describe(image) {
    return wrappable(element("div", "small"), `${this.data.names[image]} (${this.data.splits[this.splitOf[image]]})`);
  }

  card(entry, ...parts) {
    const card = element("article", "audit-card");
    card.append(...parts);
    if (entry.neighbours) {
      const given = this.labels[entry.images[0]], list = element("div", "audit-neighbours");
      list.append(...entry.neighbours.map((image) => this.figure(image, given)));
      card.append(list);
    }
    return card;
  }

  suspectCard(entry) {
    const [image] = entry.images, about = element("div", "audit-about");
    const given = element("div"), suggested = element("div"), buttons = element("div", "audit-row");
    given.append(element("span", "small", "label "), element("strong", "bad", this.className(this.labels[image])));
    suggested.append(element("span", "small", "suggested "), element("strong", "good", this.className(entry.suggested)));
    for (const [name, text] of [["relabelled", "Relabel"], ["kept", "Keep"], ["emptied", "Empty"]]) {
      const button = element("button", "", text);
      button.dataset.decision = name;
      button.addEventListener("click", () => {
        this.focusCard(this.entries.indexOf(entry));
        this.decide(entry, this.decisions.get(image) === name ? "" : name);
      });
      buttons.append(button);
    }
    about.append(given, suggested, element("div", "small", `score ${entry.value.toFixed(2)}, suggested ${entry.suggestedScore.toFixed(2)}`), this.describe(image), buttons);
    const card = this.card(entry, this.thumbnail(image), about);
    card.dataset.image = image;
    this.markDecision(card, image);
    return card;
  }

  duplicateCard(entry) {
    const parts = entry.images.map((image) => {
      const about = element("div", "audit-about");
      about.append(element("strong", this.hasOtherLabel(entry) ? "bad" : "", this.className(this.labels[image])), this.describe(image));
      const side = element("div", "audit-side");
      side.append(this.thumbnail(image), about);
      return side;
    });
    const words = { "same pixels": "same pixels", near: "nearly the same", mirrored: "mirrored" };
    const difference = entry.kind === "same pixels" ? "" : `, difference ${entry.value.toFixed(1)} of 255`;
    return this.card(entry, ...parts, element("div", "small audit-kind", words[entry.kind] + difference));
  }

  outlierCard(entry) {
    const [image] = entry.images, about = element("div", "audit-about");
    about.append(element("strong", "", this.className(this.labels[image])),
      element("div", "small", `${entry.value.toFixed(1)} times as far from its neighbours as usual`), this.describe(image));
    return this.card(entry, this.thumbnail(image), about);
  }

  // --- decisions -----------------------------------------------------------------------------------------------------

  press(event) {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "n" || event.key === "p") this.leaf(event.key === "n" ? 1 : -1);
    if (this.tab !== this.tabs.suspects || !this.entries.length) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      this.focusCard(Math.min(Math.max(this.focused + step, 0), this.entries.length - 1));
    } else if (event.key in KEYS && this.focused >= 0) {
      this.decide(this.entries[this.focused], KEYS[event.key]);
      if (KEYS[event.key] && this.focused < this.entries.length - 1) this.focusCard(this.focused + 1);
    }
  }

  focusCard(position) {
    this.focused = position;
    this.cards.forEach((card, i) => card.classList.toggle("focused", i === position));
    if (position >= 0) this.cards[position].scrollIntoView({ block: "nearest" });
  }

  decide(entry, decision) {
    const [image] = entry.images;
    decision ? this.decisions.set(image, decision) : this.decisions.delete(image);
    this.markDecision(this.cards[this.entries.indexOf(entry)], image);
    this.countDecisions();
    try { localStorage.setItem(this.store, JSON.stringify({ key: this.key(), decisions: [...this.decisions] })); } catch { /* not kept */ }
  }

  // Decisions of an earlier visit, if the file is still the same.
  restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(this.store));
      if (kept && kept.key === this.key()) this.decisions = new Map(kept.decisions);
    } catch { /* no storage: start anew */ }
  }

  key() {
    return [this.data.names.length, ...this.tabs.suspects.entries.map((entry) => entry.images[0])].join(" ");
  }

  markDecision(card, image) {
    for (const button of card.querySelectorAll("[data-decision]")) {
      button.setAttribute("aria-pressed", this.decisions.get(image) === button.dataset.decision);
    }
    card.dataset.decided = this.decisions.get(image) ?? "";
  }

  countDecisions() {
    const count = (name) => [...this.decisions.values()].filter((decision) => decision === name).length;
    document.getElementById("decided").textContent = ["relabelled", "kept", "emptied"].map((name) => `${count(name)} ${name}`).join(", ");
    document.getElementById("save").disabled = !this.decisions.size;
  }

  // All images as a source: path, label, split. Of images that are no files only those that were decided on.
  save() {
    const suggested = new Map(this.tabs.suspects.entries.map((entry) => [entry.images[0], entry.suggested]));
    const images = this.data.hasFiles ? [...this.data.names.keys()] : [...this.decisions.keys()];
    const rows = images.map((image) => {
      const decision = this.decisions.get(image), split = this.data.splits[this.splitOf[image]];
      const label = decision === "emptied" ? -1 : decision === "relabelled" ? suggested.get(image) : this.labels[image];
      return [this.data.prefix + this.data.names[image], this.className(label, ""), split === "held-out" ? "train" : split];
    });
    saveCsv("relabelled.csv", [["path", "label", "split"], ...rows]);
  }
}

const auditPage = new AuditPage(readData("audit"), readData("sprites"));
