// Smoke test of the Node client: with BIGTABLE_EMULATOR_HOST set, or with TLS and
// login at SMOKE_ENDPOINT (HOST:PORT), by GRPC_DEFAULT_SSL_ROOTS_FILE_PATH and
// GOOGLE_APPLICATION_CREDENTIALS.
const assert = require('assert');
const {Bigtable} = require('@google-cloud/bigtable');

(async () => {
  const options = {projectId: 'p'};
  const endpoint = process.env.SMOKE_ENDPOINT;
  if (endpoint) {
    const colon = endpoint.lastIndexOf(':');
    options.servicePath = endpoint.slice(0, colon);
    options.port = Number(endpoint.slice(colon + 1));
  }
  const instance = new Bigtable(options).instance('node-1');
  if (endpoint && !(await instance.exists())[0]) {
    const [, operation] = await instance.create({displayName: 'node-1', clusters: [{id: 'node-1', location: 'local-a', nodes: 1, storage: 'ssd'}]});
    await operation.promise();
  }
  const table = instance.table('smoke');
  if ((await table.exists())[0]) await table.delete();
  await table.create({families: [{name: 'f', rule: {versions: 2}}, 'g'], splits: [Buffer.from('m')]});
  const rows = [];
  for (let i = 0; i < 1000; i++) {
    rows.push({key: 'row' + String(i).padStart(5, '0'), data: {f: {q: {value: String(i), timestamp: 1000}}, g: {x: 'y'}}});
  }
  await table.insert(rows);
  let n = 0;
  await new Promise((resolve, reject) => table.createReadStream().on('error', reject).on('data', () => n++).on('end', resolve));
  assert.strictEqual(n, 1000);
  const [row] = await table.row('row00042').get();
  assert.strictEqual(row.data.f.q[0].value, '42');
  const [some] = await table.getRows({ranges: [{start: 'row00010', end: {value: 'row00020', inclusive: false}}], filter: [{value: /1[357]/}]});
  assert.deepStrictEqual(some.map(r => r.id), ['row00013', 'row00015', 'row00017']);
  await table.row('counter').increment('f:n', 5);
  await table.row('counter').increment('f:n', 6);
  const [counter] = await table.row('counter').get();
  assert.strictEqual(counter.data.f.n[0].value, 11);
  const [hit] = await table.row('row00001').filter([{value: '1'}], {onMatch: [{method: 'insert', data: {f: {hit: 'y'}}}]});
  assert.ok(hit);
  await assert.rejects(table.insert({key: 'x', data: {nofam: {q: 'v'}}}), e => e.errors[0].code === 5);
  assert.strictEqual((await table.sampleRowKeys())[0].length, 2);
  await table.delete();
  if (endpoint) await instance.delete();
  console.log('node ok');
})().catch(e => {
  console.error(e);
  process.exit(1);
});
