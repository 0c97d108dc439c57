"use strict";
// The page of one graph. `data` is what ir.view.page writes: nodes in the order of execution, scopes (one call of a
// module each) with the range of nodes that they hold, weights and inputs by number, each target's way by op.
const data = JSON.parse(document.getElementById("data").textContent);
const { nodes, scopes, weights, inputs, outputs, errors } = data;
const $ = (id) => document.getElementById(id);
const GAP = 20, HEIGHT = 26, STEP = GAP + HEIGHT, WIDTH = 400, INDENT = 14, LANE = 9, LEFT = 16;
const FIRST = 150; // rows that are open at the start, about
const COLUMNS = { own: "own error on", whole: "error in the whole program on" };
const WORDS = { native: "a handler of its own", body: "its decomposition", check: "a condition, looked at before a run or in the file", missing: "not known" };

const opened = new Set([0]);
let colour = "", selected = null, hits = new Set(), rows = [], edges = [], placeOf = new Map();

function short(number, unit = "") {
  let letter = 0;
  while (Math.abs(number) >= 999.5 && letter < 5) { number /= 1000; letter += 1; }
  return `${Number(number.toPrecision(3))} ${["", "K", "M", "G", "T", "P"][letter]}${unit}`.trim();
}

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

// -- what is seen: rows from the scopes that are open, edges between rows ----------------------------------------------

function layOut() {
  rows = inputs.map((port, index) => ({ kind: "input", index, depth: 0 }));
  const walk = (scope, depth) => {
    for (const part of scopes[scope].parts) {
      if (part >= 0) {
        rows.push({ kind: "node", index: part, depth });
      } else {
        const inner = -part;
        rows.push({ kind: "scope", index: inner, depth });
        if (opened.has(inner)) walk(inner, depth + 1);
      }
    }
  };
  walk(0, 0);
  outputs.forEach((port, index) => rows.push({ kind: "output", index, depth: 0 }));
  placeOf = new Map();
  rows.forEach((row, place) => {
    if (row.kind === "node") placeOf.set(row.index, place);
    if (row.kind === "scope" && !opened.has(row.index)) {
      for (let n = scopes[row.index].first; n <= scopes[row.index].last; n += 1) placeOf.set(n, place);
    }
  });
  connect();
}

function connect() {
  const found = new Map();
  const add = (source, to, type) => {
    const from = source < 0 ? -1 - source : placeOf.get(source);
    if (from === undefined || to === undefined || from >= to) return;
    const key = from * rows.length + to;
    if (!found.has(key)) found.set(key, { from, to, type, lane: 0 });
  };
  nodes.forEach((node, index) => node.i.forEach(([source, type]) => add(source, placeOf.get(index), type)));
  outputs.forEach((port, index) => add(port.source, rows.length - outputs.length + index, port.type));
  edges = [...found.values()].sort((a, b) => a.from - b.from || a.to - b.to);
  const ends = []; // by lane, the row where its last edge ends
  for (const edge of edges) {
    if (edge.to === edge.from + 1) continue;
    let lane = ends.findIndex((end) => end <= edge.from);
    if (lane < 0) lane = ends.length < 24 ? ends.length : 23;
    ends[lane] = edge.to;
    edge.lane = lane + 1;
  }
}

const x = (row) => LEFT + row.depth * INDENT;
const y = (place) => 12 + place * STEP;

function title(row) {
  if (row.kind === "node") return [nodes[row.index].o.replace(/^aten::/, ""), nodes[row.index].n, nodes[row.index].t];
  if (row.kind === "input") return ["input", inputs[row.index].name, inputs[row.index].type];
  if (row.kind === "output") return ["output", outputs[row.index].name, outputs[row.index].type];
  const scope = scopes[row.index];
  const turn = opened.has(row.index) ? "▾" : "▸";
  return [`${turn} ${scope.path}`, scope.class, `${scope.last - scope.first + 1} nodes${scope.bytes ? ` · ${short(scope.bytes, "B")}` : ""}`];
}

// What the list of colours names: a column of the debugger's table of a target, or nothing.
function column() {
  const [kind, target] = colour.split(/:(.*)/);
  return kind in COLUMNS ? { kind, of: errors[target].nodes } : null;
}

// A folded module has the colour of the worst node in it.
function stripe(row) {
  const chosen = column();
  if (chosen && row.kind === "node") return shade(chosen, row.index, row.index);
  if (chosen && row.kind === "scope" && !opened.has(row.index)) return shade(chosen, scopes[row.index].first, scopes[row.index].last);
  if (row.kind !== "node") return "";
  const op = nodes[row.index].o;
  if (colour && !chosen) return `var(--${data.ways[colour][op] || "core"})`;
  let hash = 0;
  for (const letter of op) hash = (hash * 31 + letter.charCodeAt(0)) % 360;
  return `hsl(${hash} 55% 52%)`;
}

function shade(chosen, first, last) {
  let most = -1;
  for (let n = first; n <= last; n += 1) if (chosen.of[n]) most = Math.max(most, chosen.of[n][chosen.kind]);
  if (most < 0) return "var(--core)";
  return most ? `color-mix(in srgb, var(--missing) ${Math.round(30 + 70 * most)}%, var(--back))` : "var(--native)";
}

function isHit(row) {
  if (row.kind === "node") return hits.has(row.index);
  if (row.kind !== "scope" || opened.has(row.index)) return false;
  for (let n = scopes[row.index].first; n <= scopes[row.index].last; n += 1) if (hits.has(n)) return true;
  return false;
}

const isSelected = (row) => selected !== null && row.kind === selected.kind && row.index === selected.index;

// Only what is in sight is in the document: thousands of rows cost nothing until somebody scrolls to them.
function draw() {
  const view = $("graph");
  const low = Math.max(0, Math.floor((view.scrollTop - 600) / STEP));
  const high = Math.min(rows.length - 1, Math.ceil((view.scrollTop + view.clientHeight + 600) / STEP));
  const made = document.createDocumentFragment();
  for (let place = low; place <= high; place += 1) {
    const row = rows[place];
    const [first, second, more] = title(row);
    const card = element("div", "", `row ${row.kind === "scope" ? (opened.has(row.index) ? "scope open" : "scope") : row.kind === "node" ? "" : "port"}`);
    card.append(element("b", first), element("span", second), element("span", more, "more"));
    card.style.cssText = `left:${x(row)}px;top:${y(place)}px;border-left-color:${stripe(row)}`;
    card.dataset.place = place;
    if (row.kind === "scope") card.setAttribute("aria-expanded", opened.has(row.index));
    card.classList.toggle("hit", isHit(row));
    card.classList.toggle("at", isSelected(row));
    made.append(card);
  }
  $("rows").replaceChildren(made);
  drawEdges(low, high);
}

function drawEdges(low, high) {
  const at = rows.findIndex(isSelected);
  const parts = [];
  for (const { from, to, type, lane } of edges) {
    if (to < low || from > high) continue;
    const lit = from === at || to === at ? ' class="lit"' : "";
    const [a, b] = [rows[from], rows[to]];
    if (!lane) {
      const middle = Math.max(x(a), x(b)) + 40;
      parts.push(`<path${lit} d="M${middle} ${y(from) + HEIGHT}V${y(to)}"/>`);
      parts.push(`<text${lit} x="${middle + 5}" y="${y(to) - 7}">${escaped(type)}</text>`);
    } else {
      const right = LEFT + WIDTH + 8 * INDENT + lane * LANE;
      parts.push(`<path${lit} d="M${x(a) + WIDTH} ${y(from) + HEIGHT / 2 + 5}H${right - 6}q6 0 6 6V${y(to) + HEIGHT / 2 - 11}q0 6 -6 6H${x(b) + WIDTH}"/>`);
      if (lit) parts.push(`<text class="lit" x="${right + 6}" y="${y(to) + HEIGHT / 2 - 12}">${escaped(type)}</text>`);
    }
  }
  $("edges").innerHTML = parts.join("");
}

const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

function refresh() {
  layOut();
  const lanes = Math.max(0, ...edges.map((edge) => edge.lane));
  $("canvas").style.height = `${y(rows.length) + 20}px`;
  $("canvas").style.width = `${LEFT + WIDTH + 8 * INDENT + (lanes + 2) * LANE + 160}px`;
  $("edges").setAttribute("width", "100%");
  $("edges").setAttribute("height", y(rows.length));
  drawTree();
  draw();
}

// -- the tree of modules -----------------------------------------------------------------------------------------------

function drawTree() {
  const made = document.createDocumentFragment();
  const walk = (index, depth) => {
    const scope = scopes[index];
    const inner = scope.parts.filter((part) => part < 0).map((part) => -part);
    const button = element("button");
    const turn = element("span", inner.length ? (opened.has(index) ? "▾" : "▸") : "", "turn");
    button.style.paddingLeft = `${8 + depth * 12}px`;
    button.append(turn, element("span", scope.label), element("span", scope.class, "class"), element("span", scope.bytes ? short(scope.bytes, "B") : "", "size"));
    button.type = "button";
    button.dataset.scope = index;
    button.setAttribute("aria-expanded", opened.has(index));
    button.classList.toggle("at", selected !== null && selected.kind === "scope" && selected.index === index);
    made.append(button);
    if (opened.has(index)) inner.forEach((child) => walk(child, depth + 1));
  };
  walk(0, 0);
  $("tree").replaceChildren(made);
}

function toggle(scope) {
  if (scope === 0) return;
  if (opened.has(scope)) opened.delete(scope); else opened.add(scope);
}

function openAround(node) {
  for (let scope = nodes[node].s; scope !== 0; scope = scopes[scope].parent) opened.add(scope);
}

// -- details -----------------------------------------------------------------------------------------------------------

function part(name, ...content) {
  return [element("h3", name), ...content];
}

function link(source) {
  const made = element("a", source < 0 ? inputs[-1 - source].name : `${nodes[source].n} (${nodes[source].o})`);
  made.dataset.goto = source;
  return made;
}

function lines(items) {
  const made = element("div");
  items.forEach((item) => { const line = element("div"); line.append(...item); made.append(line); });
  return made;
}

function describe() {
  const panel = $("details");
  if (selected === null) {
    panel.replaceChildren(element("h2", "the graph"), ...overview());
  } else if (selected.kind === "node") {
    panel.replaceChildren(element("h2", nodes[selected.index].o), ...node(selected.index));
  } else if (selected.kind === "scope") {
    panel.replaceChildren(element("h2", scopes[selected.index].path || data.title), ...scope(scopes[selected.index]));
  } else {
    const port = (selected.kind === "input" ? inputs : outputs)[selected.index];
    panel.replaceChildren(element("h2", `${selected.kind} ${port.name}`), element("code", port.type));
  }
}

function overview() {
  const ops = data.facts.ops.slice(0, 30).map((op) => [`${op.count} × ${op.op.replace(/^aten::/, "")}${op.flops ? `, ${short(op.flops, "FLOP")}` : ""}`]);
  const large = data.facts.largest.map((w) => [`${short(w.bytes, "B")}  ${w.name} ${w.type}`]);
  const tables = Object.values(errors).flatMap((table) => [
    ...part(table.head[0], lines([...table.head.slice(1).map((text) => [text]), ...table.worst.map((place) => [link(place), ` ${table.nodes[place].lines[0]}`])])),
  ]);
  return [...tables, ...part("ops", lines(ops)), ...part("largest weights", lines(large))];
}

function node(index) {
  const n = nodes[index];
  const users = nodes.flatMap((other, place) => (other.i.some(([source]) => source === index) ? [place] : []));
  const made = [...part("result", element("code", `${n.n}: ${n.t}`))];
  if (n.i.length) made.push(...part("inputs", lines(n.i.map(([source, type]) => [link(source), ` ${type}`]))));
  if (users.length) made.push(...part("used by", lines(users.map((place) => [link(place)]))));
  if (n.w.length) made.push(...part("weights", lines(n.w.map((w) => [`${weights[w][0]} ${weights[w][1]}, ${short(weights[w][2], "B")}`]))));
  if (n.a.length) made.push(...part("arguments", element("pre", n.a.join("\n"))));
  if (n.f) made.push(...part("floating-point operations", element("code", short(n.f, "FLOP"))));
  if (n.l) made.push(...part("source", element("pre", `${data.lines[n.l][0]}\n${data.lines[n.l][1]}`)));
  if (n.s) made.push(...part("module", element("code", `${scopes[n.s].path}  ${scopes[n.s].class}`)));
  Object.entries(errors).forEach(([target, table]) => {
    if (table.nodes[index]) made.push(...part(`beside torch on ${target}`, lines(table.nodes[index].lines.map((text) => [text]))));
  });
  const ways = Object.entries(data.ways).map(([target, by]) => [`${target}: ${WORDS[by[n.o]] || ""}`]);
  if (ways.length) made.push(...part("targets", lines(ways)));
  return made;
}

function scope(s) {
  const held = nodes.slice(s.first, s.last + 1);
  const counts = new Map();
  held.forEach((n) => counts.set(n.o, (counts.get(n.o) || 0) + 1));
  const ops = [...counts].sort((a, b) => b[1] - a[1]).map(([op, count]) => [`${count} × ${op.replace(/^aten::/, "")}`]);
  const own = [...new Set(held.flatMap((n) => n.w))].map((w) => [`${short(weights[w][2], "B")}  ${weights[w][0]} ${weights[w][1]}`]);
  const flops = held.reduce((sum, n) => sum + n.f, 0);
  const made = [element("code", `${s.class}\n`), ...part("holds", element("code", `${held.length} nodes, ${short(s.bytes, "B")}, ${short(flops, "FLOP")}`)), ...part("ops", lines(ops))];
  return own.length ? [...made, ...part("weights", lines(own.slice(0, 40)))] : made;
}

function select(kind, index, scroll) {
  selected = { kind, index };
  describe();
  if (scroll) {
    const place = rows.findIndex(isSelected);
    $("graph").scrollTop = y(place) - $("graph").clientHeight / 3;
  }
  draw();
}

function reveal(source) {
  if (source < 0) return select("input", -1 - source, true);
  openAround(source);
  refresh();
  return select("node", source, true);
}

// -- search, colours ---------------------------------------------------------------------------------------------------

function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = search.texts || (search.texts = nodes.map((n) => [n.o, n.n, n.t, scopes[n.s].path, scopes[n.s].class, ...n.w.map((w) => weights[w][0])].join(" ").toLowerCase()));
  const found = words.length ? texts.flatMap((text, index) => (words.every((word) => text.includes(word)) ? [index] : [])) : [];
  hits = new Set(found);
  const list = found.slice(0, 50).map((index) => {
    const button = element("button", `${nodes[index].o.replace(/^aten::/, "")}  ${nodes[index].n}  ${scopes[nodes[index].s].path}`);
    button.type = "button";
    button.dataset.goto = index;
    return button;
  });
  const box = $("search").getBoundingClientRect();
  $("found").style.left = `${box.left}px`;
  $("found").style.top = `${box.bottom + 4}px`;
  $("found").replaceChildren(element("p", found.length === 1 ? "1 node" : `${found.length} nodes`), ...list);
  $("found").hidden = !words.length;
  draw();
}

function recolour() {
  colour = $("colour").value;
  const chosen = column();
  $("legend").replaceChildren(...(chosen ? ofErrors(chosen) : ofWays()));
  draw();
}

function legend(background, text) {
  const made = element("span"), square = element("i");
  square.style.background = background;
  made.append(square, text);
  return made;
}

function ofWays() {
  const counts = {};
  if (colour) nodes.forEach((n) => { const way = data.ways[colour][n.o]; counts[way] = (counts[way] || 0) + 1; });
  return Object.entries(counts).map(([way, count]) => legend(`var(--${way})`, `${WORDS[way]}: ${count}`));
}

function ofErrors(chosen) {
  const said = Object.values(chosen.of), wrong = said.filter((n) => n[chosen.kind] > 0).length;
  return [legend("var(--native)", `torch's rounding or less: ${said.length - wrong}`), legend("var(--missing)", `more: ${wrong}`)];
}

// -- the start ---------------------------------------------------------------------------------------------------------

function start() {
  $("headline").textContent = data.headline;
  const columns = Object.keys(errors).flatMap((target) => Object.entries(COLUMNS).map(([kind, text]) => [`${kind}:${target}`, `${text} ${target}`]));
  [...columns, ["", "by op"], ...Object.keys(data.ways).map((target) => [target, `by ${target}`])].forEach(([value, text]) => {
    const option = element("option", text);
    option.value = value;
    $("colour").append(option);
  });
  let shown = scopes[0].parts.length;
  const queue = scopes[0].parts.filter((p) => p < 0).map((p) => -p);
  while (queue.length && shown + scopes[queue[0]].parts.length <= FIRST) {
    const next = queue.shift();
    opened.add(next);
    shown += scopes[next].parts.length;
    queue.push(...scopes[next].parts.filter((p) => p < 0).map((p) => -p));
  }
  $("rows").addEventListener("click", (event) => {
    const card = event.target.closest(".row");
    if (!card) return;
    const row = rows[Number(card.dataset.place)];
    if (row.kind === "scope") { toggle(row.index); refresh(); }
    select(row.kind, row.index, false);
  });
  $("tree").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const index = Number(button.dataset.scope);
    toggle(index);
    refresh();
    select("scope", index, index !== 0);
    drawTree();
  });
  document.addEventListener("click", (event) => {
    const goto = event.target.dataset && event.target.dataset.goto;
    if (goto !== undefined) reveal(Number(goto));
    if (!event.target.closest("#found, .find")) $("found").hidden = true;
  });
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && hits.size) { reveal([...hits][0]); $("found").hidden = true; }
    if (event.key === "Escape") { $("search").value = ""; search(); }
  });
  $("colour").addEventListener("change", recolour);
  $("fold-all").addEventListener("click", () => { opened.clear(); opened.add(0); refresh(); });
  $("open-all").addEventListener("click", () => { scopes.forEach((s, index) => opened.add(index)); refresh(); });
  let waiting = false;
  $("graph").addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  });
  new ResizeObserver(draw).observe($("graph"));
  refresh();
  recolour();
  describe();
  document.body.dataset.ready = Math.round(performance.now());
}

start();
