// Lays a network out and lets a reader move in it. The graph is in the page, as JSON: boxes, frames, edges.
//
// Every open frame is laid out by itself, in layers, and then stands as one box in the layout around it. A tensor that
// leaves or enters a frame does so at a port on its border, which is a place in both layouts.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("network").textContent);
  const svg = document.getElementById("picture"), view = svg.parentElement, told = document.getElementById("told");
  const search = document.getElementById("search"), found = document.getElementById("found");
  const pencil = document.createElement("canvas").getContext("2d");
  const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";
  const LEGIBLE = 0.7, LEAST = 0.45, MOST = 1.25, LINE = 15, PAD = 9, TITLE = 24, APART = 22, GAP = 20, DUMMY = 6, BESIDE = 5;
  const flat = data.direction === "LR" || data.direction === "RL";
  const backwards = data.direction === "BT" || data.direction === "RL";

  // A text as the search compares it: 3x3 finds 3×3.
  const sought = (text) => text.toLowerCase().replace(/(\d)x(?=\d)/g, "$1×");

  // Items: boxes and frames, each with the chain of frames around it.
  const root = { isFrame: true, open: true, items: [], chain: [], level: 0 };
  const frames = data.frames.map((one) => ({ ...one, isFrame: true, items: [] }));
  const boxes = data.boxes.map((one) => ({ ...one, isFrame: false, items: [] }));
  for (const item of [...frames, ...boxes]) {
    item.parent = item.frame < 0 ? root : frames[item.frame];
    item.chain = [...item.parent.chain, item.parent];
    item.level = item.chain.length;
    item.edges = new Set();
    item.said = [...item.lines, ...(item.isFrame ? item.closed : [`${item.family}`])];
    // Where an input comes from is no property of a box that somebody looks for.
    const told = item.facts.filter(([name]) => name !== "input").map(([, text]) => text);
    item.text = sought([...item.lines, item.names, item.family || "", ...told].join(" "));
  }
  // In order of their first box, so that a frame stands where it begins.
  for (const box of boxes) {
    for (const one of [...box.chain.slice(1), box]) {
      if (!one.listed) { one.listed = true; one.parent.items.push(one); }
    }
  }
  const edges = data.edges.map(([tail, index, head, label, feedback], i) => {
    const edge = { tail: boxes[tail], head: boxes[head], tensor: `${tail}.${index}`, label, feedback: Boolean(feedback), i };
    for (const [own, other] of [[edge.tail, edge.head], [edge.head, edge.tail]]) {
      for (const one of [own, ...own.chain.slice(1)]) if (one === own || !other.chain.includes(one)) one.edges.add(i);
    }
    return edge;
  });

  function width(text, bold, size = 12) {
    pencil.font = `${bold ? "600 " : ""}${size}px ${FONT}`;
    return pencil.measureText(text).width;
  }
  function lines(item) {
    return item.isFrame && !item.open ? [...item.lines, ...item.closed] : item.lines;
  }
  // What stands for a box among the items of a frame; null outside of it.
  function within(frame, box) {
    const place = box.chain.indexOf(frame);
    return place < 0 ? null : place + 1 < box.chain.length ? box.chain[place + 1] : box;
  }

  // Links between the items of a frame: edges of the same tensor to the same item are one.
  function linksOf(frame) {
    const links = new Map(), ports = new Map();
    const port = (side, tensor) => {
      const key = `${side} ${tensor}`;
      if (!ports.has(key)) ports.set(key, { port: side, tensor });
      return ports.get(key);
    };
    for (const edge of edges) {
      const inside = [within(frame, edge.tail), within(frame, edge.head)];
      if ((!inside[0] && !inside[1]) || (inside[0] === inside[1] && (inside[0].isFrame || !edge.feedback))) continue;
      const from = inside[0] || port("in", edge.tensor), to = inside[1] || port("out", edge.tensor);
      const key = [from, to].map((end) => (end.port ? end.port : frame.items.indexOf(end))).join(" ") + ` ${edge.tensor}`;
      if (!links.has(key)) {
        links.set(key, { from, to, tensor: edge.tensor, label: edge.label, feedback: true, edges: [] });
      }
      links.get(key).edges.push(edge.i);
      links.get(key).feedback &&= edge.feedback;
    }
    return { links: [...links.values()], ports: [...ports.values()] };
  }

  // Number items after their sources, in the given order where possible; what makes a cycle goes back.
  function ranked(items, links) {
    const rank = new Map(), waiting = new Set(items);
    const before = new Map(items.map((item) => [item, []]));
    for (const link of links) {
      if (!link.feedback && before.has(link.from) && before.has(link.to)) before.get(link.to).push(link.from);
    }
    while (waiting.size) {
      const ready = [...waiting].find((item) => before.get(item).every((one) => rank.has(one)));
      const next = ready || waiting.values().next().value;
      rank.set(next, rank.size);
      waiting.delete(next);
    }
    return rank;
  }

  // The layer of each item and port. Sets how links go: back, beside (to the top of what stands next to it), else by the
  // layers of their ends. Sides say what stands left (0) and right (1) of what goes up between.
  function layersOf(items, ports, links) {
    const rank = ranked(items, links), ordered = [...items].sort((a, b) => rank.get(a) - rank.get(b));
    for (const link of links) {
      link.back = !link.from.port && !link.to.port && rank.get(link.from) >= rank.get(link.to);
    }
    const forward = links.filter((link) => !link.back && !link.from.port && !link.to.port);
    const sides = new Map(), levels = levelsOf(ordered, forward, ports);
    if (levels) {
      for (const item of levels.up) sides.set(item, 1);
      const last = Math.max(...levels.layer.values());
      for (const one of ports) levels.layer.set(one, one.port === "in" ? 0 : last + 1);
      return { layer: levels.layer, sides, rising: new Set(levels.up) };
    }
    standBeside(ordered, forward, sides);
    const above = new Map(ordered.map((item) => [item, []])), below = new Map(ordered.map((item) => [item, []]));
    for (const link of links) {
      if (link.back || link.beside) continue;
      if (!link.to.port) above.get(link.to).push(link.from);
      if (!link.from.port) below.get(link.from).push(link.to);
    }
    const first = ports.some((one) => one.port === "in") ? 1 : 0, layer = new Map();
    for (const item of ordered) {
      layer.set(item, Math.max(first, ...above.get(item).map((one) => (one.port ? 1 : layer.get(one) + 1))));
    }
    // What nothing feeds stands right above its first user.
    for (const item of ordered) {
      const users = below.get(item).filter((one) => !one.port);
      if (!above.get(item).length && users.length) {
        layer.set(item, Math.max(first, Math.min(...users.map((one) => layer.get(one))) - 1));
      }
    }
    const last = Math.max(0, ...layer.values());
    for (const one of ports) layer.set(one, one.port === "in" ? 0 : last + 1);
    return { layer, sides };
  }

  // Two frames of which the second takes the first one's result, and what has nothing to do with the first, as a decoder
  // does: it stands beside the first, with what only leads to it.
  function standBeside(ordered, forward, sides) {
    const sources = new Map(ordered.map((item) => [item, new Set()]));
    for (const link of forward) sources.get(link.to).add(link.from);
    const needs = new Map();
    for (const item of ordered) {
      needs.set(item, new Set([item, ...[...sources.get(item)].flatMap((one) => [...(needs.get(one) || [])])]));
    }
    for (const link of forward) {
      link.beside = false;
      const [a, b] = [link.from, link.to];
      if (!a.isFrame || !b.isFrame || sides.get(a)) continue;
      const others = [...sources.get(b)].filter((one) => one !== a);
      if (!others.some((one) => !needs.get(one).has(a) && !needs.get(a).has(one))) continue;
      if (others.some((one) => needs.get(one).has(a))) continue;
      link.beside = true;
      for (const one of needs.get(b)) if (!needs.get(a).has(one)) sides.set(one, 1);
    }
  }

  // The layers of a network that goes down and up again, as a U-Net does; null for others. It has two ways across, with
  // tensors of two shapes, or more, one inside the other, around half of it at least. Both ends of each are on one layer,
  // or, as an open frame gives its result at its lower border, on that below; see fold_levels.py.
  function levelsOf(ordered, forward, ports) {
    const at = new Map(ordered.map((item, i) => [item, i]));
    const none = () => new Map(ordered.map((item) => [item, new Set()])), sources = none(), users = none();
    for (const link of forward) { sources.get(link.to).add(link.from); users.get(link.from).add(link.to); }
    const pairs = ordered.filter((item) => sources.get(item).size > 1)
      .map((item) => [Math.min(...[...sources.get(item)].map((one) => at.get(one))), at.get(item)])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const longer = (a, b) => (b.length > a.length ? b : a), chains = [];
    for (const [from, to] of pairs) {
      const outer = chains.filter((chain) => chain.at(-1)[0] < from && to < chain.at(-1)[1]).reduce(longer, []);
      chains.push([...outer, [from, to]]);
    }
    const ways = chains.reduce(longer, []);
    if (ways.length < 2 || ways[0][1] - ways[0][0] < ordered.length / 2) return null;
    const shape = ([from, to]) => forward.find((link) => at.get(link.from) === from && at.get(link.to) === to).label;
    if (ways.length === 2 && shape(ways[0]) === shape(ways[1])) return null;
    // The number of steps of a longest way from a place to each later one, among some items.
    const steps = (from, among) => {
      const found = new Map([[from, [from]]]);
      for (let n = from + 1; n < ordered.length; n++) {
        if (!among(n)) continue;
        const ends = [...sources.get(ordered[n])].map((one) => found.get(at.get(one)));
        const before = ends.filter(Boolean).reduce(longer, []);
        if (before.length) found.set(n, [...before, n]);
      }
      return found;
    };
    const [inner, joint] = ways.at(-1), middle = steps(inner, (n) => n <= joint).get(joint);
    if (!middle) return null;
    const turn = middle[Math.floor(middle.length / 2)], up = (n) => n > turn;
    const layer = new Map(), first = ports.some((one) => one.port === "in") ? 1 : 0, apart = new Map();
    const lower = (n) => (ordered[n].isFrame && ordered[n].open ? 1 : 0);
    for (let i = 0; i + 1 < ways.length; i++) {
      const above = steps(ways[i + 1][1], up).get(ways[i][1]);
      if (!above) return null;
      apart.set(ways[i + 1][0], [ways[i][0], above.length - 1 + lower(ways[i][0]) - lower(ways[i + 1][0])]);
    }
    for (let n = 0; n <= turn; n++) {
      const [outer, least] = apart.get(n) || [];
      layer.set(ordered[n], Math.max(first, outer === undefined ? 0 : layer.get(ordered[outer]) + least,
        ...[...sources.get(ordered[n])].map((one) => layer.get(one) + 1)));
    }
    const level = new Map(ways.map(([from, to]) => [to, layer.get(ordered[from]) + lower(from)]));
    for (let n = ordered.length - 1; n > turn; n--) {
      const below = [...users.get(ordered[n])].map((one) => layer.get(one)).filter((one) => one !== undefined);
      if (level.has(n)) layer.set(ordered[n], level.get(n));
      else if (below.length) layer.set(ordered[n], Math.max(...below) + 1);
    }
    for (let n = turn + 1; n < ordered.length; n++) {
      if (!layer.has(ordered[n])) {
        layer.set(ordered[n], Math.min(...[...sources.get(ordered[n])].map((one) => layer.get(one))) - 1);
      }
    }
    const lies = (link) => up(at.get(link.from)) && layer.get(link.to) >= layer.get(link.from);
    if ([...layer.values()].some((n) => !Number.isFinite(n)) || forward.some(lies)) return null;
    for (const link of forward) link.across = !up(at.get(link.from)) && level.has(at.get(link.to));
    const low = Math.min(...layer.values());
    for (const [item, n] of layer) layer.set(item, n - low + first);
    return { layer, up: ordered.filter((_, n) => up(n)) };
  }

  // Place items in layers; answers the size of the content, the place of each item, and the course of each link.
  function arrange(frame) {
    const { links, ports, layer, sides } = frame.plan;
    const nodes = [...frame.items, ...ports].map((item) => {
      const size = item.port ? [0, 0] : [item.w, item.h];
      const across = flat ? size[1] : size[0];
      return { item, along: flat ? size[0] : size[1], across, room: across, layer: layer.get(item), side: sides.get(item) || 0 };
    });
    const nodeOf = new Map(nodes.map((node) => [node.item, node]));
    const dummies = new Map(), steps = [];
    const dummy = (key, at, side) => {
      if (!dummies.has(key)) {
        dummies.set(key, { dummy: true, along: 0, across: DUMMY, room: DUMMY, layer: at, side });
        nodes.push(dummies.get(key));
      }
      return dummies.get(key);
    };
    const join = (a, b, link, weight) => steps.push({ a, b, weight, off: [portOf(a, link, "out"), portOf(b, link, "in")] });
    for (const link of links) {
      const a = nodeOf.get(link.from), b = nodeOf.get(link.to);
      const at = `${frame.items.indexOf(link.from)} ${link.tensor}`;
      link.course = [];
      link.ends = [a, b];
      // Around the end of its source and past it; the other way round; from side to side; or as the layers are.
      link.around = link.back || (link.beside && a.layer >= b.layer);
      link.rises = !link.around && a.layer > b.layer;
      link.aside = !link.around && (a.layer === b.layer || (link.across && b.layer - a.layer === 1));
      if (link.aside) continue;
      if (link.around) {
        const to = `${at} back ${frame.items.indexOf(link.to)}`, side = link.back ? a.side : 0.5;
        for (let n = b.layer; n <= a.layer; n++) link.course.push(dummy(`${to} ${n}`, n, side));
      } else {
        const [top, bottom] = [a.layer, b.layer].sort((one, two) => one - two);
        for (let n = top + 1; n < bottom; n++) link.course.push(dummy(`${at} ${n}`, n, link.rises ? b.side : a.side));
        if (link.rises) link.course.reverse();
      }
      const whole = link.around ? link.course : [a, ...link.course, b];
      for (let n = 1; n < whole.length; n++) {
        join(whole[n - 1], whole[n], link, whole[n - 1].dummy && whole[n].dummy ? 8 : whole.length > 2 ? 0.3 : 6);
      }
      if (link.around) link.course.reverse();
    }
    // A shape stands next to the line, where no line of another box comes. One for each tensor of a box is enough.
    const leaving = new Map();
    for (const link of links) {
      const again = () => links.some((twin) => twin.from === link.from && twin.tensor === link.tensor && !twin.aside);
      link.labelled = link.label !== "" && own(link) && !(link.aside && again());
      if (link.rises) link.ends[0].up = true;
      else if (!link.aside) link.ends[1].down = true;
      if (!own(link)) continue;
      if (!leaving.has(link.ends[0])) leaving.set(link.ends[0], new Map());
      const size = flat ? LINE : width(link.label, false, 10) + 2 * BESIDE;
      leaving.get(link.ends[0]).set(link.tensor, size);
      if (link.labelled && link.aside) link.ends[0].room += 2 * size;
    }
    for (const [node, widths] of leaving) {
      const widest = Math.max(...widths.values());
      if (widths.size > 1) {
        // Each has a part of the border to itself, for which the box may have to be wider.
        node.part = widest + BESIDE;
        node.across = Math.max(node.across, node.part * widths.size);
        node.item[flat ? "h" : "w"] = node.across;
      }
      node.room = Math.max(node.room, node.across, 2 * widest + (node.up && node.down ? node.across / 2 : 0));
    }
    const layers = [];
    for (const node of nodes) (layers[node.layer] ||= []).push(node);
    for (let n = 0; n < layers.length; n++) (layers[n] ||= []).sort((one, two) => one.side - two.side);
    untangle(layers, steps);
    spread(layers, steps);
    return measure(frame, layers, links);
  }

  // Where a tensor leaves or enters a node, from its middle: open frames have ports of their own.
  function portOf(node, link, side) {
    const ports = node.item && node.item.open && node.item.ports;
    const at = ports && ports.get(`${side} ${link.tensor}`);
    return at === undefined || at === false || at === null ? 0 : at - node.across / 2;
  }

  function crossings(layers, steps) {
    let count = 0;
    for (let n = 0; n + 1 < layers.length; n++) {
      const here = steps.filter((step) => step.a.layer === n || step.b.layer === n)
        .filter((step) => Math.max(step.a.layer, step.b.layer) === n + 1)
        .map((step) => (step.a.layer === n ? [step.a.at, step.b.at] : [step.b.at, step.a.at]));
      for (let i = 0; i < here.length; i++) {
        for (let j = 0; j < i; j++) count += (here[i][0] - here[j][0]) * (here[i][1] - here[j][1]) < 0 ? 1 : 0;
      }
    }
    return count;
  }

  // Order the nodes of each layer by the middle of their neighbours, up and down in turns; keep the best order.
  function untangle(layers, steps) {
    const near = new Map();
    for (const step of steps) {
      for (const [own, other] of [[step.a, step.b], [step.b, step.a]]) {
        if (!near.has(own)) near.set(own, []);
        near.get(own).push(other);
      }
    }
    const number = () => layers.forEach((nodes) => nodes.forEach((node, i) => { node.at = i; }));
    number();
    let best = layers.map((nodes) => [...nodes]), fewest = crossings(layers, steps);
    for (let turn = 0; turn < 12 && fewest > 0; turn++) {
      const down = turn % 2 === 0, order = layers.map((_, n) => (down ? n : layers.length - 1 - n));
      for (const n of order.slice(1)) {
        const middle = new Map(layers[n].map((node) => {
          const others = (near.get(node) || []).filter((one) => one.layer === n + (down ? -1 : 1));
          const sum = others.reduce((total, one) => total + (one.at + 0.5) / layers[one.layer].length, 0);
          return [node, others.length ? sum / others.length : (node.at + 0.5) / layers[n].length];
        }));
        layers[n].sort((a, b) => a.side - b.side || middle.get(a) - middle.get(b) || a.at - b.at);
        layers[n].forEach((node, i) => { node.at = i; });
      }
      const count = crossings(layers, steps);
      if (count < fewest) { fewest = count; best = layers.map((nodes) => [...nodes]); }
    }
    best.forEach((nodes, n) => { layers[n] = nodes; });
    number();
  }

  // Coordinates across the flow: each node close to its neighbours, none over another.
  function spread(layers, steps) {
    const near = new Map();
    for (const step of steps) {
      const [out, into] = step.off;
      for (const [own, other, by] of [[step.a, step.b, into - out], [step.b, step.a, out - into]]) {
        if (!near.has(own)) near.set(own, []);
        near.get(own).push({ other, by, weight: step.weight });
      }
    }
    for (const nodes of layers) {
      let at = 0;
      for (const node of nodes) { node.x = at + node.room / 2; at += node.room + APART; }
      for (const node of nodes) node.x -= at / 2;
    }
    for (let turn = 0; turn < 18; turn++) {
      // By one side in turns, then by both; the last two straighten chains again.
      const down = turn % 2 === 1, all = turn > 11 && turn < 16;
      const order = layers.map((_, n) => (down ? n : layers.length - 1 - n));
      for (const n of order) {
        const wanted = layers[n].map((node) => {
          const others = (near.get(node) || []).filter((one) => all || one.other.layer === n + (down ? -1 : 1));
          const weight = others.reduce((sum, one) => sum + one.weight, 0);
          const sum = others.reduce((total, one) => total + one.weight * (one.other.x + one.by), 0);
          return weight ? { x: sum / weight, weight } : { x: node.x, weight: 0.1 };
        });
        settle(layers[n], wanted);
      }
    }
  }

  // The places nearest to the wanted ones (least squares) in which nodes keep their order and distance: blocks of nodes
  // that touch are merged until none overlap.
  function settle(nodes, wanted) {
    const blocks = [];
    let shift = 0;
    nodes.forEach((node, i) => {
      if (i) {
        const gap = node.dummy && nodes[i - 1].dummy ? APART / 2 : APART;
        shift += (nodes[i - 1].room + node.room) / 2 + gap;
      }
      blocks.push({ from: i, sum: wanted[i].weight * (wanted[i].x - shift), weight: wanted[i].weight, shifts: [shift] });
      while (blocks.length > 1) {
        const [one, two] = blocks.slice(-2);
        if (one.sum / one.weight <= two.sum / two.weight) break;
        blocks.splice(-2, 2, { from: one.from, sum: one.sum + two.sum, weight: one.weight + two.weight,
          shifts: [...one.shifts, ...two.shifts] });
      }
    });
    for (const block of blocks) {
      block.shifts.forEach((by, i) => { nodes[block.from + i].x = block.sum / block.weight + by; });
    }
  }

  // From places across and layers along to x and y, and the lines of links.
  function measure(frame, layers, links) {
    const nodes = layers.flat();
    const low = Math.min(...nodes.map((node) => node.x - node.room / 2), 0 * nodes.length || Infinity);
    for (const node of nodes) node.x -= low;
    const wide = Math.max(0, ...nodes.map((node) => node.x + node.room / 2));
    const tops = [], bottoms = [], beside = links.some((link) => link.beside);
    const upside = backwards !== Boolean(frame.flipped);
    // Below a layer, and above it for what goes up, lines are straight as far as shapes stand next to them.
    const [under, over] = [false, true].map((rises) => layers.map((_, n) => {
      const labelled = links.filter((link) => link.labelled && !link.aside && link.rises === rises && link.ends[0].layer === n);
      return labelled.length ? (flat ? 8 + Math.max(...labelled.map((link) => width(link.label, false, 10))) : 16) : 0;
    }));
    let at = 0;
    layers.forEach((nodes, n) => {
      tops[n] = at + (n === 0 && links.some((link) => link.back && link.ends[1].layer === 0) ? GAP : 0);
      bottoms[n] = tops[n] + Math.max(0, ...nodes.map((node) => node.along));
      // What stands beside something begins where that begins.
      for (const node of nodes) node.y = beside ? tops[n] + node.along / 2 : (tops[n] + bottoms[n]) / 2;
      const back = links.some((link) => link.back && link.ends[0].layer === n) ? GAP / 2 : 0;
      at = bottoms[n] + (n + 1 < layers.length || back ? GAP + under[n] + (over[n + 1] || 0) + back : 0);
    });
    const long = at;
    const turned = ([x, y]) => (flat ? [upside ? long - y : y, x] : [x, upside ? long - y : y]);
    const arrive = new Map(), leave = new Map();
    for (const link of links.filter(({ aside: isAside }) => !isAside)) {
      for (const [ends, node, other] of [[leave, link.ends[0], link.course[0] || link.ends[1]],
        [arrive, link.ends[1], link.course[link.course.length - 1] || link.ends[0]]]) {
        if (!ends.has(node)) ends.set(node, []);
        ends.get(node).push({ link, x: other.x, tensor: link.tensor });
      }
    }
    const along = (ends, node, link, side) => {
      const fixed = portOf(node, link, side);
      if (node.item.port || (node.item.isFrame && node.item.open)) return node.x + fixed;
      const sorted = ends.get(node).sort((a, b) => a.x - b.x);
      const names = side === "out" ? [...new Set(sorted.map((one) => one.tensor))] : sorted.map((one) => one.link);
      const n = names.indexOf(side === "out" ? link.tensor : link);
      if (node.part && side === "out") return node.x + node.part * (n - names.length / 2) + BESIDE;
      // At the lowest box of a network that goes down and up again both lines are at the upper border.
      const turn = node.up && node.down ? (side === "out" ? 0.25 : -0.25) : 0;
      return node.x + node.across * turn + node.across * Math.min(0.6, 0.15 * (names.length - 1)) * (names.length > 1 ? n / (names.length - 1) - 0.5 : 0);
    };
    const drawn = links.map((link) => {
      const [a, b] = link.ends, points = [];
      if (link.aside) return aside(link, turned, a.x + portOf(a, link, "out"));
      const x1 = along(leave, a, link, "out"), x2 = along(arrive, b, link, "in");
      const end = link.rises ? -1 : 1; // the side of a box from which a link goes
      points.push([x1, a.y + end * a.along / 2]);
      const above = (x, { layer }) => [x, tops[layer] - over[layer]], below = (x, { layer }) => [x, bottoms[layer] + under[layer]];
      points.push(link.rises ? above(x1, a) : below(x1, a));
      for (const node of link.course) {
        const sides = [above(node.x, node), below(node.x, node)];
        points.push(...(link.rises || link.around ? sides.reverse() : sides));
      }
      points.push(link.rises ? below(x2, b) : above(x2, b));
      points.push([x2, b.y - end * b.along / 2]);
      const place = [x1, a.y + end * a.along / 2];
      return { link, points: points.map(turned), label: link.labelled ? { at: turned(place), text: link.label } : null };
    });
    const ports = new Map();
    for (const node of nodes) {
      if (node.item && node.item.port) ports.set(`${node.item.port === "in" ? "in" : "out"} ${node.item.tensor}`, node.x);
    }
    const places = new Map();
    for (const node of nodes) {
      if (node.item && !node.item.port) {
        const [x, y] = turned([node.x, node.y]);
        places.set(node.item, [x - node.item.w / 2, y - node.item.h / 2]);
      }
    }
    return { w: flat ? long : wide, h: flat ? wide : long, places, drawn, ports };
  }

  // From side to side: out of the side of a box, or from the port of an open frame, around its corner.
  function aside(link, turned, x1) {
    const [a, b] = link.ends, to = a.x < b.x ? 1 : -1, ported = (node) => Boolean(node.item.isFrame && node.item.open);
    const near = a.x + to * a.across / 2, far = b.x - to * b.across / 2, points = [];
    if (ported(a)) {
      const corner = near + to * APART / 3, below = a.y + a.along / 2;
      points.push([x1, below], [x1, below + 6], [corner, below + 6], [corner, b.y]);
    } else points.push([near, a.y], [(near + far) / 2, a.y], [(near + far) / 2, b.y]);
    points.push([far, b.y]);
    const at = [near + (flat ? LINE + 2 : 0), a.y];
    return { link, points: points.map(turned), label: link.labelled ? { at: turned(at), text: link.label } : null };
  }

  // Whether a link begins at a box or closed frame, where its label stands.
  function own(link) {
    return !link.from.port && !(link.from.isFrame && link.from.open);
  }

  function curve(points, back, upside) {
    let d = `M${show(points[0])}`;
    for (let n = 1; n < points.length; n++) {
      const [x0, y0] = points[n - 1], [x1, y1] = points[n];
      const straight = n % 2 === 1;
      if (x0 === x1 && y0 === y1) continue; // which would have no direction for an arrowhead
      if (straight || (x0 === x1 && !back) || (y0 === y1 && flat && !back)) d += `L${show(points[n])}`;
      else if (back && (n === 2 || n === points.length - 2)) {
        // Around the end of a box, and up or down beside it.
        const by = (n === 2 ? 1 : -1) * GAP * (upside ? -1 : 1);
        d += flat ? `C${show([x0 + by, y0])} ${show([x1 + by, y1])} ${show(points[n])}`
          : `C${show([x0, y0 + by])} ${show([x1, y1 + by])} ${show(points[n])}`;
      } else if (flat) d += `C${show([(x0 + x1) / 2, y0])} ${show([(x0 + x1) / 2, y1])} ${show(points[n])}`;
      else d += `C${show([x0, (y0 + y1) / 2])} ${show([x1, (y0 + y1) / 2])} ${show(points[n])}`;
    }
    return d;
  }
  const show = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;

  // Sizes from the inside out.
  function size(item) {
    const texts = lines(item), widest = Math.max(...texts.map((text, n) => width(text, n === 0)));
    if (!item.isFrame || !item.open) {
      item.w = Math.max(56, widest + 2 * PAD + (item.isFrame ? 14 : 0));
      item.h = LINE * texts.length + 2 * PAD - 4;
      return;
    }
    const { links, ports } = linksOf(item);
    item.plan = { links, ports, ...layersOf(item.items, ports, links) };
    for (const one of item.items) {
      const rises = Boolean(item.plan.rising && item.plan.rising.has(one)); // so that it is entered from below
      one.flipped = Boolean(item.flipped) !== rises;
      size(one);
    }
    item.content = arrange(item);
    const pad = item === root ? 8 : 12;
    item.w = Math.max(item.content.w + 2 * pad, widest + 2 * PAD + 14);
    item.left = (item.w - item.content.w) / 2;
    if (item === root) item.top = 8;
    else entitle(item);
    item.h = item.content.h + item.top + pad;
    // Along the border, from the corner: x in a picture from top to bottom, y in one from side to side.
    const inset = flat ? item.top : item.left;
    item.ports = new Map([...item.content.ports].map(([key, at]) => [key, at + inset]));
  }

  // The name of an open frame stands left of where a tensor enters: in shorter lines if need be, or else in a wider frame.
  function entitle(frame) {
    const entry = backwards !== Boolean(frame.flipped) ? "out " : "in ", BEGIN = 23;
    const ways = flat ? [] : [...frame.content.ports].filter(([key]) => key.startsWith(entry)).map(([, x]) => x + frame.left);
    const room = Math.min(...ways, frame.w) - BEGIN - 2 * BESIDE;
    frame.name = broken(frame.lines.map((text, n) => [text, n === 0]), room);
    const lacking = Math.max(0, ...frame.name.map(([text, bold]) => width(text, bold) - room));
    frame.left += lacking;
    frame.w += lacking;
    frame.top = TITLE + LINE * (frame.name.length - 1) + 6;
  }

  // Lines, each [text, bold], in a width; words that are wider stay whole.
  function broken(parts, room) {
    return parts.flatMap(([text, bold]) => {
      const found = [];
      for (const word of text.split(" ")) {
        const longer = found.length ? `${found[found.length - 1]} ${word}` : word;
        if (found.length && width(longer, bold) <= room) found[found.length - 1] = longer;
        else found.push(word);
      }
      return found.map((line) => [line, bold]);
    });
  }

  function element(name, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Boxes in the order of reading, by which the keyboard goes.
  let order = [], current = null, hits = [], zoom = 0, fits = false;

  function draw() {
    root.lines = [""];
    size(root);
    order = [];
    const wires = [];
    const marker = element("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8,
      markerUnits: "userSpaceOnUse", orient: "auto" });
    marker.append(element("path", { d: "M0 0.5L8 4L0 7.5z", class: "head" }));
    const defs = element("defs");
    defs.append(marker);
    place(root, 0, 0, wires);
    // Lines lie under boxes and under the names of frames.
    const ways = element("g", { "aria-hidden": "true" });
    ways.append(...wires);
    svg.replaceChildren(defs, ways, ...order.map((item) => item.drawn));
    svg.setAttribute("viewBox", `0 0 ${root.w.toFixed(1)} ${root.h.toFixed(1)}`);
    scale();
    mark();
  }
  function scale() {
    svg.setAttribute("width", Math.ceil(root.w * zoom));
    svg.setAttribute("height", Math.ceil(root.h * zoom));
  }

  function place(frame, x, y, wires) {
    const left = x + (frame === root ? 8 : frame.left), top = y + frame.top;
    for (const { link, points, label } of frame.content.drawn) {
      const upside = backwards !== Boolean(frame.flipped);
      const d = link.aside ? `M${points.map(show).join("L")}` : curve(toBorder(frame, link, points), link.around, upside);
      const ends = !link.to.port && !(link.to.isFrame && link.to.open);
      const path = element("path", { d, class: `way${link.feedback || link.back ? " back" : ""}`, transform: `translate(${left} ${top})` });
      if (ends) path.setAttribute("marker-end", "url(#arrow)");
      path.edges = link.edges;
      wires.push(path);
      if (label) {
        const [lx, ly] = label.at;
        const before = upside !== Boolean(link.rises);
        const at = flat ? { x: left + lx + (before ? -BESIDE : BESIDE), y: top + ly - 4, "text-anchor": before ? "end" : "start" }
          : { x: left + lx + BESIDE, y: top + ly + (link.aside || before ? -6 : 13) };
        const key = `${at.x} ${at.y}`;
        if (!wires.some((one) => one.key === key)) {
          const text = element("text", { ...at, class: "shape" }, label.text);
          text.key = key;
          text.edges = link.edges;
          wires.push(text);
        }
      }
    }
    for (const item of frame.items) {
      const [ix, iy] = frame.content.places.get(item);
      item.x = left + ix;
      item.y = top + iy;
      item.drawn = drawn(item, order.length);
      order.push(item);
      if (item.isFrame && item.open) place(item, item.x, item.y, wires);
    }
  }

  // The points of a link in the coordinates of a frame's content; from a port, and to one, it runs to the frame's border.
  function toBorder(frame, link, points) {
    const found = points.map((point) => [...point]), axis = flat ? 0 : 1;
    const border = (start) => {
      const near = start !== (backwards !== Boolean(frame.flipped)), before = flat ? frame.left : frame.top;
      return near ? -before : (flat ? frame.w : frame.h) - before;
    };
    if (link.from.port) found[0][axis] = border(true);
    if (link.to.port) found[found.length - 1][axis] = border(false);
    return found;
  }

  function drawn(item) {
    const kind = item.isFrame ? (item.open ? "frame" : "shut") : `box f-${item.family}`;
    const group = element("g", { class: `item ${kind}`, role: "treeitem", tabindex: -1, transform: `translate(${item.x} ${item.y})`,
      "aria-level": item.chain.length, "aria-label": spoken(item) });
    if (item.isFrame) group.setAttribute("aria-expanded", String(item.open));
    group.append(element("rect", { class: "body", width: item.w, height: item.h, rx: item.isFrame ? 9 : 5 }));
    if (item.isFrame) group.append(element("path", { class: "fold", d: item.open ? "M9 10h9l-4.5 6z" : "M10 9v9l6-4.5z" }));
    if (item.isFrame && item.open) {
      group.append(element("rect", { class: "title", x: 2, y: 2, width: item.w - 4, height: item.top - 4, rx: 7 }));
    }
    const parts = item.isFrame && item.open ? item.name : lines(item).map((line, n) => [line, n === 0]);
    parts.forEach(([line, bold], n) => {
      const at = !item.isFrame ? { x: item.w / 2, "text-anchor": "middle" } : { x: 23 };
      group.append(element("text", { ...at, y: PAD + 9 + LINE * n, class: bold ? "line first" : "line" }, line));
    });
    group.item = item;
    return group;
  }

  function spoken(item) {
    const said = item.said.map((line) => line.replace(/,$/, "")); // where a list is broken
    return [...said, ...item.facts.map(([name, text]) => `${name} ${text}`)].join(", ");
  }

  // The panel beside the picture.
  function tell(item) {
    if (!item) { told.replaceChildren(); return; }
    const head = document.createElement("h2"), list = document.createElement("dl");
    head.textContent = item.lines[0];
    for (const [name, text] of item.facts) {
      const row = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = text;
      row.append(dt, dd);
      list.append(row);
    }
    told.replaceChildren(head, list);
  }

  function mark(hovered) {
    const shown = hovered || current;
    for (const item of order) {
      item.drawn.classList.toggle("hit", hits.includes(item));
      item.drawn.classList.toggle("holds", item.isFrame && !item.open && hits.some((one) => one.chain.includes(item)));
      item.drawn.classList.toggle("current", item === current);
      item.drawn.setAttribute("tabindex", item === (current || order[0]) ? 0 : -1);
    }
    for (const way of svg.querySelectorAll(".way, .shape")) {
      way.classList.toggle("near", Boolean(shown) && way.edges.some((i) => shown.edges.has(i)));
    }
    tell(shown);
  }

  function choose(item, focus = true) {
    current = item;
    mark();
    if (!item) return;
    if (focus) item.drawn.focus({ preventScroll: true });
    reveal(item);
  }
  function reveal(item) {
    const box = item.drawn.querySelector(".body").getBoundingClientRect(), room = view.getBoundingClientRect();
    const top = item.isFrame && item.open ? Math.min(box.height, 40) : box.height;
    if (box.top < room.top + 8) view.scrollTop -= room.top + 8 - box.top;
    else if (box.top + top > room.bottom - 8) view.scrollTop += box.top + top - room.bottom + 8;
    if (box.left < room.left + 8) view.scrollLeft -= room.left + 8 - box.left;
    else if (box.right > room.right - 8) view.scrollLeft += Math.min(box.right - room.right + 8, box.left - room.left - 8);
  }

  // Draw anew; what the reader was at stays where it was on the screen.
  function redraw(anchor) {
    const before = anchor && anchor.drawn && anchor.drawn.isConnected && anchor.drawn.getBoundingClientRect();
    draw();
    if (!before || !order.includes(anchor)) return;
    const after = anchor.drawn.getBoundingClientRect();
    view.scrollTop += after.top - before.top;
    view.scrollLeft += after.left - before.left;
  }
  function toggle(frame) {
    frame.open = !frame.open;
    redraw(frame);
    choose(frame);
  }
  function all(open) {
    for (const frame of frames) frame.open = open;
    const shown = current && [...current.chain.slice(1), current].find((one) => one === current || !one.open);
    current = shown || null;
    redraw(current);
    if (fits) fit();
    if (current) choose(current, false);
  }

  function seek(next = 0) {
    const words = sought(search.value).split(/\s+/).filter(Boolean);
    const every = [...frames, ...boxes].filter((item) => words.length && words.every((word) => item.text.includes(word)));
    const reading = (item) => [...item.chain.slice(1), item].map((one) => one.parent.items.indexOf(one));
    const compare = (a, b) => { for (let n = 0; n < Math.min(a.length, b.length); n++) if (a[n] !== b[n]) return a[n] - b[n];
      return a.length - b.length; };
    // Of what is found by the name of a frame around it, the frame is enough.
    hits = every.filter((item) => !item.isFrame || !every.some((one) => one.chain.includes(item)))
      .sort((a, b) => compare(reading(a), reading(b)));
    if (next && hits.length) {
      const at = hits.indexOf(current);
      const hit = hits[(at < 0 ? (next > 0 ? 0 : hits.length - 1) : at + next + hits.length) % hits.length];
      const shut = hit.chain.slice(1).filter((one) => !one.open);
      for (const frame of shut) frame.open = true;
      if (shut.length) draw();
      choose(hit, false);
      found.textContent = `${hits.indexOf(hit) + 1} of ${hits.length}`;
    } else {
      found.textContent = !words.length ? "" : hits.length ? `${hits.length} found` : "nothing found";
      mark();
      const first = hits.length && [...hits[0].chain.slice(1), hits[0]].find((one) => one === hits[0] || !one.open);
      if (first) reveal(first);
    }
  }

  const itemOf = (target) => { const group = target.closest && target.closest(".item"); return group ? group.item : null; };
  svg.addEventListener("click", (event) => {
    const item = itemOf(event.target);
    if (!item) return;
    if (item.isFrame && (!item.open || event.target.classList.contains("title"))) toggle(item);
    else choose(item);
  });
  svg.addEventListener("pointerover", (event) => mark(itemOf(event.target)));
  svg.addEventListener("pointerleave", () => mark());
  // On the element around: Chromium gives the focus to an svg that listens for it.
  view.addEventListener("focusin", (event) => {
    const item = itemOf(event.target);
    if (item && item !== current) choose(item);
  });
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const item = itemOf(event.target), at = order.indexOf(item);
    const go = {
      ArrowDown: () => choose(order[Math.min(at + 1, order.length - 1)]),
      ArrowUp: () => choose(order[Math.max(at - 1, 0)]),
      Home: () => choose(order[0]),
      End: () => choose(order[order.length - 1]),
      ArrowRight: () => (item.isFrame && !item.open ? toggle(item) : item.isFrame ? choose(item.items[0]) : undefined),
      ArrowLeft: () => (item.isFrame && item.open ? toggle(item) : item.parent !== root ? choose(item.parent) : undefined),
      Enter: () => item.isFrame && toggle(item),
      " ": () => item.isFrame && toggle(item),
      Escape: () => { current = null; mark(); },
    }[event.key];
    if (!item || !go) return;
    event.preventDefault();
    go();
  });
  search.addEventListener("input", () => seek());
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); seek(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { search.value = ""; seek(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.target === search || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (event.key === "+" || event.key === "=") sized(1.2);
    if (event.key === "-") sized(1 / 1.2);
  });
  // All of the picture, if that is not too small; else as wide as there is room, or as high, and the rest scrolls. Answers
  // whether all can be read.
  function fit() {
    // The height that it may have: what it has now is that of a picture that is smaller.
    const room = (parseFloat(getComputedStyle(view).maxHeight) || innerHeight) - 4;
    const [all, part] = [view.clientWidth / root.w, Math.max(200, room) / root.h].sort((a, b) => a - b);
    zoom = all >= LEAST ? Math.min(MOST, all) : Math.min(part, LEGIBLE);
    fits = true;
    scale();
    return all >= LEGIBLE;
  }
  // At first as many frames are open as can be read in the window, unless a caller has chosen.
  function begin() {
    for (let level = Math.max(0, ...frames.map((frame) => frame.level)); level >= 0; level--) {
      if (data.fit) for (const frame of frames) frame.open &&= frame.level <= level;
      draw();
      if (fit() || !data.fit) return;
    }
  }
  function sized(by) {
    fits = false;
    zoom = Math.max(0.1, Math.min(4, zoom * by));
    scale();
    if (current) choose(current, false);
  }
  const button = (name, act) => document.getElementById(name).addEventListener("click", act);
  button("open", () => all(true));
  button("close", () => all(false));
  button("larger", () => sized(1.2));
  button("smaller", () => sized(1 / 1.2));
  button("fit", fit);
  addEventListener("resize", () => fits && fit());
  begin();
})();
