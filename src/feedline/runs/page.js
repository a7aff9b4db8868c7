// Reads values off a chart: by pointer, or with the arrow keys once it has the focus. All it knows stands in the table.
// Zooms in: by dragging, or with + and - around the value that is read; Escape or a double click shows everything again.
for (const chart of document.querySelectorAll(".chart")) {
  const area = chart.querySelector(".area");
  const cursor = chart.querySelector(".cursor");
  const readout = chart.querySelector(".readout");
  const heads = [...chart.querySelectorAll("thead th")].map((head) => head.textContent);
  const rows = [...chart.querySelectorAll("tbody tr")];
  const places = rows.map((row) => Number(row.dataset.x));
  const svg = area.querySelector("svg");
  const ticks = [...chart.querySelectorAll(".xs span")].map((tick) => [tick, 10 * parseFloat(tick.style.left)]);
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
    svg.setAttribute("viewBox", `${from} 0 ${to - from} 1000`);
    area.classList.toggle("zoomed", !whole);
    for (const [tick, place] of ticks) {
      tick.style.left = `${(100 * (place - from)) / (to - from)}%`;
      tick.hidden = place < from || place > to;
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
