// The parts that pages are made of.
import { html, useState, useEffect, useLayoutEffect, useRef, useCallback, post, path, count, visible, Refusal, fromBase64, escapeKey } from "./util.js";

// useLoad returns what load has loaded, why it has not, and what loads it again.
// every, in seconds, loads it again for as long as the page is looked at.
export function useLoad(load, deps, every) {
  const [state, set] = useState({ loading: true });
  const [turn, again] = useState(0), busy = useRef(false);
  useEffect(() => {
    const stop = new AbortController();
    busy.current = true;
    const end = (next) => { if (stop.signal.aborted) return; busy.current = false; set(next); };
    set((s) => ({ ...s, loading: true }));
    Promise.resolve().then(() => load(stop.signal)).then((data) => end({ data }), (error) => end((s) => ({ error, data: s.data })));
    return () => stop.abort();
  }, [...deps, turn]);
  useEffect(() => {
    if (!every) return;
    // A slow answer is waited for: to ask again would take it away.
    const t = setInterval(() => document.visibilityState === "visible" && !busy.current && again((n) => n + 1), every * 1000);
    return () => clearInterval(t);
  }, [every]);
  return { ...state, reload: useCallback(() => again((n) => n + 1), []) };
}

// held returns those of permissions that the caller has on a resource: a project, or what is below an instance.
const held = (resource, permissions) => post(`/${resource.split("/").length === 2 ? "v1" : "v2"}/${path(resource)}:testIamPermissions`, { permissions }).then((r) => new Set(r.permissions || []));

// system is the project of what belongs to no other: servers, and METADATA.
export const system = "projects/trestle-system";

// useMay returns a function that says whether the caller has a permission on a resource:
// null as long as that is not known.
export function useMay(resource, permissions) {
  const may = useMayEach(resource ? [resource] : [], permissions);
  return (p) => may(resource, p);
}

// useMayEach is useMay for several resources. It asks once for each.
export function useMayEach(resources, permissions) {
  const [all, set] = useState(new Map()), asked = useRef(new Set());
  useEffect(() => {
    if (!window.trestleLogin) return; // every caller may do everything
    for (const r of resources) {
      if (!r || asked.current.has(r)) continue;
      asked.current.add(r);
      held(r, permissions).then((s) => set((m) => new Map(m).set(r, s)), () => {});
    }
  }, [resources.join("\n")]);
  return (r, p) => all.has(r) ? all.get(r).has(p) : null;
}

export const Note = ({ kind, children }) => html`<div class="note ${kind || ""}" role=${kind === "bad" ? "alert" : "status"}>${children}</div>`;

// Failure shows why something was not done, in the server's words.
export function Failure({ error, what }) {
  if (!error) return null;
  const denied = error.status === 403;
  return html`<${Note} kind=${denied ? "warn" : "bad"}>${denied ? html`<b>You may not ${what || "see this"}.</b> ` : ""}${visible(error.message)}</${Note}>`;
}

// Loaded shows what was loaded, that it is not there yet, or why not.
export function Loaded({ of, what, children }) {
  return html`<div aria-busy=${of.loading ? "true" : "false"}>
    <${Failure} error=${of.error} what=${what} />
    ${of.data !== undefined ? children(of.data) : of.loading && !of.error ? html`<p class="loading">Loading …</p>` : null}
  </div>`;
}

export const Card = ({ title, children, actions }) => html`<section class="card">
  ${(title || actions) && html`<div class="row" style=${{ justifyContent: "space-between", alignItems: "start" }}><h2>${title}</h2>${actions && html`<div class="row">${actions}</div>`}</div>`}${children}</section>`;

export const Head = ({ title, lead, crumbs, children }) => html`<div class="head"><div>
  ${crumbs && html`<div class="crumbs">${crumbs.map(([name, to], i) => html`${i > 0 && " / "}${to ? html`<a href=${to}>${name}</a>` : name}`)}</div>`}
  <h1><bdi>${title}</bdi></h1>${lead && html`<p class="lead">${lead}</p>`}</div>${children && html`<div class="row">${children}</div>`}</div>`;

export const Empty = ({ title, children }) => html`<div class="empty"><b>${title}</b>${children}</div>`;

// Command is something to type, with a button that copies it.
export function Command({ text }) {
  const [done, set] = useState("");
  const told = (what) => { set(what); setTimeout(() => set(""), 2000); };
  // A browser may refuse it, or, on a page without TLS, not have it.
  const copy = () => navigator.clipboard ? navigator.clipboard.writeText(text).then(() => told("Copied"), () => told("Not allowed")) : told("Not allowed");
  return html`<div class="copy"><pre>${text}</pre><button class="small" type="button" onClick=${copy}>${done || "Copy"}<span class="visually"> the command</span></button></div>`;
}

// Grid is a table of columns [heading, cell, class].
export function Grid({ caption, columns, rows, empty, limit = 200 }) {
  const [shown, more] = useState(limit);
  if (!rows.length) return empty || html`<${Empty} title="There is nothing here." />`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table class="grid"><caption class="visually">${caption}</caption>
    <thead><tr>${columns.map(([name, , kind]) => html`<th scope="col" class=${kind || ""}>${name || html`<span class="visually">Actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, shown).map((r) => html`<tr>${columns.map(([name, cell, kind]) => html`<td class=${kind || ""} data-label=${typeof name === "string" ? name : undefined}>${cell(r)}</td>`)}</tr>`)}</tbody></table></div>
    ${rows.length > shown && html`<p class="row"><span role="status">${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} are shown.</span> <button class="small" type="button" onClick=${() => more(shown + 500)}>Show more</button></p>`}`;
}

// Pager says which rows of a list are shown, and goes to others. offset is that of those
// that are there, which are the earlier ones until others are loaded.
export const Pager = ({ offset, size, total, go }) => total > size && html`<p class="row"><span role="status">${count(offset + 1)} to ${count(Math.min(offset + size, total))} of ${count(total)}</span><button class="small" type="button" disabled=${offset === 0} onClick=${() => go(Math.max(0, offset - size))}>Previous</button><button class="small" type="button" disabled=${offset + size >= total} onClick=${() => go(offset + size)}>Next</button></p>`;

export const Facts = ({ rows }) => html`<dl class="facts">${rows.filter(Boolean).map(([k, v]) => html`<dt>${k}</dt><dd>${v}</dd>`)}</dl>`;
export const Tiles = ({ rows }) => html`<dl class="tiles">${rows.map(([k, v, more]) => html`<div class="tile"><dt>${k}</dt><dd>${v}${more && html`<small>${more}</small>`}</dd></div>`)}</dl>`;
export const Badge = ({ kind, children }) => html`<span class="badge ${kind || ""}">${children}</span>`;

// Key shows a row key, of which a long one is cut.
export function Key({ escaped, base64, max = 120 }) {
  const all = escaped ?? escapeKey(fromBase64(base64));
  if (all.length <= max) return html`<bdi class="mono">${all || "(empty)"}</bdi>`;
  return html`<details><summary><bdi class="mono">${all.slice(0, max)}…</bdi> <span class="hint">${all.length.toLocaleString("en")} characters</span></summary><bdi class="mono">${all}</bdi></details>`;
}

// fewTables is how many tables are all offered at once: a browser takes long for a list of thousands.
const fewTables = 500, offered = 50;

// TableField chooses a table: of many, those whose names have what is typed are offered. none, if it is given, says
// what it is to choose no table.
export function TableField({ tables, value, none, choose }) {
  const name = (t) => t ? visible(t.replace(/^projects\//, "").replace(/\/instances\/|\/tables\//g, " / ")) : none || "";
  const all = [...(none === undefined ? [] : [""]), ...new Set([value, ...tables])].filter((t, i) => t || (none !== undefined && i === 0));
  const [text, type] = useState(null);
  if (all.length <= fewTables) return html`<${Field} label="Table" options=${all.map((t) => [t, name(t)])} value=${value} onInput=${(e) => choose(e.currentTarget.value)} />`;
  const find = (text ?? "").toLowerCase(), some = all.filter((t) => name(t).toLowerCase().includes(find)).slice(0, offered);
  return html`<${Field} label="Table" type="search" list="tables" value=${text ?? name(value)} onFocus=${() => type("")} onBlur=${() => type(null)} onInput=${(e) => { type(e.currentTarget.value); const t = all.find((t) => name(t) === e.currentTarget.value); if (t !== undefined) choose(t); }} hint=${`Type a part of its name: there are ${count(all.length)}.`} /><datalist id="tables">${some.map((t) => html`<option value=${name(t)} />`)}</datalist>`;
}

// Field is a labelled control of a form.
export function Field({ label, hint, wide, ...input }) {
  const control = input.options ? html`<select ...${{ ...input, options: undefined }}>${input.options.map((o) => Array.isArray(o) ? html`<option value=${o[0]}>${o[1]}</option>` : html`<option value=${o}>${o}</option>`)}</select>`
    : input.lines ? html`<textarea rows=${input.lines} spellcheck="false" ...${{ ...input, lines: undefined }}></textarea>`
    : html`<input autocomplete="off" spellcheck="false" ...${input} />`;
  return html`<label class="field ${wide ? "wide" : ""}"><span>${label}</span>${control}${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

// useForm returns the values of a form and what makes a control keep one of them.
export function useForm(initial) {
  const [values, set] = useState(initial);
  const bind = (name) => ({ name, value: values[name], onInput: (e) => { const v = e.currentTarget.value; set((s) => ({ ...s, [name]: v })); } });
  return [values, bind, set];
}

// Button does something that takes a moment, and says why if it was not done. What its
// caller may not do it does not offer, and names the permission.
export function Button({ children, run, may, permission, first, danger, small, readOnly }) {
  const [busy, setBusy] = useState(false);
  const off = window.trestleReadOnly && !readOnly ? "This console is for reading only (--console read)." : may === false ? `You need the permission ${permission}.` : "";
  const click = async () => {
    if (off || busy) return;
    setBusy(true);
    try { await run(); } finally { setBusy(false); }
  };
  return html`<button type="button" class="${first ? "first" : ""} ${danger ? "danger" : ""} ${small ? "small" : ""}" aria-disabled=${off ? "true" : "false"} aria-busy=${busy ? "true" : "false"} title=${off} onClick=${click}>${children}${off && html`<span class="visually"> (${off})</span>`}</button>`;
}

// Dialog asks for values and does something with them. With name it asks for that to be
// typed first.
export function Dialog({ title, fields = [], name, run, done, close, verb = "Save", children }) {
  const ref = useRef(), [error, setError] = useState(null), [busy, setBusy] = useState(false), [typed, type] = useState("");
  const [values, bind] = useForm(Object.fromEntries(fields.map((f) => [f.name, f.value ?? ""])));
  useLayoutEffect(() => {
    const before = document.activeElement, dialog = ref.current;
    dialog.showModal();
    // What is behind a dialog takes no focus for as long as it is open.
    return () => { dialog.close(); if (before?.isConnected) before.focus(); };
  }, []);
  const submit = async (e) => {
    e.preventDefault();
    if (busy) return;
    if (name && typed !== name) { setError(new Refusal(0, `Type ${name} to confirm.`)); return; }
    setBusy(true);
    setError(null);
    try { const out = await run(values); close(); done && done(out); } catch (err) { setError(err); setBusy(false); }
  };
  return html`<dialog ref=${ref} onClose=${() => ref.current && close()} aria-labelledby="dialog-title"><form onSubmit=${submit}>
    <h2 id="dialog-title">${title}</h2>${children}
    ${fields.map((f) => html`<${Field} ...${{ ...f, value: undefined }} ...${bind(f.name)} />`)}
    ${name && html`<${Field} label=${html`Type <b class="mono">${name}</b> to confirm`} value=${typed} onInput=${(e) => type(e.currentTarget.value)} />`}
    <${Failure} error=${error} what="do this" />
    <div class="row end"><button type="button" onClick=${close}>Cancel</button><button type="submit" class=${name ? "danger" : "first"} aria-busy=${busy ? "true" : "false"}>${verb}</button></div>
  </form></dialog>`;
}

// useDialog returns a place for a dialog and a function that opens one there.
export function useDialog() {
  const [props, set] = useState(null);
  return [props && html`<${Dialog} ...${props} close=${() => set(null)} />`, (p) => set(p)];
}

// useTold returns a place for what was done or refused, and a function that does
// something and tells there.
export function useTold() {
  const [told, set] = useState(null);
  const tell = useCallback(async (text, run) => {
    try { await run(); set({ text }); } catch (error) { set({ error }); }
  }, []);
  return [told && (told.error ? html`<${Failure} error=${told.error} what="do this" />` : html`<${Note} kind="good">${told.text}</${Note}>`), tell];
}
