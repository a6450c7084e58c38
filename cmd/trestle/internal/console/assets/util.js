// What pages share: requests, bytes and figures.
export const { h, render, Fragment } = preact;
export const { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } = preactHooks;
export const html = htm.bind(h);

// A Refusal is an answer that says why something was not done.
export class Refusal extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

// reason is the text of an error's body, of REST's form or the admin service's.
function reason(status, body) {
  const e = body && body.error;
  return (e && e.message) || (typeof e === "string" && e) || `the server answers ${status}`;
}

// patience is how many milliseconds a page waits for what it shows. It is more than the
// 3 seconds that a server waits for each of the others.
const patience = 8000;

// ask makes a request and returns what the server answers, as JSON.
export async function ask(method, path, body, signal) {
  let r;
  // What is only looked at is given up: a page has more to show than what one server keeps back.
  const limit = method === "GET" ? [AbortSignal.timeout(patience)] : [];
  try {
    r = await fetch(path, { method, signal: AbortSignal.any([...(signal ? [signal] : []), ...limit]), headers: body === undefined ? {} : { "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    if (e.name === "TimeoutError") throw new Refusal(503, `The server has not answered within ${patience / 1000} seconds. A tablet server that it asks may not answer.`);
    throw new Refusal(0, "The server cannot be reached. It may have ended, or be starting.");
  }
  const text = await r.text();
  let out = null;
  try { out = exact(text); } catch { /* the status says enough */ }
  if (r.status === 401) window.dispatchEvent(new Event("loggedout"));
  if (!r.ok) throw new Refusal(r.status, reason(r.status, out));
  if (out && out.error && (out.rows || out.columns)) throw new Refusal(200, reason(200, out));
  return out;
}
export const get = (path, signal) => ask("GET", path, undefined, signal);
export const post = (path, body) => ask("POST", path, body ?? {});

// exact parses JSON with integers that a number cannot hold as text.
// Where none is, it does without the reviver, which takes many times the memory.
export const exact = (text) => /[:[,]\s*-?\d{16}/.test(text) ? JSON.parse(text, (_, v, c) => typeof v === "number" && c && Number.isInteger(v) && !Number.isSafeInteger(v) ? c.source : v) : JSON.parse(text);

// path writes a resource's name as part of a URL.
export const path = (name) => name.split("/").map(encodeURIComponent).join("/");
export const last = (name) => name.slice(name.lastIndexOf("/") + 1);
export const instanceOf = (name) => name.split("/").slice(0, 4).join("/");
export const projectOf = (name) => name.split("/")[1] ?? "";

// Bytes. Keys are written as the shell's commands do: printable ASCII as it is, the
// backslash doubled, the rest as \xNN.
export const fromBase64 = (s) => Uint8Array.from(atob(s || ""), (c) => c.charCodeAt(0));
export const toBase64 = (b) => { let s = ""; for (const x of b) s += String.fromCharCode(x); return btoa(s); };
export function escapeKey(b) {
  let s = "";
  for (const x of b) s += x === 0x5c ? "\\\\" : x >= 0x20 && x < 0x7f ? String.fromCharCode(x) : "\\x" + x.toString(16).padStart(2, "0");
  return s;
}
export function unescapeKey(s) {
  const out = [], utf8 = new TextEncoder();
  for (let i = 0; i < s.length;) {
    const m = /^\\(?:(\\)|x([0-9a-fA-F]{2}))/.exec(s.slice(i, i + 4));
    if (s[i] === "\\") {
      if (!m) throw new Refusal(0, "In a key, a backslash is followed by a second one or by x and two hexadecimal digits.");
      out.push(m[1] ? 0x5c : parseInt(m[2], 16));
      i += m[0].length;
      continue;
    }
    const c = String.fromCodePoint(s.codePointAt(i));
    out.push(...utf8.encode(c));
    i += c.length;
  }
  return new Uint8Array(out);
}
export const hex = (b) => [...b].map((x) => x.toString(16).padStart(2, "0")).join(" ");
// after is the first key behind all that begin with a prefix; null if there is none.
export function after(prefix) {
  for (let i = prefix.length - 1; i >= 0; i--) if (prefix[i] < 255) { const out = prefix.slice(0, i + 1); out[i]++; return out; }
  return null;
}

// visible shows what would not be seen, or would turn text around, by its number.
export const visible = (s) => String(s).replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (c) => c === "\n" || c === "\t" ? c : `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

// decode writes a value in one of the ways that the data page offers.
export function decode(b, as, message) {
  switch (as) {
    case "hex": return hex(b);
    case "int": {
      if (b.length !== 8) return `${hex(b)} (an integer has 8 bytes)`;
      return new DataView(b.buffer, b.byteOffset, 8).getBigInt64(0).toString();
    }
    case "json": try { return visible(JSON.stringify(exact(new TextDecoder("utf-8", { fatal: true }).decode(b)), null, 2)); } catch { return "not JSON: " + escapeKey(b); }
    case "proto": try { return visible(JSON.stringify(message(b), null, 2)); } catch (e) { return `not such a message (${e.message}): ${hex(b)}`; }
  }
  if (b.some((x) => x < 9 || x > 13 && x < 32)) return escapeKey(b); // not text
  try { return visible(new TextDecoder("utf-8", { fatal: true }).decode(b)); } catch { return escapeKey(b); }
}

// Figures.
const steps = [["EiB", 2 ** 60], ["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
export function bytes(n) {
  n = Number(n || 0);
  for (const [unit, size] of steps) if (Math.abs(n) >= size) return `${(n / size).toFixed(n / size < 10 ? 1 : 0)} ${unit}`;
  return `${Math.round(n)} B`;
}
export function count(n) {
  n = Number(n || 0);
  if (Math.abs(n) >= 10 || Number.isInteger(n)) return Math.round(n).toLocaleString("en");
  return n.toPrecision(2).replace(/\.?0+$/, "");
}
export const rate = (n) => `${count(n)}/s`;
// toldBy is a figure of a tablet server, which only that knows.
export const toldBy = (server, text) => (server.error ? "–" : text);
export function seconds(s) {
  s = Number(s || 0);
  if (s === 0) return "0 s";
  if (s >= 86400) return `${(s / 86400).toFixed(1)} d`;
  if (s >= 3600) return `${(s / 3600).toFixed(1)} h`;
  if (s >= 60) return `${(s / 60).toFixed(1)} min`;
  if (s >= 1) return `${s.toFixed(2)} s`;
  return s >= 0.001 ? `${(s * 1000).toFixed(s >= 0.01 ? 0 : 1)} ms` : `${Math.round(s * 1e6)} µs`;
}
export const amount = (unit) => unit === "B" || unit === "bytes" ? bytes : unit === "B/s" ? (n) => bytes(n) + "/s" : unit === "s" ? seconds : unit === "µs" ? (n) => seconds(n / 1e6) : /\/s$/.test(unit || "") ? rate : count;
export const when = (t) => t ? new Date(t).toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC") : "–";
export const micros = (t) => { const n = Number(t); return n > 0 && n < 8.64e18 && Number.isFinite(n) ? new Date(n / 1000).toISOString().replace("T", " ").replace("Z", "") : String(t); };
export const duration = (d) => { const m = /^([\d.]+)s$/.exec(d || ""); return m ? seconds(m[1]) : d || "–"; };

// gcText writes a rule of garbage collection, gcRule reads the short form that the pages ask for.
export function gcText(r) {
  if (!r) return "keeps everything";
  if (r.maxNumVersions) return `versions beyond ${r.maxNumVersions}`;
  if (r.maxAge) return `older than ${duration(r.maxAge)}`;
  if (r.union) return (r.union.rules || []).map(gcText).join(" or ") || "keeps everything";
  if (r.intersection) return (r.intersection.rules || []).map(gcText).join(" and ");
  return "keeps everything";
}
export function gcRule(versions, days) {
  const rules = [];
  if (versions) rules.push({ maxNumVersions: Number(versions) });
  if (days) rules.push({ maxAge: `${Math.round(Number(days) * 86400)}s` });
  return rules.length > 1 ? { union: { rules } } : rules[0] || {};
}

// remembered is a value that this browser keeps.
export const remembered = {
  get(k, d) { try { return JSON.parse(localStorage.getItem("trestle." + k)) ?? d; } catch { return d; } },
  set(k, v) { try { localStorage.setItem("trestle." + k, JSON.stringify(v)); } catch { /* a private window */ } },
};
