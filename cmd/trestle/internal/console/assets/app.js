// The frame of the console: who is there, which page is shown.
import { h, html, render, useState, useEffect, useRef, get, ask, visible, remembered, seconds } from "./util.js";
import { Failure, Note, Empty, Card, Head } from "./ui.js";
import { Overview, Instances, Instance, Table } from "./pages.js";
import { Data, Keys, Sql } from "./data.js";
import { Tablets, Charts, Slow, Backups, Access, Settings } from "./operate.js";
import { Login } from "./login.js";

const pages = { "": Overview, instances: Instances, instance: Instance, table: Table, data: Data, keys: Keys, tablets: Tablets, charts: Charts, slow: Slow, backups: Backups, access: Access, settings: Settings, sql: Sql };
const menu = [["", [["", "Overview"], ["instances", "Instances and tables"], ["sql", "SQL"]]], ["Load", [["keys", "Key visualizer"], ["charts", "Charts"], ["slow", "Slow requests"]]], ["Operation", [["tablets", "Tablets and servers"], ["backups", "Backups and operations"], ["access", "Access"], ["settings", "Settings"]]]];
const part = { instance: "instances", table: "instances", data: "instances" };

function where() {
  const [page, name = ""] = location.hash.replace(/^#\/?/, "").split("/");
  try {
    const whole = decodeURIComponent(name);
    // A browser takes such parts of a path away, so that a link would ask for something else.
    return whole.split("/").some((part) => /^(?:\.|%2e){1,2}$/i.test(part)) ? { page: "nowhere", name: "" } : { page, name: whole };
  } catch { return { page: "nowhere", name: "" }; }
}

function applyTheme(t) {
  if (t === "light" || t === "dark") document.documentElement.dataset.theme = t; else delete document.documentElement.dataset.theme;
  window.dispatchEvent(new Event("theme"));
}

function Frame({ session, leave }) {
  const [at, go] = useState(where), [open, setOpen] = useState(false), [theme, setTheme] = useState(remembered.get("theme", "auto")), main = useRef();
  useEffect(() => {
    const f = () => { go(where()); setOpen(false); main.current?.focus({ preventScroll: true }); scrollTo(0, 0); };
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  const Page = pages[at.page], here = part[at.page] ?? at.page;
  useEffect(() => { document.title = `${menu.flatMap((g) => g[1]).find((m) => m[0] === here)?.[1] || "Trestle"} · Trestle`; }, [here]);
  return html`<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); main.current.focus(); }}>Skip to the content</a><div class="shell">
    <header class="side ${open ? "open" : ""}"><div class="top"><a class="brand" href="#/"><img src="/console/assets/icon.svg" alt="" />Trestle</a><button class="menu" type="button" aria-expanded=${open ? "true" : "false"} aria-controls="pages" onClick=${() => setOpen(!open)}>Menu</button></div>
      <nav id="pages" aria-label="Pages">${menu.map(([group, items]) => html`${group && html`<div class="group">${group}</div>`}${items.map(([id, text]) => html`<a href=${"#/" + id} aria-current=${here === id ? "page" : undefined}>${text}</a>`)}`)}</nav>
      <div class="foot"><label>Theme <select value=${theme} onInput=${(e) => { const t = e.currentTarget.value; remembered.set("theme", t); applyTheme(t); setTheme(t); }}><option value="auto">as the system</option><option value="light">light</option><option value="dark">dark</option></select></label>
        ${session.read_only && html`<span>For reading only</span>`}<span>${session.login ? html`<bdi>${visible(session.principal)}</bdi>` : "Without login: this machine only"}</span>${session.login && html`<button type="button" onClick=${leave}>Log out</button>`}</div></header>
    <main id="main" tabindex="-1" ref=${main}>${Page && (at.name || !["instance", "table", "data"].includes(at.page)) ? html`<${Page} key=${at.page + "/" + at.name} name=${at.name} session=${session} />` : html`<${Head} title="There is no such page" /><${Card}><${Empty} title="The address names no page of the console.">Go on with the <a href="#/">overview</a>.</${Empty}></${Card}>`}</main></div>`;
}

function App() {
  const [session, set] = useState(null), [error, setError] = useState(null);
  const load = () => get("/console/session").then((s) => { window.trestleReadOnly = s.read_only; window.trestleLogin = s.login; setError(null); set(s); }, setError);
  useEffect(() => { load(); const out = () => load(); addEventListener("loggedout", out); return () => removeEventListener("loggedout", out); }, []);
  useEffect(() => { if (!error) return; const t = setTimeout(load, 2000); return () => clearTimeout(t); }, [error]);
  if (!session) return html`<main class="login" id="main"><h1>Trestle</h1>${error ? html`<${Failure} error=${error} /><p>This page tries again.</p>` : html`<p class="loading">Loading …</p>`}</main>`;
  if (session.login && !session.principal) return html`<${Login} session=${session} done=${load} />`;
  return html`<${Frame} session=${session} leave=${() => ask("DELETE", "/console/session").finally(load)} />`;
}

applyTheme(remembered.get("theme", "auto"));
render(h(App), document.getElementById("app"));
