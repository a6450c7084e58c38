// Logging in. A key's private part is used here, by the browser, and sent nowhere.
import { html, useState, ask, toBase64, fromBase64, visible, Refusal } from "./util.js";
import { Failure, Field, Command } from "./ui.js";

const url64 = (b) => toBase64(b).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const utf8 = (s) => new TextEncoder().encode(s);

// assertion signs what /token exchanges for a token, with the key of a file.
async function assertion(file, audience) {
  let k;
  try { k = JSON.parse(file); } catch { throw new Refusal(0, "The file is no key: it is not JSON."); }
  if (k.type !== "service_account" || !k.private_key || !k.client_email || !k.private_key_id) throw new Refusal(0, "The file is not the key of a service account.");
  if (!crypto.subtle) throw new Refusal(0, "This browser signs only on pages over https, or of this machine.");
  const der = fromBase64(k.private_key.replace(/-----[A-Z ]+-----|\s/g, ""));
  let key, alg, name;
  for (const [a, params, sign] of [["RS256", { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" }, { name: "RSASSA-PKCS1-v1_5" }], ["ES256", { name: "ECDSA", namedCurve: "P-256" }, { name: "ECDSA", hash: "SHA-256" }]]) {
    try { key = await crypto.subtle.importKey("pkcs8", der, params, false, ["sign"]); alg = sign; name = a; break; } catch { /* of the other kind */ }
  }
  if (!key) throw new Refusal(0, "The private key in the file cannot be read.");
  const now = Math.floor(Date.now() / 1000);
  const text = `${url64(utf8(JSON.stringify({ alg: name, typ: "JWT", kid: k.private_key_id })))}.${url64(utf8(JSON.stringify({ iss: k.client_email, sub: k.client_email, aud: audience, iat: now, exp: now + 600, scope: "https://www.googleapis.com/auth/cloud-platform" })))}`;
  return `${text}.${url64(new Uint8Array(await crypto.subtle.sign(alg, key, utf8(text))))}`;
}

const refused = () => {
  const c = document.cookie.split("; ").find((c) => c.startsWith("trestle-refused="));
  if (!c) return null;
  document.cookie = "trestle-refused=; Path=/console/; Max-Age=0; Secure; SameSite=Strict";
  return new Refusal(401, c.slice("trestle-refused=".length).replace(/^"|"$/g, ""));
};

export function Login({ session, done }) {
  const [error, setError] = useState(refused), [busy, setBusy] = useState(false);
  const submit = async (e) => {
    e.preventDefault();
    const form = e.currentTarget, file = form.elements.key.files[0];
    if (!file) { setError(new Refusal(0, "Choose a key file.")); return; }
    setBusy(true);
    setError(null);
    try {
      if (file.size > 64 << 10) throw new Refusal(0, "The file is not the key of a service account: it is too long.");
      const r = await fetch("/token", { method: "POST", body: new URLSearchParams({ grant_type: "urn:ietf:params:oauth:grant-type:jwt-bearer", assertion: await assertion(await file.text(), session.audience) }) });
      const t = await r.json();
      if (!r.ok) throw new Refusal(r.status, t.error_description || t.error);
      await ask("POST", "/console/session", { token: t.access_token });
      form.reset();
      done();
    } catch (err) { setError(err); setBusy(false); }
  };
  return html`<main class="login" id="main" tabindex="-1"><div class="card"><div class="brand"><img src="/console/assets/icon.svg" alt="" />Trestle</div><h1>Log in</h1>
    <p class="hint">Cluster ${visible(session.cluster)}</p>
    <form onSubmit=${submit}><p><${Field} label="Key file of a service account" type="file" name="key" accept=".json,application/json" hint="The private key stays in this browser, which signs with it." /></p><${Failure} error=${error && { ...error, status: 0, message: error.message }} />
    <p><button class="first" type="submit" aria-busy=${busy ? "true" : "false"}>Log in</button></p></form>
    ${session.oidc && html`<p>or</p><p><a class="button" href="/console/oidc/start">Log in with your organization</a></p>`}
    <h2>No key yet?</h2><p class="hint">The first start of the server wrote one into its data directory, <code>root-key.json</code>. Its owner makes accounts and keys for others:</p><${Command} text="trestle iam --help" /></div></main>`;
}
