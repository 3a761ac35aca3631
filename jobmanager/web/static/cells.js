// Draws the local jobs of a grid job as a field of cells, one SVG path per kind, and lets mouse and keys walk over it.

const SVG = "http://www.w3.org/2000/svg";
const PITCHES = [22, 18, 15, 12, 10, 8, 7, 6, 5];
const TALLEST = 420;

class Field {
  constructor(box) {
    this.box = box;
    this.says = document.getElementById("cell-said");
    this.at = 0;
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("aria-hidden", "true");
    box.replaceChildren(this.svg);
    box.addEventListener("pointermove", (event) => this.say(this.find(event)));
    box.addEventListener("pointerleave", () => this.say(document.activeElement === box ? this.at : null));
    box.addEventListener("click", (event) => this.open(this.find(event)));
    box.addEventListener("keydown", (event) => this.walk(event));
    box.addEventListener("focus", () => this.move(this.at));
    box.addEventListener("blur", () => this.say(null));
    new ResizeObserver(() => this.draw()).observe(box);
    new MutationObserver(() => this.draw()).observe(box, { attributeFilter: ["data-cells", "data-each"] });
  }

  draw() {
    this.letters = readRuns(this.box.dataset.cells);
    const width = this.box.clientWidth;
    const fits = (pitch) => Math.ceil(this.letters.length / Math.floor(width / pitch)) * pitch <= TALLEST;
    this.pitch = PITCHES.find(fits) || PITCHES.at(-1);
    this.columns = Math.max(1, Math.floor(width / this.pitch));
    const rows = Math.ceil(this.letters.length / this.columns);
    this.svg.setAttribute("viewBox", `0 0 ${this.columns * 10} ${rows * 10}`);
    this.svg.setAttribute("width", this.columns * this.pitch);
    this.svg.setAttribute("height", rows * this.pitch);
    this.svg.replaceChildren(...this.paths(), this.frame());
  }

  paths() {
    const parts = new Map();
    this.letters.forEach((letter, index) => {
      if (!parts.has(letter)) parts.set(letter, []);
      parts.get(letter).push(this.place(letter, index));
    });
    return [...parts].map(([letter, marks]) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", KINDS[letter].name);
      path.setAttribute("d", marks.join(""));
      return path;
    });
  }

  place(letter, index) {
    const { x, y, rest } = KINDS[letter];
    return `M${(index % this.columns) * 10 + x} ${Math.floor(index / this.columns) * 10 + y}${rest}`;
  }

  frame() {
    this.cursor = document.createElementNS(SVG, "rect");
    for (const [name, value] of [["class", "cursor"], ["width", 10], ["height", 10]]) {
      this.cursor.setAttribute(name, value);
    }
    this.put(this.at);
    return this.cursor;
  }

  put(index) {
    this.cursor.setAttribute("x", (index % this.columns) * 10);
    this.cursor.setAttribute("y", Math.floor(index / this.columns) * 10);
  }

  find(event) {
    const corner = this.svg.getBoundingClientRect();
    const column = Math.floor((event.clientX - corner.left) / this.pitch);
    const index = Math.floor((event.clientY - corner.top) / this.pitch) * this.columns + column;
    return column >= 0 && column < this.columns && index >= 0 && index < this.letters.length ? index : null;
  }

  say(index) {
    this.box.classList.toggle("points", index !== null);
    if (index === null) {
      this.says.textContent = this.says.dataset.hint;
      return;
    }
    const each = Number(this.box.dataset.each);
    const first = index * each + 1;
    const last = Math.min(first + each - 1, Number(this.box.dataset.count));
    const who = each === 1 ? `Local job ${first}` : `Local jobs ${first} to ${last}`;
    this.says.textContent = `${who}: ${KINDS[this.letters[index]].name}`;
  }

  open(index) {
    if (index !== null) location.href = `${this.box.dataset.href}${index * Number(this.box.dataset.each) + 1}`;
  }

  move(index) {
    this.at = Math.max(0, Math.min(this.letters.length - 1, index));
    this.put(this.at);
    this.say(this.at);
  }

  walk(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    const ends = { Home: 0, End: this.letters.length - 1 };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter") this.open(this.at);
    else if (event.key in steps) this.move(this.at + steps[event.key]);
    else if (event.key in ends) this.move(ends[event.key]);
    else return;
    event.preventDefault();
  }
}

function readRuns(text) {
  const letters = [];
  for (const [, letter, count] of text.matchAll(/([a-z])(\d+)/g)) {
    for (let left = Number(count); left > 0; left--) letters.push(letter);
  }
  return letters;
}

// The legend has every kind's letter, name and mark: what stands there is what is drawn.
const KINDS = {};
for (const path of document.querySelectorAll("#kinds path")) {
  const [, x, y, rest] = path.getAttribute("d").match(/^M([\d.]+) ([\d.]+)(.*)$/);
  const { letter, name } = path.dataset;
  KINDS[letter] = { name, x: Number(x), y: Number(y), rest };
}

for (const box of document.querySelectorAll("[data-cells]")) new Field(box);
