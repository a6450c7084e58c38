// Overview, instances and tables.
import { html, useState, useMemo, get, post, ask, path, last, instanceOf, projectOf, bytes, count, rate, toldBy, seconds, when, duration, gcText, gcRule, visible, remembered, escapeKey, fromBase64 } from "./util.js";
import { useLoad, useMay, Note, Failure, Loaded, Card, Head, Empty, Command, Grid, Facts, Tiles, Badge, Key, Field, useForm, Button, useDialog, useTold } from "./ui.js";

export const to = (page, name) => `#/${page}${name ? "/" + encodeURIComponent(name) : ""}`;

// everything returns projects, and instances with their tables, as far as the caller sees them. Which projects
// there are no API tells, so they are those of the tables that are seen, and those that were looked at here.
// It has names of tables, or what query asks for: the server looks at each tablet for sums. byInstance are
// those of instances, if query has some.
export async function everything(signal, query = "?view=names") {
  const seen = await get(`/admin/tables${query}`, signal).catch((error) => { if (error.status !== 403 && error.status !== 409) throw error; return { error, tables: [] }; });
  const sums = seen.tables.filter((t) => t.table.startsWith("projects/")), names = sums.map((t) => t.table), byInstance = seen.instances || [];
  const projects = [...new Set([...names.map(projectOf), ...byInstance.map((i) => projectOf(i.instance)), ...remembered.get("projects", [])])].sort();
  const lists = await Promise.all(projects.map((p) => get(`/v2/projects/${encodeURIComponent(p)}/instances`, signal).then((r) => r.instances || [], () => [])));
  const instances = new Map(lists.flat().map((i) => [i.name, i]));
  // A gateway over HBase has no tablets, but tables.
  if (seen.error?.status === 409) names.push(...(await Promise.all([...instances.keys()].map((i) => get(`/v2/${path(i)}/tables`, signal).then((r) => (r.tables || []).map((t) => t.name), () => [])))).flat());
  for (const n of [...byInstance.map((i) => i.instance), ...names.map(instanceOf)]) if (!instances.has(n)) instances.set(n, { name: n, displayName: last(n) });
  return { sums, byInstance, tables: names.sort(), projects, instances: [...instances.values()].sort((a, b) => a.name < b.name ? -1 : 1) };
}

// cbtAt begins a command of cbt that asks this server, and not Google. Without login the
// environment says where.
export const cbtAt = (session, project, instance) => `cbt${session.login ? ` -admin-endpoint ${session.api} -data-endpoint ${session.api} -creds "$GOOGLE_APPLICATION_CREDENTIALS"` : ""} -project ${project} -instance ${instance}`;

export function FirstSteps({ session }) {
  const project = "my-project", bt = cbtAt(session, project, "my-instance");
  return html`<${Card} title="First steps"><p>There is no table yet. Create an instance and a table on the page <a href="#/instances">Instances and tables</a>, or from a shell:</p>
    <${Command} text=${`${session.login ? "export GOOGLE_APPLICATION_CREDENTIALS=root-key.json SSL_CERT_FILE=ca.pem" : `export BIGTABLE_EMULATOR_HOST=${session.api}`}
${bt} createinstance my-instance "My instance" my-cluster local-a 1 SSD
${bt} createtable greetings families=f
${bt} set greetings r1 f:q=hello`} />${session.login && html`<p class="hint">Both files are in the server's data directory, if it made them; without TLS, leave <code>SSL_CERT_FILE</code> out.</p>`}
    <p class="hint">Any client of Cloud Bigtable works in the same way: Go, Java, Python, Node.js, C++.</p></${Card}>`;
}

const busiest = 20; // tables on the overview; METADATA may be among one more

export function Overview({ session }) {
  const of = useLoad(async (signal) => {
    const [all, ready, servers, damage] = await Promise.all([everything(signal, `?order=load&limit=${busiest + 1}`).catch((error) => { if (error.status !== 503) throw error; return { error, sums: [], byInstance: [], tables: [], projects: [], instances: [] }; }), fetch("/readyz", { signal: AbortSignal.any([signal, AbortSignal.timeout(5000)]) }).then((r) => r.text(), (e) => { if (e.name !== "TimeoutError") throw e; return "[-] server: it has not answered within 5 seconds"; }), get("/admin/servers", signal).catch((error) => ({ error })), get("/admin/jobs", signal).catch(() => ({ jobs: [] }))]);
    return { ...all, ready: ready.trim().split("\n"), servers, jobs: damage.jobs };
  }, [], 10);
  return html`<${Head} title="Overview" lead=${`Cluster ${visible(session.cluster)}, version ${session.version}`} />
  <${Loaded} of=${of}>${(d) => {
    const add = (k) => d.byInstance.reduce((n, i) => n + i[k], 0), tables = Math.max(add("tables"), d.tables.length);
    const well = d.ready.at(-1) === "ready", lines = d.ready.slice(0, -1), bad = lines.filter((l) => !l.startsWith("[+]"));
    const dead = (d.servers.servers || []).filter((s) => s.error);
    return html`
    ${well ? null : html`<${Note} kind="bad"><b>The server is not ready.</b> ${bad.map(visible).join("; ")}</${Note}>`}
    ${well && bad.length > 0 && html`<${Note} kind="warn">${bad.map((l) => html`<div>${visible(l)}</div>`)}</${Note}>`}
    ${dead.map((s) => html`<${Note} kind="bad"><b>Tablet server ${visible(s.name)} does not answer:</b> ${visible(s.error)} <a href="#/tablets">Tablets and servers</a></${Note}>`)}
    <${Failure} error=${d.error} />
    ${add("unserved") > 0 && html`<${Note} kind="warn">${count(add("unserved"))} of ${count(add("tablets"))} tablets are not served at the moment: their rows cannot be read until another server has taken them over. <a href="#/tablets">Tablets and servers</a></${Note}>`}
    <${Tiles} rows=${[["State", well ? "Ready" : "Not ready", `since ${when(session.started)}`], ...(d.error ? [] : [["Instances", count(d.instances.length)], ["Tables", count(tables)], ["Tablets", count(add("tablets"))], ["Stored", bytes(add("bytes")), "SSTables and memtables"], ["Rows read", rate(add("rows_read_per_second"))], ["Rows written", rate(add("rows_written_per_second"))]])]} />
    ${d.error ? null : tables === 0 ? html`<${FirstSteps} session=${session} />` : html`<${Card} title="Tables by load"><${Grid} caption="Tables by load" rows=${d.sums.slice(0, busiest)} columns=${[["Table", (s) => html`<a href=${to("table", s.table)}><bdi>${visible(last(s.table))}</bdi></a><div class="hint">${visible(projectOf(s.table))} / ${visible(last(instanceOf(s.table)))}</div>`, "name"], ["Rows read", (s) => rate(s.rows_read_per_second), "num"], ["Rows written", (s) => rate(s.rows_written_per_second), "num"], ["Stored", (s) => bytes(s.bytes), "num"], ["Tablets", (s) => count(s.tablets), "num"], ["", (s) => html`<a href=${to("data", s.table)}>Data</a>`, "act"]]} />${tables > busiest && html`<p class="hint">These are ${busiest} of ${count(tables)}: the page <a href="#/instances">Instances and tables</a> has all.</p>`}</${Card}>`}
    <div class="cards"><${Card} title="Health"><${Grid} caption="Health checks" rows=${lines} empty=${html`<p class="hint">No check tells more.</p>`} columns=${[["Check", (l) => visible(l.replace(/^\[.\] /, "").split(": ")[0])], ["State", (l) => l.startsWith("[+]") ? html`<${Badge} kind="good">ok</${Badge}>` : html`<${Badge} kind="bad">fails</${Badge}><div class="hint">${visible(l.replace(/^\[.\] [^:]*: ?/, ""))}</div>`]]} /></${Card}>
    <${Card} title="Tablet servers">${d.servers.error ? html`<${Failure} error=${d.servers.error} />` : html`<${Grid} caption="Tablet servers" rows=${d.servers.servers} columns=${[["Server", (s) => visible(s.name)], ["State", (s) => s.error ? html`<${Badge} kind="bad">no answer</${Badge}>` : s.draining ? html`<${Badge} kind="warn">draining</${Badge}>` : html`<${Badge} kind="good">serving</${Badge}>`], ["Tablets", (s) => toldBy(s, count(s.tablets)), "num"], ["Stored", (s) => toldBy(s, bytes(s.bytes)), "num"]]} />`}</${Card}></div>`;
  }}</${Loaded}>`;
}

export function Instances() {
  const of = useLoad((s) => everything(s, ""), []), [dialog, open] = useDialog();
  const remember = (p) => { remembered.set("projects", [...new Set([...remembered.get("projects", []), p])]); of.reload(); };
  const create = () => open({ title: "Create an instance", verb: "Create", fields: [{ name: "project", label: "Project", value: of.data?.projects[0] || "my-project", required: true }, { name: "id", label: "Instance", hint: "6 to 33 characters: a letter, then letters, digits and hyphens", required: true }, { name: "display", label: "Display name", required: true }, { name: "cluster", label: "Cluster", value: "my-cluster", required: true }, { name: "zone", label: "Zone", value: "local-a", required: true }],
    run: async (v) => { await post(`/v2/projects/${encodeURIComponent(v.project)}/instances`, { instanceId: v.id, instance: { displayName: v.display }, clusters: { [v.cluster]: { location: `projects/${v.project}/locations/${v.zone}`, serveNodes: 1, defaultStorageType: "SSD" } } }); remember(v.project); } });
  const look = () => open({ title: "Look at a project", verb: "Look", fields: [{ name: "project", label: "Project", required: true, hint: "Projects without tables are not listed by themselves." }], run: async (v) => { await get(`/v2/projects/${encodeURIComponent(v.project)}/instances`); remember(v.project); } });
  return html`<${Head} title="Instances and tables" lead="An instance is a named set of tables. A cluster of it is where a copy is served."><button onClick=${look}>Look at a project</button><${Button} first run=${create}>Create an instance</${Button}></${Head}>${dialog}
  <${Loaded} of=${of}>${(d) => { const by = Map.groupBy(d.sums, (s) => instanceOf(s.table)); return d.instances.length === 0 ? html`<${Card}><${Empty} title="There is no instance yet.">Create one here, or with <code>cbt createinstance my-instance "My instance" my-cluster local-a 1 SSD</code>. Not logged in as its owner? Then look at its project by name.</${Empty}></${Card}>` :
    d.instances.map((i) => { const mine = by.get(i.name) ?? []; return html`<${Card} title=${html`<a href=${to("instance", i.name)}><bdi>${visible(i.displayName || last(i.name))}</bdi></a>`} actions=${html`<span class="hint">${visible(i.name)}</span>`}>
      <${Grid} caption=${`Tables of ${i.name}`} limit=${50} rows=${mine} empty=${html`<${Empty} title="No tables yet.">Open the instance to create one.</${Empty}>`} columns=${[["Table", (s) => html`<a href=${to("table", s.table)}><bdi>${visible(last(s.table))}</bdi></a>`, "name"], ["Stored", (s) => bytes(s.bytes), "num"], ["Tablets", (s) => count(s.tablets), "num"], ["Rows read", (s) => rate(s.rows_read_per_second), "num"], ["Rows written", (s) => rate(s.rows_written_per_second), "num"], ["", (s) => html`<a href=${to("data", s.table)}>Data</a>`, "act"]]} /></${Card}>`; }); }}</${Loaded}>`;
}

const list = (name, what, signal) => get(`/v2/${path(name)}/${what}`, signal).then((r) => r[what] || [], (error) => ({ error }));
const backupsShown = 50; // on a table's page
const Listing = ({ of, what, children }) => of.error ? html`<${Failure} error=${of.error} what=${`see ${what}`} />` : children(of);

// Tables lists the tables of an instance, some at a time: there may be many.
function Tables({ name }) {
  const [tokens, go] = useState([""]), at = tokens.at(-1); // of the pages so far
  const of = useLoad((s) => get(`/v2/${path(name)}/tables?pageSize=50&pageToken=${encodeURIComponent(at)}`, s), [name, at]);
  return html`<${Card} title="Tables"><${Loaded} of=${of} what="see tables">${(d) => html`<${Grid} caption="Tables" rows=${d.tables || []} empty=${html`<${Empty} title="There is no table yet.">Create one here, or with <code>cbt -project ${projectOf(name)} -instance ${last(name)} createtable greetings families=f</code>.</${Empty}>`} columns=${[["Table", (t) => html`<a href=${to("table", t.name)}><bdi>${visible(last(t.name))}</bdi></a>`, "name"], ["", (t) => html`<a href=${to("data", t.name)}>Data</a>`, "act"]]} />
    ${(tokens.length > 1 || d.nextPageToken) && html`<p class="row"><span role="status">Page ${tokens.length}</span><button class="small" type="button" disabled=${tokens.length === 1} onClick=${() => go(tokens.slice(0, -1))}>Previous</button><button class="small" type="button" disabled=${!d.nextPageToken} onClick=${() => go([...tokens, d.nextPageToken])}>Next</button></p>`}`}</${Loaded}></${Card}>`;
}

export function Instance({ name, session }) {
  const of = useLoad(async (s) => {
    const [instance, clusters, profiles, logical, materialized] = await Promise.all([get(`/v2/${path(name)}`, s), ...["clusters", "appProfiles", "logicalViews", "materializedViews"].map((w) => list(name, w, s))]);
    return { instance, clusters, profiles, logical, materialized };
  }, [name]);
  const p = (k) => "bigtable." + k, all = ["tables.create", "appProfiles.create", "appProfiles.delete", "instances.delete", "logicalViews.create", "logicalViews.delete", "materializedViews.create", "materializedViews.delete"].map(p);
  const may = useMay(name, all), [dialog, open] = useDialog();
  const B = (k) => ({ may: may(p(k)), permission: p(k) });
  const table = () => open({ title: "Create a table", verb: "Create", fields: [{ name: "id", label: "Table", required: true }, { name: "families", label: "Column families", value: "f", hint: "Names separated by commas", required: true }, { name: "splits", label: "Split keys", lines: 3, hint: "One a line; may be empty" }],
    run: async (v) => post(`/v2/${path(name)}/tables`, { tableId: v.id, table: { columnFamilies: Object.fromEntries(v.families.split(",").map((f) => [f.trim(), {}])) }, initialSplits: v.splits.split("\n").filter(Boolean).map((k) => ({ key: btoa(String.fromCharCode(...new TextEncoder().encode(k))) })) }), done: (t) => { location.hash = to("table", t.name); } });
  const profile = () => open({ title: "Create an app profile", verb: "Create", fields: [{ name: "id", label: "App profile", required: true }, { name: "description", label: "Description" }, { name: "routing", label: "Routing", options: [["multi", "to any cluster"], ["single", "to one cluster"]], value: "multi" }, { name: "cluster", label: "Cluster, if to one" }, { name: "tx", label: "Single-row transactions, if to one", options: [["", "refused"], ["1", "allowed"]] }],
    run: async (v) => post(`/v2/${path(name)}/appProfiles?appProfileId=${encodeURIComponent(v.id)}`, { description: v.description, ...(v.routing === "single" ? { singleClusterRouting: { clusterId: v.cluster, allowTransactionalWrites: !!v.tx } } : { multiClusterRoutingUseAny: {} }) }), done: of.reload });
  const view = (kind, id, title) => open({ title, verb: "Create", fields: [{ name: "id", label: "View", required: true }, { name: "query", label: "Query", lines: 5, required: true, value: "SELECT _key FROM my_table" }],
    run: async (v) => post(`/v2/${path(name)}/${kind}?${id}=${encodeURIComponent(v.id)}`, { query: v.query }), done: of.reload });
  const drop = (r, what) => open({ title: `Delete ${what} ${last(r.name)}?`, name: last(r.name), verb: "Delete", run: () => ask("DELETE", `/v2/${path(r.name)}${what === "app profile" ? "?ignoreWarnings=true" : ""}`), done: of.reload });
  const views = (title, rows, kind, id, need, hint) => html`<${Card} title=${title} actions=${html`<${Button} small ...${B(need + ".create")} run=${() => view(kind, id, `Create a ${title.toLowerCase().replace(/s$/, "")}`)}>Create</${Button}>`}><${Listing} of=${rows} what=${title.toLowerCase()}>${(r) => html`<${Grid} caption=${title} rows=${r} empty=${html`<${Empty} title="None yet.">${hint}</${Empty}>`} columns=${[["View", (v) => html`<bdi>${visible(last(v.name))}</bdi>`], ["Query", (v) => html`<code>${visible(v.query)}</code>`, "name"], ["", (v) => html`<${Button} small danger ...${B(need + ".delete")} run=${() => drop(v, "view")}>Delete</${Button}>`, "act"]]} />`}</${Listing}></${Card}>`;
  return html`<${Head} title=${last(name)} crumbs=${[["Instances", "#/instances"], [visible(projectOf(name))]]} lead="Clusters, app profiles, tables and views of an instance."><a class="button" href=${to("sql", name)}>SQL</a><${Button} danger ...${B("instances.delete")} run=${() => open({ title: `Delete instance ${last(name)}?`, name: last(name), verb: "Delete with all its tables", run: () => ask("DELETE", `/v2/${path(name)}`), done: () => { location.hash = "#/instances"; } })}>Delete</${Button}><${Button} first ...${B("tables.create")} run=${table}>Create a table</${Button}></${Head}>${dialog}
  <${Loaded} of=${of}>${(d) => html`
    <${Tables} name=${name} />
    <div class="cards"><${Card} title="Clusters"><${Listing} of=${d.clusters} what="clusters">${(r) => html`<${Grid} caption="Clusters" rows=${r} columns=${[["Cluster", (c) => visible(last(c.name))], ["Zone", (c) => visible(last(c.location || ""))], ["State", (c) => html`<${Badge} kind=${c.state === "READY" ? "good" : "warn"}>${c.state || "–"}</${Badge}>`]]} />`}</${Listing}></${Card}>
    <${Card} title="App profiles" actions=${html`<${Button} small ...${B("appProfiles.create")} run=${profile}>Create</${Button}>`}><${Listing} of=${d.profiles} what="app profiles">${(r) => html`<${Grid} caption="App profiles" rows=${r} empty=${html`<${Empty} title="None yet.">Requests without one go by <code>default</code>.</${Empty}>`} columns=${[["App profile", (a) => html`${visible(last(a.name))}<div class="hint">${visible(a.description || "")}</div>`], ["Routing", (a) => a.singleClusterRouting ? `to ${visible(a.singleClusterRouting.clusterId)}${a.singleClusterRouting.allowTransactionalWrites ? ", with transactions" : ""}` : "to any cluster"], ["", (a) => html`<${Button} small danger ...${B("appProfiles.delete")} run=${() => drop(a, "app profile")}>Delete</${Button}>`, "act"]]} />`}</${Listing}></${Card}></div>
    ${views("Logical views", d.logical, "logicalViews", "logicalViewId", "logicalViews", "A logical view is a query by a name, which gives its readers what they may not read of the tables.")}
    ${views("Materialized views", d.materialized, "materializedViews", "materializedViewId", "materializedViews", "A materialized view keeps the answer of a query up to date as a table of its own.")}`}</${Loaded}>`;
}

export function Table({ name }) {
  const of = useLoad(async (s) => {
    const opt = (p) => get(p, s).catch((error) => ({ error }));
    const [table, groups, tablets, views, bundles, backups, policy] = await Promise.all([get(`/v2/${path(name)}?view=FULL`, s), opt(`/admin/table?table=${encodeURIComponent(name)}`), opt(`/admin/tablets?table=${encodeURIComponent(name)}&limit=100`), opt(`/v2/${path(name)}/authorizedViews`), opt(`/v2/${path(name)}/schemaBundles`), opt(`/v2/${path(instanceOf(name))}/clusters/-/backups?pageSize=${backupsShown}&orderBy=start_time%20desc&filter=${encodeURIComponent(`source_table="${name}"`)}`), ask("POST", `/v2/${path(name)}:getIamPolicy`, {}, s).catch((error) => ({ error }))]);
    return { table, groups, tablets, sum: tablets.sum, views, bundles, backups, policy };
  }, [name]);
  const need = (k) => "bigtable." + k, may = useMay(name, ["tables.update", "tables.delete", "tables.setIamPolicy", "authorizedViews.create", "authorizedViews.delete"].map(need));
  const [dialog, open] = useDialog();
  const B = (k) => ({ may: may(need(k)), permission: need(k) });
  const families = (modifications) => post(`/v2/${path(name)}:modifyColumnFamilies`, { modifications });
  const rule = [{ name: "versions", label: "Keep at most this many versions", type: "number", min: 1 }, { name: "days", label: "Keep at most this many days", type: "number", min: 0, step: "any", hint: "Empty keeps everything. Cells that either rule no longer keeps are collected." }];
  const add = () => open({ title: "Add a column family", verb: "Add", fields: [{ name: "id", label: "Family", required: true }, ...rule], run: (v) => families([{ id: v.id, create: { gcRule: gcRule(v.versions, v.days) } }]), done: of.reload });
  const gc = (f) => open({ title: `Garbage collection of ${f}`, fields: rule, run: (v) => families([{ id: f, update: { gcRule: gcRule(v.versions, v.days) } }]), done: of.reload });
  return html`<${Head} title=${visible(last(name))} crumbs=${[["Instances", "#/instances"], [visible(last(instanceOf(name))), to("instance", instanceOf(name))]]} lead="Schema, storage and policy of a table."><a class="button first" href=${to("data", name)}>Look at data</a><a class="button" href=${to("keys", name)}>Key visualizer</a><a class="button" href=${to("tablets", name)}>Tablets</a></${Head}>${dialog}
  <${Loaded} of=${of}>${(d) => {
    const fs = Object.entries(d.table.columnFamilies || {}).sort(([a], [b]) => a < b ? -1 : 1), tablets = d.tablets.tablets || [], protectedTable = !!d.table.deletionProtection;
    return html`
    <${Tiles} rows=${[["Column families", count(fs.length)], ...(d.sum ? [["Tablets", count(d.sum.tablets)], ["Stored", bytes(d.sum.bytes)], ["Rows read", rate(d.sum.rows_read_per_second)], ["Rows written", rate(d.sum.rows_written_per_second)]] : [])]} />
    <${Card} title="Column families and garbage collection" actions=${html`<${Button} small ...${B("tables.update")} run=${add}>Add a family</${Button}>`}><${Grid} caption="Column families" rows=${fs} empty=${html`<${Empty} title="There is no column family yet.">A cell needs one: add it here.</${Empty}>`} columns=${[["Family", ([f]) => html`<bdi class="mono">${visible(f)}</bdi>`, "name"], ["Collects", ([, f]) => gcText(f.gcRule)], ["Type", ([, f]) => f.valueType ? Object.keys(f.valueType)[0].replace(/Type$/, "") : "bytes"], ["", ([f]) => html`<div class="row end"><${Button} small ...${B("tables.update")} run=${() => gc(f)}>Garbage collection</${Button}><${Button} small danger ...${B("tables.update")} run=${() => open({ title: `Delete family ${f} and its cells?`, name: f, verb: "Delete", run: () => families([{ id: f, drop: true }]), done: of.reload })}>Delete</${Button}></div>`, "act"]]} /></${Card}>
    <div class="cards"><${Card} title="Facts"><${Facts} rows=${[["Name", html`<bdi class="mono">${visible(name)}</bdi>`], ["Timestamps", d.table.granularity === "MILLIS" ? "milliseconds" : visible(d.table.granularity || "–")], ["Change stream", d.table.changeStreamConfig ? `kept for ${duration(d.table.changeStreamConfig.retentionPeriod)}` : "off"], ["Automated backups", d.table.automatedBackupPolicy ? `every ${duration(d.table.automatedBackupPolicy.frequency)}, kept for ${duration(d.table.automatedBackupPolicy.retentionPeriod)}` : "off"], ["Deletion protection", html`${protectedTable ? "on" : "off"} <${Button} small ...${B("tables.update")} run=${async () => { await ask("PATCH", `/v2/${path(name)}?updateMask=deletionProtection`, { deletionProtection: !protectedTable }).catch((e) => alertDialog(open, e)); of.reload(); }}>Turn ${protectedTable ? "off" : "on"}</${Button}>`]]} /></${Card}>
    <${Card} title="Locality groups">${d.groups.error ? html`<${Failure} error=${d.groups.error} />` : html`<${Grid} caption="Locality groups" rows=${d.groups.groups} columns=${[["Group", (g) => visible(g.name || "(older files)")], ["Families", (g) => visible(g.families.join(", ") || "–")], ["In SSTables", (g) => bytes(g.bytes), "num"], ["Compression", (g) => g.compression || "default"], ["In memory", (g) => g.in_memory ? bytes(g.in_memory_bytes) : "no"]]} /><p class="hint">Change them with <code>trestle table create-group</code>.</p>`}</${Card}></div>
    <${Card} title="Splits">${d.tablets.error ? html`<${Failure} error=${d.tablets.error} />` : html`<${Grid} caption="Splits" limit=${20} rows=${tablets} columns=${[["From row", (t) => t.start ? html`<${Key} escaped=${t.start} />` : html`<span class="hint">the first</span>`, "name"], ["Up to row", (t) => t.end ? html`<${Key} escaped=${t.end} />` : html`<span class="hint">the last</span>`, "name"], ["Stored", (t) => bytes(t.bytes), "num"], ["Server", (t) => t.server ? visible(t.server) : html`<${Badge} kind="warn">not served</${Badge}>`]]} />${d.tablets.total > tablets.length && html`<p class="hint">These are the first ${count(tablets.length)} of ${count(d.tablets.total)}: the page <a href=${to("tablets", name)}>Tablets</a> has all.</p>`}`}</${Card}>
    <div class="cards"><${Card} title="Authorized views" actions=${html`<${Button} small ...${B("authorizedViews.create")} run=${() => open({ title: "Create an authorized view", verb: "Create", fields: [{ name: "id", label: "View", required: true }, { name: "prefix", label: "Rows with this prefix", hint: "Empty: all rows" }, { name: "family", label: "Family", required: true, value: fs[0]?.[0] || "" }, { name: "q", label: "Columns with this prefix", hint: "Empty: all columns" }], run: (v) => post(`/v2/${path(name)}/authorizedViews?authorizedViewId=${encodeURIComponent(v.id)}`, { subsetView: { rowPrefixes: [btoa(unescape(encodeURIComponent(v.prefix)))], familySubsets: { [v.family]: { qualifierPrefixes: [btoa(unescape(encodeURIComponent(v.q)))] } } } }), done: of.reload })}>Create</${Button}>`}>${d.views.error ? html`<${Failure} error=${d.views.error} />` : html`<${Grid} caption="Authorized views" rows=${d.views.authorizedViews || []} empty=${html`<${Empty} title="None yet.">An authorized view shows others a part of the rows and columns.</${Empty}>`} columns=${[["View", (v) => visible(last(v.name))], ["", (v) => html`<${Button} small danger ...${B("authorizedViews.delete")} run=${() => open({ title: "Delete the view?", name: last(v.name), verb: "Delete", run: () => ask("DELETE", `/v2/${path(v.name)}`), done: of.reload })}>Delete</${Button}>`, "act"]]} />`}</${Card}>
    <${Card} title="Schema bundles">${d.bundles.error ? html`<${Failure} error=${d.bundles.error} />` : html`<${Grid} caption="Schema bundles" rows=${d.bundles.schemaBundles || []} empty=${html`<${Empty} title="None yet.">With the descriptors of your messages, values that are protobuf can be read here and queried by field.</${Empty}>`} columns=${[["Bundle", (v) => visible(last(v.name))]]} />`}</${Card}></div>
    <${Card} title="Backups of this table" actions=${html`<a class="button" href="#/backups">All backups</a>`}>${d.backups.error ? html`<${Failure} error=${d.backups.error} />` : html`<${Grid} caption="Backups" rows=${d.backups.backups || []} empty=${html`<${Empty} title="There is no backup of this table.">Make one on the page <a href="#/backups">Backups and operations</a>.</${Empty}>`} columns=${[["Backup", (b) => visible(last(b.name)), "name"], ["State", (b) => b.state], ["Size", (b) => bytes(b.sizeBytes), "num"], ["Expires", (b) => when(b.expireTime)]]} />${d.backups.nextPageToken && html`<p class="hint">These are the ${backupsShown} newest.</p>`}`}</${Card}>
    <${Card} title="Policy">${d.policy.error ? html`<${Failure} error=${d.policy.error} />` : html`<${Policy} resource=${name} version="v2" policy=${d.policy} may=${may(need("tables.setIamPolicy"))} permission=${need("tables.setIamPolicy")} open=${open} done=${of.reload} />`}</${Card}>
    <${Card} title="Delete this table"><p>All its rows are gone then. A backup of it stays.</p><${Button} danger ...${B("tables.delete")} run=${() => open({ title: `Delete table ${last(name)}?`, name: last(name), verb: "Delete with all its rows", run: () => ask("DELETE", `/v2/${path(name)}`), done: () => { location.hash = to("instance", instanceOf(name)); } })}>Delete</${Button}></${Card}>`;
  }}</${Loaded}>`;
}
const alertDialog = (open, error) => open({ title: "It was not done", verb: "Close", run: async () => {}, children: html`<${Failure} error=${error} what="do this" />` });

// Policy shows who has which role on a resource, and edits it as JSON.
export function Policy({ resource, version, policy, may, permission, open, done }) {
  const edit = () => open({ title: "Edit the policy", fields: [{ name: "text", label: "Bindings of roles to members, as JSON", lines: 14, value: JSON.stringify(policy.bindings || [], null, 2), hint: "Members are user:NAME, serviceAccount:ADDRESS, allUsers or allAuthenticatedUsers." }],
    run: (v) => { let bindings; try { bindings = JSON.parse(v.text); } catch (e) { throw new Error("That is no JSON: " + e.message); } return post(`/${version}/${path(resource)}:setIamPolicy`, { policy: { ...policy, bindings, version: 3 } }); }, done });
  return html`<${Grid} caption="Roles" rows=${(policy.bindings || []).flatMap((b) => b.members.map((m) => [b, m]))} empty=${html`<${Empty} title="No role is granted here.">Roles of the instance and the project hold here too.</${Empty}>`} columns=${[["Member", ([, m]) => html`<bdi>${visible(m)}</bdi>`, "name"], ["Role", ([b]) => visible(b.role)], ["Condition", ([b]) => visible(b.condition?.expression || "–")]]} /><p><${Button} small run=${edit} may=${may} permission=${permission}>Edit</${Button}></p>`;
}
