// Reads values off a chart: by pointer, or with the arrow keys once it has the focus. All it knows stands in the table.
for (const chart of document.querySelectorAll(".chart")) {
  const area = chart.querySelector(".area");
  const cursor = chart.querySelector(".cursor");
  const readout = chart.querySelector(".readout");
  const heads = [...chart.querySelectorAll("thead th")].map((head) => head.textContent);
  const rows = [...chart.querySelectorAll("tbody tr")];
  const places = rows.map((row) => Number(row.dataset.x));
  let current = -1;

  const show = (index) => {
    current = Math.max(0, Math.min(rows.length - 1, index));
    const cells = [...rows[current].cells].map((cell) => cell.textContent);
    const text = heads.map((head, i) => (cells[i] === "" ? "" : `${head} ${cells[i]}`)).filter(Boolean).join(" · ");
    cursor.style.left = `${places[current] / 10}%`;
    cursor.hidden = false;
    readout.textContent = text;
    area.setAttribute("aria-valuenow", current);
    area.setAttribute("aria-valuetext", text);
  };
  const hide = () => {
    cursor.hidden = true;
    readout.textContent = "\u00a0";
  };
  const nearest = (event) => {
    const box = area.getBoundingClientRect();
    const x = (1000 * (event.clientX - box.left)) / box.width;
    let best = 0;
    places.forEach((place, i) => {
      if (Math.abs(place - x) < Math.abs(places[best] - x)) best = i;
    });
    show(best);
  };

  const label = area.querySelector("svg").getAttribute("aria-label");
  const said = { role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": 0,
    "aria-valuemax": rows.length - 1, "aria-valuenow": 0, "aria-valuetext": "arrow keys read the values" };
  for (const [name, value] of Object.entries(said)) area.setAttribute(name, value);
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
  area.addEventListener("keydown", (event) => {
    if (event.key in steps) show(current + steps[event.key]);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(rows.length - 1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
  area.addEventListener("pointermove", nearest);
  area.addEventListener("pointerdown", nearest);
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
  const reads = () => document.querySelector(".cursor:not([hidden]), details[open]") || !getSelection().isCollapsed;
  setInterval(() => {
    if (refresh.checked && !document.hidden && !reads()) location.reload();
  }, 1000 * Number(refresh.dataset.seconds));
}
