// Reads values off a chart: by pointer, or with the arrow keys once it has the focus. All it knows stands in the table.
// Zooms in: by dragging, or with + and - around the value that is read; Escape or a double click shows everything again.
// Zoomed, the height is that of the numbers in sight, and both scales get ticks of their own.

// Round numbers between two others, about five.
const rounded = (low, high) => {
  const rough = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => unit * k).find((width) => width >= 0.999 * rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) {
    found.push(Number((k * step).toPrecision(12)));
  }
  return found;
};
// Ticks of a scale between two of its places, 0 to 1000, as [place, number].
const ticksOf = (scale, from, to) => {
  const [low, high] = scale.slice(0, 2).map(Number);
  const at = (place) => low + ((high - low) * place) / 1000;
  const [first, last] = [at(from), at(to)];
  if (scale[2] !== "log") return rounded(first, last).map((n) => [(1000 * (n - low)) / (high - low), n]);
  const whole = rounded(first, last).filter(Number.isInteger).map((power) => 10 ** power);
  const chosen = whole.length > 1 ? whole : rounded(10 ** first, 10 ** last);
  return chosen.map((n) => [(1000 * (Math.log10(n) - low)) / (high - low), n]);
};
const short = (number) => {
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, name] = units.find(([unit]) => Math.abs(number) >= unit) ?? [1, ""];
  return `${Number((number / size).toPrecision(6))}${name}`;
};

for (const chart of document.querySelectorAll(".chart")) {
  const area = chart.querySelector(".area");
  const cursor = chart.querySelector(".cursor");
  const readout = chart.querySelector(".readout");
  const heads = [...chart.querySelectorAll("thead th")].map((head) => head.textContent);
  const rows = [...chart.querySelectorAll("tbody tr")];
  const places = rows.map((row) => Number(row.dataset.x));
  const svg = area.querySelector("svg");
  const [across, up] = ["across", "up"].map((name) => (area.dataset[name] ?? "").split(" "));
  const drawn = [".xs", ".ys", ".grids"].map((part) => chart.querySelector(part)).map((part) => [part, part.innerHTML]);
  const rising = (number) => {
    const [low, high] = up.slice(0, 2).map(Number);
    return (1000 * ((up[2] === "log" ? Math.log10(number) : number) - low)) / (high - low);
  };
  // Of each line, [place, height] of its numbers.
  const lines = heads.slice(1).map((_, k) => rows
    .map((row, i) => [places[i], row.cells[k + 1].textContent])
    .filter(([, text]) => text !== "").map(([x, text]) => [x, rising(Number(text))]));
  // The lowest and highest place that a line has in sight, also where it enters and leaves, with some room.
  const heights = (left, right) => {
    const seen = lines.flatMap((line) => line.flatMap(([x, y], i) => {
      const found = x >= left && x <= right ? [y] : [];
      const [x2, y2] = line[i + 1] ?? [x, y];
      const cuts = [left, right].filter((edge) => x < edge && edge < x2);
      return [...found, ...cuts.map((edge) => y + ((y2 - y) * (edge - x)) / (x2 - x))];
    }));
    const [low, high] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, 1000];
    const room = Math.max(0.05 * (high - low), 0.5);
    return [Math.max(0, low - room), Math.min(1000, high + room)];
  };
  const tick = (side, share, number) => {
    const made = document.createElement("span");
    made.style[side] = `${100 * share}%`;
    made.textContent = short(number);
    return made;
  };
  const selection = document.createElement("div");
  selection.className = "selection";
  selection.hidden = true;
  area.append(selection);
  const bars = svg.querySelector("rect") !== null;
  let current = -1;
  let [from, to] = [0, 1000];
  let start = null;

  const zoom = (left, right) => {
    from = Math.max(0, left);
    to = Math.min(1000, right);
    const whole = from === 0 && to === 1000;
    const [low, high] = whole ? [0, 1000] : heights(from, to);
    svg.setAttribute("viewBox", `${from} ${1000 - high} ${to - from} ${high - low}`);
    area.classList.toggle("zoomed", !whole);
    for (const [part, text] of drawn) part.innerHTML = text;
    if (!whole) {
      const [[xs], [ys], [grids]] = drawn;
      const upward = ticksOf(up, low, high);
      xs.replaceChildren(...ticksOf(across, from, to).map(([x, n]) => tick("left", (x - from) / (to - from), n)));
      ys.replaceChildren(...upward.map(([y, n]) => tick("bottom", (y - low) / (high - low), n)));
      grids.innerHTML = upward.map(([y]) => `<path class="grid" d="M${from} ${1000 - y}H${to}"/>`).join("");
    }
    if (!cursor.hidden) show(current);
  };
  const within = (index) => places[index] >= from && places[index] <= to;
  const show = (index) => {
    current = Math.max(0, Math.min(rows.length - 1, index));
    const cells = [...rows[current].cells].map((cell) => cell.textContent);
    const text = heads.map((head, i) => (cells[i] === "" ? "" : `${head} ${cells[i]}`)).filter(Boolean).join(" · ");
    cursor.style.left = `${(100 * (places[current] - from)) / (to - from)}%`;
    cursor.hidden = !within(current);
    readout.textContent = text;
    area.setAttribute("aria-valuenow", current);
    area.setAttribute("aria-valuetext", text);
  };
  const hide = () => {
    cursor.hidden = true;
    readout.textContent = "\u00a0";
  };
  const placeOf = (event) => {
    const box = area.getBoundingClientRect();
    return from + ((to - from) * Math.max(0, Math.min(box.width, event.clientX - box.left))) / box.width;
  };
  const nearest = (event) => {
    const x = placeOf(event);
    if (start !== null) {
      const [left, right] = [Math.min(start, x), Math.max(start, x)];
      selection.style.left = `${(100 * (left - from)) / (to - from)}%`;
      selection.style.width = `${(100 * (right - left)) / (to - from)}%`;
      selection.hidden = (right - left) / (to - from) < 0.02;
    }
    let best = 0;
    places.forEach((place, i) => {
      if (Math.abs(place - x) < Math.abs(places[best] - x)) best = i;
    });
    show(best);
  };

  const label = area.querySelector("svg").getAttribute("aria-label");
  const said = { role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": 0,
    "aria-valuemax": rows.length - 1, "aria-valuenow": 0, "aria-valuetext": "arrow keys read the values, + and - zoom" };
  for (const [name, value] of Object.entries(said)) area.setAttribute(name, value);
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
  area.addEventListener("keydown", (event) => {
    if (event.key in steps) show(current + steps[event.key]);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(rows.length - 1);
    else if (event.key === "Escape" && area.classList.contains("zoomed")) zoom(0, 1000);
    else if (event.key === "Escape") hide();
    else if (!bars && (event.key === "+" || event.key === "-")) {
      const middle = current < 0 ? (from + to) / 2 : places[current];
      const half = Math.max(5, ((to - from) / 2) * (event.key === "+" ? 0.5 : 2));
      zoom(middle - half, middle + half);
    }
    else return;
    event.preventDefault();
  });
  area.addEventListener("pointermove", nearest);
  area.addEventListener("pointerdown", (event) => {
    if (!bars && event.button === 0 && event.pointerType === "mouse") {
      start = placeOf(event);
      area.setPointerCapture(event.pointerId);
    }
    nearest(event);
  });
  area.addEventListener("pointerup", (event) => {
    const [first, last] = [start, placeOf(event)];
    start = null;
    if (!selection.hidden) zoom(Math.min(first, last), Math.max(first, last));
    selection.hidden = true;
  });
  area.addEventListener("pointercancel", () => {
    start = null;
    selection.hidden = true;
  });
  area.addEventListener("dblclick", () => zoom(0, 1000));
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
}

// A live page loads itself again from disk, unless somebody reads a value, has a table open or has marked text.
const refresh = document.getElementById("refresh");
if (refresh) {
  const kept = `feedline-refresh ${location.pathname}`;
  const remembered = (value) => {
    try {
      return value === undefined ? sessionStorage.getItem(kept) : sessionStorage.setItem(kept, value);
    } catch { // a browser that keeps nothing for files
      return null;
    }
  };
  refresh.checked = remembered() !== "off";
  refresh.addEventListener("change", () => remembered(refresh.checked ? "on" : "off"));
  const reads = () => document.querySelector(".cursor:not([hidden]), details[open], .zoomed") || !getSelection().isCollapsed;
  setInterval(() => {
    if (refresh.checked && !document.hidden && !reads()) location.reload();
  }, 1000 * Number(refresh.dataset.seconds));
}
