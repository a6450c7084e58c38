// Charts and heat maps, each with a table of the same figures.
import { html, useEffect, useRef, useState, amount, when, escapeKey, fromBase64 } from "./util.js";
import { Grid } from "./ui.js";

// A line is told from the others by its dashes too.
const lines = [["#0b5cad", "#7cb8f7", []], ["#a3570a", "#f0a860", [7, 4]], ["#17663a", "#86d9a5", [2, 3]], ["#7b2d8b", "#d9a0e6", [10, 3, 2, 3]], ["#52606f", "#a6b3c2", [4, 2]], ["#a81e2c", "#ff9aa2", [1, 2]]];

// Chart draws series {label, points: [[unix seconds, value], …]} of one unit.
export function Chart({ title, series, unit, limit = 6 }) {
  const ref = useRef(), dark = useDark(), write = amount(unit);
  const shown = [...series].sort((a, b) => sum(b) - sum(a)).slice(0, limit);
  useEffect(() => {
    const box = ref.current;
    if (!box) return;
    const at = [...new Set(shown.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
    if (at.length === 1) at.unshift(at[0] - 300); // or the axis spans years
    const data = [at, ...shown.map((s) => { const m = new Map(s.points); return at.map((t) => m.get(t) ?? null); })];
    const ink = getComputedStyle(document.documentElement).getPropertyValue("color"), grid = dark ? "#323d4b" : "#d8dee6";
    // Ticks of bytes are at powers of two, as their units are.
    const incrs = unit === "B" || unit === "bytes" || unit === "B/s" ? Array.from({ length: 61 }, (_, i) => 2 ** i) : undefined;
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif" };
    const plot = new uPlot({
      width: Math.max(200, box.clientWidth), height: 210, cursor: { drag: { x: true, y: false } }, legend: { live: true },
      series: [{ label: "Time (UTC)", value: (_, v) => v == null ? "–" : when(v * 1000) }, ...shown.map((s, i) => ({ label: s.label, stroke: lines[i % lines.length][dark ? 1 : 0], width: 2, dash: lines[i % lines.length][2], points: { show: at.length < 3 }, value: (_, v) => v == null ? "–" : write(v) }))],
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "UTC"),
      scales: { x: { range: (_, lo, hi) => hi - lo < 300 ? [hi - 300, hi] : [lo, hi] }, y: { range: (_, lo, hi) => [Math.min(0, lo ?? 0), (hi || 5) * 1.08] } },
      axes: [{ ...axis, values: (_, vs) => vs.map((t) => new Date(t * 1000).toISOString().slice(11, 16)) }, { ...axis, size: 78, ...(incrs ? { incrs } : {}), values: (_, vs) => vs.map(write) }],
    }, data, box);
    const fit = new ResizeObserver(() => plot.setSize({ width: Math.max(200, box.clientWidth), height: 210 }));
    fit.observe(box);
    return () => { fit.disconnect(); plot.destroy(); };
  }, [series, dark]);
  return html`<figure style=${{ margin: 0 }}><figcaption><h3>${title}</h3></figcaption><div class="chart" ref=${ref} aria-hidden="true"></div>
    ${series.length > limit && html`<p class="hint">The ${limit} largest of ${series.length} are drawn; the table has all.</p>`}
    <details><summary>Latest figures as a table</summary><${Grid} caption=${title} rows=${series} columns=${[["Series", (s) => s.label, "name"], ["Latest", (s) => s.points.length ? write(s.points.at(-1)[1]) : "–", "num"], ["Lowest", (s) => write(Math.min(...s.points.map((p) => p[1]))), "num"], ["Highest", (s) => write(Math.max(...s.points.map((p) => p[1]))), "num"]]} /></details></figure>`;
}
const sum = (s) => s.points.reduce((n, p) => n + Math.abs(p[1] || 0), 0);

export function useDark() {
  const q = matchMedia("(prefers-color-scheme: dark)");
  const now = () => { const t = document.documentElement.dataset.theme; return t ? t === "dark" : q.matches; };
  const [dark, set] = useState(now());
  useEffect(() => {
    const f = () => set(now());
    q.addEventListener("change", f);
    window.addEventListener("theme", f);
    return () => { q.removeEventListener("change", f); window.removeEventListener("theme", f); };
  }, []);
  return dark;
}

// cividis, which people with any colour vision read alike: brightness alone tells the value.
const cividis = [[0, 32, 77], [0, 47, 111], [42, 64, 108], [72, 80, 107], [96, 97, 110], [118, 114, 116], [142, 132, 119], [167, 151, 116], [194, 171, 108], [222, 193, 93], [253, 231, 55]];
function colour(part) {
  const x = Math.max(0, Math.min(1, part)) * (cividis.length - 1), i = Math.min(cividis.length - 2, Math.floor(x)), f = x - i;
  return cividis[i].map((c, k) => Math.round(c + (cividis[i + 1][k] - c) * f));
}

// HeatMap draws values[column][bucket]: time to the right, keys downwards.
export function HeatMap({ map, unit }) {
  const ref = useRef(), scale = useRef(), [at, point] = useState(null), write = amount(unit);
  const cols = map.values.length, rows = Math.max(1, map.keys.length - 1);
  const key = (i) => i <= 0 ? "the first key" : i >= map.keys.length - 1 ? "the last key" : escapeKey(fromBase64(map.keys[i])).slice(0, 60);
  let top = 0;
  for (const c of map.values) for (const v of c ?? []) if (v > top) top = v;
  const part = (v) => top > 0 && v > 0 ? Math.log1p(v) / Math.log1p(top) : 0;
  useEffect(() => {
    const c = ref.current;
    if (!c || !cols) return;
    c.width = cols;
    c.height = rows;
    const g = c.getContext("2d"), img = g.createImageData(cols, rows);
    // A column in which nothing was recorded stays transparent.
    map.values.forEach((column, x) => { if (column) for (let y = 0; y < rows; y++) { const p = 4 * (y * cols + x), rgb = colour(part(column[y] || 0)); img.data.set([...rgb, 255], p); } });
    g.putImageData(img, 0, 0);
    const s = scale.current, sg = s.getContext("2d");
    s.width = 120; s.height = 1;
    for (let x = 0; x < 120; x++) { sg.fillStyle = `rgb(${colour(x / 119)})`; sg.fillRect(x, 0, 1, 1); }
  }, [map]);
  const move = (e) => { const b = ref.current.getBoundingClientRect(); point([Math.min(cols - 1, Math.max(0, Math.floor((e.clientX - b.left) / b.width * cols))), Math.min(rows - 1, Math.max(0, Math.floor((e.clientY - b.top) / b.height * rows)))]); };
  const keys = (e) => {
    const d = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (!d) return;
    e.preventDefault();
    const [x, y] = at ?? [cols - 1, 0];
    point([Math.min(cols - 1, Math.max(0, x + d[0])), Math.min(rows - 1, Math.max(0, y + d[1]))]);
  };
  if (!cols) return null;
  const totals = Array.from({ length: rows }, (_, y) => ({ y, total: map.values.reduce((n, c) => n + (c?.[y] || 0), 0), latest: map.values.findLast((c) => c)?.[y] || 0 }));
  const all = totals.reduce((n, t) => n + t.total, 0);
  const marks = [0, .25, .5, .75, 1].map((f) => Math.round(f * rows)).filter((m, i, all) => i === 0 || m > all[i - 1]);
  return html`<div class="heat"><div class="keys" aria-hidden="true">${marks.map((m) => html`<span class="mono" title=${key(m)}>${key(m)}</span>`)}</div><canvas ref=${ref} tabindex="0" role="img" aria-label="Heat map. Arrow keys move through it; the table below has the same figures." onMouseMove=${move} onMouseLeave=${() => point(null)} onKeyDown=${keys}></canvas></div>
    <div class="axis"><span>${when(map.times[0])}</span><span>${when(map.times.at(-1))}</span></div>
    <p aria-live="polite">${at ? html`<bdi class="mono">${when(map.times[at[0]])} · rows from ${key(at[1])} to ${key(at[1] + 1)} · ${map.values[at[0]] ? write(map.values[at[0]][at[1]] || 0) : "not recorded"}</bdi>` : html`<span class="hint">Point at the map, or focus it and use the arrow keys. Keys run from top to bottom.</span>`}</p>
    <div class="scale"><span>0</span><canvas ref=${scale} aria-hidden="true"></canvas><span>${write(top)}</span><span>(logarithmic)</span></div>
    <details><summary>The same as a table: the key ranges with most load</summary><${Grid} caption="Key ranges by load" limit=${50} rows=${totals.sort((a, b) => b.total - a.total)} columns=${[["From", (t) => html`<bdi class="mono">${key(t.y)}</bdi>`, "name"], ["To", (t) => html`<bdi class="mono">${key(t.y + 1)}</bdi>`, "name"], ["In all", (t) => write(t.total), "num"], ["Share", (t) => all ? `${(100 * t.total / all).toFixed(1)} %` : "–", "num"], ["Latest column", (t) => write(t.latest), "num"]]} /></details>`;
}
