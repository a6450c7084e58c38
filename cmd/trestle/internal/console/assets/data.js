// The rows of a table, the key visualizer, and SQL.
import { html, useState, useEffect, useMemo, useRef, get, post, path, last, instanceOf, projectOf, toBase64, fromBase64, escapeKey, unescapeKey, after, decode, visible, bytes, count, seconds, micros, exact, Refusal, remembered, when } from "./util.js";
import { useLoad, useMay, Note, Failure, Loaded, Card, Head, Empty, Command, Grid, Facts, Key, Field, TableField, useForm, Button, useDialog, Badge } from "./ui.js";
import { everything, to, FirstSteps, cbtAt } from "./pages.js";
import { messagesOf, reader } from "./proto.js";
import { HeatMap } from "./charts.js";

const chain = (fs) => fs.length > 1 ? { chain: { filters: fs } } : fs[0];
// A pattern of RE2 goes out as the bytes of its text.
const pattern = (s) => toBase64(new TextEncoder().encode(s));

// requestOf makes a ReadRowsRequest of what the form says.
function requestOf(v, more) {
  const keys = v.keys.split("\n").map((k) => k.trim()).filter(Boolean), rows = {}, range = {};
  if (v.prefix) { const p = unescapeKey(v.prefix), end = after(p); range.startKeyClosed = toBase64(p); if (end) range.endKeyOpen = toBase64(end); }
  if (v.from) range.startKeyClosed = toBase64(unescapeKey(v.from));
  if (v.until) range.endKeyOpen = toBase64(unescapeKey(v.until));
  if (keys.length) rows.rowKeys = keys.map((k) => toBase64(unescapeKey(k)));
  if (more) {
    const beyond = (k) => v.reversed ? k < escapeOrder(more) : k > escapeOrder(more);
    if (rows.rowKeys) rows.rowKeys = rows.rowKeys.filter((k) => beyond(escapeOrder(k)));
    if (v.reversed) { delete range.endKeyOpen; range.endKeyOpen = more; } else { delete range.startKeyClosed; range.startKeyOpen = more; }
  }
  if (Object.keys(range).length && !(more && keys.length)) rows.rowRanges = [range];
  const filters = [];
  if (v.family) filters.push({ familyNameRegexFilter: v.family });
  if (v.qualifier) filters.push({ columnQualifierRegexFilter: pattern(v.qualifier) });
  if (v.value) filters.push({ valueRegexFilter: pattern(v.value) });
  if (v.versions) filters.push({ cellsPerColumnLimitFilter: Number(v.versions) });
  if (v.filter.trim()) { try { filters.push(JSON.parse(v.filter)); } catch (e) { throw new Refusal(0, "The filter is no JSON: " + e.message); } }
  return { ...(Object.keys(rows).length ? { rows } : {}), ...(filters.length ? { filter: chain(filters) } : {}), ...(v.reversed ? { reversed: true } : {}), rowsLimit: v.limit, requestStatsView: "REQUEST_STATS_FULL" };
}
const escapeOrder = (base64) => { let s = ""; for (const x of fromBase64(base64)) s += String.fromCharCode(x); return s; };
const none = (r) => r.rows && r.rows.rowKeys && r.rows.rowKeys.length === 0 && !r.rows.rowRanges;

// asCbt and asGo write the same request for a shell and a program.
const shell = (s) => `'${s.replaceAll("'", `'\\''`)}'`;
const quote = (b) => `"${[...b].map((x) => x === 34 || x === 92 ? "\\" + String.fromCharCode(x) : x >= 32 && x < 127 ? String.fromCharCode(x) : "\\x" + x.toString(16).padStart(2, "0")).join("")}"`;
function asCbt(session, name, v) {
  const at = cbtAt(session, shell(projectOf(name)), shell(last(instanceOf(name)))), keys = v.keys.split("\n").map((k) => k.trim()).filter(Boolean);
  if (keys.length) return keys.map((k) => `${at} lookup ${shell(last(name))} ${shell(k)}${v.versions ? ` cells-per-column=${v.versions}` : ""}`).join("\n");
  return `${at} read ${shell(last(name))} count=${v.limit}${v.prefix ? ` prefix=${shell(v.prefix)}` : ""}${v.from ? ` start=${shell(v.from)}` : ""}${v.until ? ` end=${shell(v.until)}` : ""}${v.qualifier ? ` regex=${shell(v.qualifier)}` : ""}${v.versions ? ` cells-per-column=${v.versions}` : ""}${v.reversed ? " reversed=true" : ""}`;
}
function asGo(name, v) {
  const keys = v.keys.split("\n").map((k) => k.trim()).filter(Boolean), q = (s) => quote(unescapeKey(s));
  const set = keys.length ? `bigtable.RowList{${keys.map(q).join(", ")}}` : v.prefix ? `bigtable.PrefixRange(${q(v.prefix)})` : v.until ? `bigtable.NewRange(${q(v.from)}, ${q(v.until)})` : `bigtable.InfiniteRange(${q(v.from)})`;
  const utf8 = (s) => quote(new TextEncoder().encode(s)), fs = [v.family && `bigtable.FamilyFilter(${utf8(v.family)})`, v.qualifier && `bigtable.ColumnFilter(${utf8(v.qualifier)})`, v.value && `bigtable.ValueFilter(${utf8(v.value)})`, v.versions && `bigtable.LatestNFilter(${v.versions})`].filter(Boolean);
  const filter = fs.length > 1 ? `bigtable.ChainFilters(${fs.join(", ")})` : fs[0];
  return `client, err := bigtable.NewClient(ctx, ${JSON.stringify(projectOf(name))}, ${JSON.stringify(last(instanceOf(name)))})
// …
err = client.Open(${JSON.stringify(last(name))}).ReadRows(ctx, ${set},
\tfunc(row bigtable.Row) bool { fmt.Println(row.Key()); return true },
\tbigtable.LimitRows(${v.limit})${filter ? `,\n\tbigtable.RowFilter(${filter})` : ""}${v.reversed ? ",\n\tbigtable.ReverseScan()" : ""})`;
}

// shownCells is how many cells are drawn at first, and how many more each time.
const shownCells = 300;

export function Data({ name, session }) {
  const table = useLoad((s) => get(`/v2/${path(name)}`, s), [name]);
  const may = useMay(name, ["bigtable.tables.readRows", "bigtable.tables.mutateRows"]);
  const [v, bind, setV] = useForm({ prefix: "", from: "", until: "", keys: "", family: "", qualifier: "", value: "", versions: "1", filter: "", limit: "50", reversed: false });
  const [as, setAs] = useState(remembered.get("decode", "text")), [page, setPage] = useState(null), [error, setError] = useState(null), [busy, setBusy] = useState(true), [most, setMost] = useState(shownCells), [dialog, open] = useDialog();
  const bundles = useLoad((s) => get(`/v2/${path(name)}/schemaBundles`, s).then((r) => r.schemaBundles || []), [name]);
  const types = useMemo(() => { const out = new Map(); for (const b of bundles.data || []) try { for (const [k, t] of messagesOf(fromBase64(b.protoSchema?.protoDescriptors))) out.set(k, t); } catch { /* shown as hex */ } return out; }, [bundles.data]);
  const messages = [...types].filter(([, t]) => t.fields).map(([k]) => k), [message, setMessage] = useState("");
  const write = (b) => decode(b, as, reader(types, message || messages[0]));
  const read = async (more) => {
    setBusy(true);
    setError(null);
    try {
      const request = requestOf(v, more), begun = performance.now();
      const r = none(request) ? { rows: [] } : await post(`/v2/${path(name)}:rows`, request);
      const rows = r.rows || [], lastKey = r.next ?? (rows.length === Number(v.limit) ? rows.at(-1).key : null);
      setMost(shownCells);
      setPage({ rows, next: lastKey, took: performance.now() - begun, stats: r.stats, turn: more ? (page?.turn ?? 1) + 1 : 1 });
    } catch (e) { setError(e); } finally { setBusy(false); }
  };
  useEffect(() => { read(); }, [name]);
  const cells = (page?.rows || []).reduce((n, r) => n + r.cells.length, 0), drawn = [];
  let left = most;
  for (const r of page?.rows || []) {
    if (left <= 0) break;
    drawn.push({ ...r, cells: r.cells.slice(0, Math.min(left, 500)), cut: r.cells_left_out || r.cells.length > 500 });
    left -= Math.min(r.cells.length, 500) || 1;
  }
  const mutate = (key, mutations) => post(`/v2/${path(name)}:mutateRow`, { rowKey: key, mutations });
  const families = Object.keys(table.data?.columnFamilies || {});
  const edit = (key, c) => open({ title: c ? "Edit a cell" : "Write a cell", verb: "Write", fields: [{ name: "key", label: "Row key", value: key ? escapeKey(fromBase64(key)) : "", required: true, hint: "Bytes beyond ASCII as \\xNN" }, families.length && !c ? { name: "family", label: "Family", options: families, value: families[0] } : { name: "family", label: "Family", value: c?.family || "", required: true }, { name: "qualifier", label: "Column", value: c ? escapeKey(fromBase64(c.qualifier)) : "" }, { name: "value", label: "Value", lines: 5, value: c ? escapeKey(fromBase64(c.value)) : "", hint: "Bytes beyond ASCII as \\xNN. It becomes the newest version." }],
    run: (f) => { if (c && c.bytes > fromBase64(c.value).length) throw new Refusal(0, "This value is longer than what is shown of it: write it with a client."); return mutate(toBase64(unescapeKey(f.key)), [{ setCell: { familyName: f.family, columnQualifier: toBase64(unescapeKey(f.qualifier)), timestampMicros: "-1", value: toBase64(unescapeKey(f.value)) } }]); }, done: () => read() });
  const drop = (r) => open({ title: "Delete this row?", name: last(name), verb: "Delete the row", children: html`<p>All cells of row <bdi class="mono">${escapeKey(fromBase64(r.key)).slice(0, 200)}</bdi> are gone then.</p>`, run: () => mutate(r.key, [{ deleteFromRow: {} }]), done: () => read() });
  const writes = { may: may("bigtable.tables.mutateRows"), permission: "bigtable.tables.mutateRows" };
  let cbt = "", go = "";
  try { cbt = asCbt(session, name, v); go = asGo(name, v); } catch { /* the form says what is wrong when it is sent */ }
  const seen = page?.stats?.fullReadStatsView?.readIterationStats;
  return html`<${Head} title=${html`Data of ${visible(last(name))}`} crumbs=${[["Instances", "#/instances"], [visible(last(instanceOf(name))), to("instance", instanceOf(name))], [visible(last(name)), to("table", name)]]} lead="Read rows, look at versions, change a cell."><${Button} ...${writes} run=${() => edit()}>Write a cell</${Button}></${Head}>${dialog}
  <${Card} title="Rows to read"><form class="grid" onSubmit=${(e) => { e.preventDefault(); read(); }}>
    <${Field} label="Row key prefix" ...${bind("prefix")} /><${Field} label="From row (included)" ...${bind("from")} /><${Field} label="Up to row (left out)" ...${bind("until")} /><${Field} label="Family (pattern)" ...${bind("family")} />
    <${Field} label="Column (pattern)" ...${bind("qualifier")} /><${Field} label="Value (pattern)" ...${bind("value")} /><${Field} label="Versions" options=${[["1", "the newest"], ["3", "3"], ["10", "10"], ["", "all"]]} ...${bind("versions")} /><${Field} label="Rows on a page" options=${["10", "50", "200"]} ...${bind("limit")} />
    <${Field} label="Values as" options=${[["text", "text"], ["hex", "hexadecimal"], ["int", "big-endian integer"], ["json", "JSON"], ...(messages.length ? [["proto", "protobuf"]] : [])]} value=${as} onInput=${(e) => { setAs(e.currentTarget.value); remembered.set("decode", e.currentTarget.value); }} />
    ${as === "proto" && html`<${Field} label="Message" options=${messages} value=${message || messages[0]} onInput=${(e) => setMessage(e.currentTarget.value)} />`}
    <label class="check"><input type="checkbox" checked=${v.reversed} onChange=${(e) => { const on = e.currentTarget.checked; setV((s) => ({ ...s, reversed: on })); }} /> From the last row back</label>
    <details class="wide"><summary>Single rows, and a filter of your own</summary><div class="cards"><${Field} label="Row keys" lines=${4} hint="One a line; bytes beyond ASCII as \\xNN" ...${bind("keys")} /><${Field} label="Filter as JSON (RowFilter)" lines=${4} hint=${'Such as {"cellsPerRowLimitFilter": 1}. The patterns are RE2.'} ...${bind("filter")} /></div></details>
    <div class="wide row"><button class="first" type="submit" aria-busy=${busy ? "true" : "false"}>Read</button>${page && html`<span class="hint" role="status">${count(page.rows.length)} rows, ${count(cells)} cells in ${seconds(page.took / 1000)}${seen ? `; the server looked at ${count(seen.rowsSeenCount)} rows and ${count(seen.cellsSeenCount)} cells` : ""}${page.turn > 1 ? `; page ${page.turn}` : ""}</span>`}</div></form></${Card}>
  <${Failure} error=${error} what="read these rows" />
  ${page && (page.rows.length === 0 ? html`<${Card}><${Empty} title="No row matches.">${v.prefix || v.from || v.keys || v.filter || v.value || v.qualifier || v.family ? "Take a condition away." : html`The table is empty. Write a first cell here, or with <code>cbt -project ${projectOf(name)} -instance ${last(instanceOf(name))} set ${last(name)} r1 ${families[0] || "f"}:q=hello</code>.`}</${Empty}></${Card}>` : html`<${Card} title="Rows"><div class="scroll" tabindex="0" role="region" aria-label="Rows"><table class="rows"><caption class="visually">Rows of the table</caption><thead><tr><th scope="col">Row</th><th scope="col">Column</th><th scope="col">Version (UTC)</th><th scope="col">Value</th><th scope="col"><span class="visually">Actions</span></th></tr></thead><tbody>
    ${drawn.map((r) => html`${r.cells.map((c, i) => html`<tr><td class="k">${i === 0 && html`<div class="rowkey"><${Key} base64=${r.key} /></div><${Button} ...${writes} small danger run=${() => drop(r)}>Delete<span class="visually"> the row</span></${Button}>`}</td><td class="name"><bdi class="mono">${visible(c.family)}:</bdi><${Key} base64=${c.qualifier} />${(c.labels || []).map((l) => html` <${Badge}>${visible(l)}</${Badge}>`)}</td><td class="mono when">${micros(c.timestampMicros)}</td><td class="name"><${Value} cell=${c} write=${write} /></td><td class="act"><${Button} ...${writes} small run=${() => edit(r.key, c)}>Edit<span class="visually"> the cell</span></${Button}></td></tr>`)}${r.cut && html`<tr class="cut"><td></td><td colspan="4">This row has more cells than are shown. Narrow it by family or column.</td></tr>`}`)}
  </tbody></table></div>${left <= 0 && cells > most && html`<p class="row"><span role="status">The first ${count(most)} of ${count(cells)} cells of this page are shown.</span><button class="small" type="button" onClick=${() => setMost(most + shownCells)}>Show more</button></p>`}<p class="row">${page.next ? html`<button type="button" onClick=${() => read(page.next)}>Next page</button>` : html`<span class="hint">These are the last rows.</span>`}${page.turn > 1 && html`<button type="button" onClick=${() => read()}>First page</button>`}</p></${Card}>`)}
  <${Card} title="The same elsewhere"><h3>cbt</h3><${Command} text=${cbt} /><h3>Go</h3><${Command} text=${go} /></${Card}>`;
}

// Value shows a value, of which a long one is cut.
function Value({ cell, write }) {
  const b = fromBase64(cell.value), [all, setAll] = useState(false), text = write(b), cut = !all && text.length > 1000;
  return html`<bdi class="v mono" tabindex=${text.length > 300 ? 0 : undefined}>${cut ? text.slice(0, 1000) + "…" : text}</bdi>${cut && html`<button class="small" type="button" onClick=${() => setAll(true)}>Show ${bytes(b.length)}</button>`}${cell.bytes > b.length && html`<span class="hint">The first ${bytes(b.length)} of ${bytes(cell.bytes)}.</span>`}`;
}

const metrics = [["reads", "Reads", "1"], ["rows_read", "Rows read", "1"], ["bytes_read", "Bytes read", "B"], ["rows_written", "Rows written", "1"], ["bytes_written", "Bytes written", "B"], ["cpu", "Processor time (estimate)", "µs"], ["bytes", "Bytes stored", "B"]];
const spans = [["3600", "1 hour"], ["21600", "6 hours"], ["86400", "1 day"], ["345600", "4 days"], ["1209600", "14 days"]];

export function Keys({ name, session }) {
  const all = useLoad(everything, []), tables = all.data?.tables || [], table = name || tables[0] || "";
  const [metric, setMetric] = useState("cpu"), [span, setSpan] = useState("3600");
  const of = useLoad((s) => table ? get(`/admin/keyvis?table=${encodeURIComponent(table)}&metric=${metric}&from=${encodeURIComponent(new Date(Date.now() - span * 1000).toISOString())}&to=${encodeURIComponent(new Date().toISOString())}`, s).catch((e) => { if (e.status === 404 && !/able/.test(e.message)) return { values: [], findings: [], keys: [], times: [] }; throw e; }) : null, [table, metric, span], 60);
  const unit = metrics.find((m) => m[0] === metric)[2];
  return html`<${Head} title="Key visualizer" lead="Which keys are read and written, and when. A bright spot is a hot range of rows." />
  <${Failure} error=${all.error} />
  ${all.data && tables.length === 0 ? html`<${FirstSteps} session=${session} />` : html`
  <${Card}><form class="grid" aria-busy=${all.loading ? "true" : "false"} onSubmit=${(e) => e.preventDefault()}><${TableField} tables=${tables} value=${table} choose=${(t) => { location.hash = to("keys", t); }} /><${Field} label="Figure" options=${metrics.map((m) => [m[0], m[1]])} value=${metric} onInput=${(e) => setMetric(e.currentTarget.value)} /><${Field} label="Of the last" options=${spans} value=${span} onInput=${(e) => setSpan(e.currentTarget.value)} /></form></${Card}>
  ${table && html`<${Loaded} of=${of} what="see the keys of this table">${(d) => d === null ? null : d.values.length === 0 ? html`<${Card}><${Empty} title="Nothing is recorded yet.">A column is recorded each minute while the server runs. Come back in two minutes; to see a pattern at once, put load on a table: <code>trestle bench --help</code>.</${Empty}></${Card}>` : html`
    ${(d.findings || []).map((f) => html`<${Note} kind=${f.severity === "warning" ? "warn" : ""}><b>${visible(f.text)}</b> <span class="hint">${when(f.from)} to ${when(f.to)}</span>${f.key ? html` <a href=${to("data", table)}>Look at the rows</a>` : ""}</${Note}>`)}
    <${Card} title=${metrics.find((m) => m[0] === metric)[1] + (metric === "bytes" ? "" : ` in each ${{ 60: "minute", 600: "10 minutes", 3600: "hour" }[d.step_seconds] || seconds(d.step_seconds)}`)}>${d.findings?.length ? null : html`<p class="hint">${d.values.some((c) => c?.some((v) => v > 0)) ? "Nothing stands out in this time." : "There was no such load in this time: choose another figure or a longer time."}</p>`}<${HeatMap} map=${d} unit=${unit} /></${Card}>`}</${Loaded}>`}`}`;
}

const maxShown = 1000, maxText = 8 << 20;
// runQuery reads an answer line by line, and stops when it is more than is shown.
async function runQuery(instance, query) {
  const stop = new AbortController();
  const r = await fetch(`/v2/${path(instance)}:query`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ query }), signal: stop.signal });
  if (!r.ok) { let e = null; try { e = JSON.parse(await r.text()).error; } catch { /* below */ } throw new Refusal(r.status, e?.message || `the server answers ${r.status}`); }
  const from = r.body.pipeThrough(new TextDecoderStream()).getReader(), rows = [];
  let rest = "", columns = null, size = 0, cut = false;
  const line = (l) => {
    if (!columns) { columns = exact(l.replace(/,$/, "}")).columns; return; }
    const tail = l.indexOf(`],"error":`);
    if (/^(?:"rows":\[)?\](?:,"error"|\})/.test(l) || (tail >= 0 && l.endsWith("}"))) {
      const m = /\],("error":.*)\}$/.exec(l);
      if (m) throw new Refusal(200, JSON.parse(`{${m[1]}}`).error.message);
    }
    const body = l.replace(/^"rows":\[/, "").replace(/,$/, "").replace(/\]\}$/, "");
    if (body.startsWith("[")) rows.push(exact(body));
  };
  for (;;) {
    const { done, value } = await from.read();
    if (done) break;
    size += value.length;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const l of lines) if (l) line(l);
    if (rows.length >= maxShown || size > maxText) { cut = true; stop.abort(); break; }
  }
  if (!cut && rest) line(rest);
  return { columns: columns || [], rows: rows.slice(0, maxShown), cut };
}

export function Sql({ name, session }) {
  const all = useLoad(everything, []), instances = (all.data?.instances || []).map((i) => i.name), instance = name || remembered.get("sqlInstance", "") && instances.find((i) => i === remembered.get("sqlInstance", "")) || instances[0] || "";
  const tables = (all.data?.tables || []).filter((t) => t.startsWith(instance + "/")).map(last);
  const [text, setText] = useState(remembered.get("sql", "")), [out, setOut] = useState(null), [error, setError] = useState(null), [busy, setBusy] = useState(false);
  const example = `SELECT * FROM ${"`" + (tables[0] || "my_table") + "`"} LIMIT 20`;
  const run = async (e) => {
    e?.preventDefault();
    if (busy) return;
    setBusy(true); setError(null);
    const begun = performance.now();
    remembered.set("sql", text);
    try { const r = await runQuery(instance, text || example); setOut({ ...r, took: performance.now() - begun }); } catch (err) { setError(err); setOut(null); } finally { setBusy(false); }
  };
  const show = (v) => v === null ? html`<span class="hint">NULL</span>` : typeof v === "object" ? html`<code>${visible(typeof v.base64 === "string" && Object.keys(v).length === 1 ? escapeKey(fromBase64(v.base64)) : JSON.stringify(v)).slice(0, 2000)}</code>` : html`<bdi>${visible(v).slice(0, 2000)}</bdi>`;
  return html`<${Head} title="SQL" lead="GoogleSQL over the tables and views of an instance." />
  <${Failure} error=${all.error} />
  ${all.data && instances.length === 0 ? html`<${FirstSteps} session=${session} />` : html`<${Card}><form class="grid" onSubmit=${run}><${Field} label="Instance" options=${[...new Set([instance, ...instances])].filter(Boolean).map((i) => [i, visible(i.replace("projects/", "").replace("/instances/", " / "))])} value=${instance} onInput=${(e) => { remembered.set("sqlInstance", e.currentTarget.value); location.hash = to("sql", e.currentTarget.value); }} /><${Field} wide label="Query" lines=${6} value=${text} placeholder=${example} onInput=${(e) => setText(e.currentTarget.value)} onKeyDown=${(e) => (e.ctrlKey || e.metaKey) && e.key === "Enter" && run(e)} hint="Ctrl+Enter runs it." /><div class="wide row"><button class="first" type="submit" aria-busy=${busy ? "true" : "false"}>Run</button><button type="button" onClick=${() => setText(example)}>Example</button>${out && html`<span class="hint" role="status">${count(out.rows.length)} rows in ${seconds(out.took / 1000)}${out.cut ? "; there are more than are shown" : ""}</span>`}</div></form></${Card}>
  <${Failure} error=${error} what="run this query" />
  ${out && html`<${Card} title="Result"><${Grid} caption="Result" limit=${200} rows=${out.rows} empty=${html`<${Empty} title="The query has no rows." />`} columns=${out.columns.map((c, i) => [html`${visible(c.name || `(${i + 1})`)} <span class="hint">${visible(c.type)}</span>`, (r) => show(r[i])])} /></${Card}>`}
  <${Card} title="Tables here">${tables.length ? html`<p class="row">${tables.slice(0, 100).map((t) => html`<code>${visible(t)}</code>`)}${tables.length > 100 && html`<span class="hint">and ${count(tables.length - 100)} more</span>`}</p>` : all.loading ? html`<p class="loading">Loading …</p>` : html`<p class="hint">This instance has no tables.</p>`}<p class="hint">A column family is a map from qualifier to value: <code>SELECT f['q'] FROM t</code>. From a shell: <code>trestle sql</code>.</p></${Card}>`}`;
}
