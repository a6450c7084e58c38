// SQL by the Node client, beside smoke.js and with its environment: the steps of
// sql.json, then what only a program can do.
const assert = require('assert');
const {Bigtable, SqlTypes, v2} = require('@google-cloud/bigtable');
const {BigtableDate} = require('@google-cloud/bigtable/build/src/execute-query/values');
const {PreciseDate} = require('@google-cloud/precise-date');
const steps = require('./sql.json');

const codes = {INVALID_ARGUMENT: 3, NOT_FOUND: 5, FAILED_PRECONDITION: 9, OUT_OF_RANGE: 11};
const scalars = {
  BOOL: SqlTypes.Bool(), INT64: SqlTypes.Int64(), FLOAT32: SqlTypes.Float32(), FLOAT64: SqlTypes.Float64(),
  STRING: SqlTypes.String(), BYTES: SqlTypes.Bytes(), DATE: SqlTypes.Date(), TIMESTAMP: SqlTypes.Timestamp(),
};

// typeOf is the type that a step names.
function typeOf(name) {
  const array = /^ARRAY<(.*)>$/.exec(name);
  return array ? SqlTypes.Array(scalars[array[1]]) : scalars[name];
}

// valueOf is the value of a parameter of a step.
function valueOf(json, type) {
  if (json === null) return null;
  switch (type.type) {
    case 'array': return json.map(v => valueOf(v, type.elementType));
    case 'int64': return BigInt(json);
    case 'bytes': return Buffer.from(json, 'hex');
    case 'date': return new BigtableDate(...json);
    case 'timestamp': return new PreciseDate(json);
  }
  return json;
}

// typeName and text render a type and a value as the steps have them.
function typeName(type) {
  switch (type.type) {
    case 'array': return `ARRAY<${typeName(type.elementType)}>`;
    case 'map': return `MAP<${typeName(type.keyType)},${typeName(type.valueType)}>`;
    case 'struct': return `STRUCT<${type.values.map((t, i) => type.getFieldNameAtIndex(i) + ' ' + typeName(t)).join(',')}>`;
  }
  return type.type.toUpperCase();
}

function text(value, type) {
  if (value === null) return 'null';
  switch (type.type) {
    case 'array': return `[${value.map(v => text(v, type.elementType)).join(',')}]`;
    case 'map': return `(${[...value.entries()].map(([k, v]) => text(k, type.keyType) + ':' + text(v, type.valueType)).sort().join(',')})`;
    case 'struct': return `{${type.values.map((t, i) => type.getFieldNameAtIndex(i) + '=' + text(value.get(i), t)).join(',')}}`;
    case 'string': return `"${value}"`;
    case 'bytes': return Buffer.from(value).toString('hex');
    case 'date': return `${value.year}-${value.month}-${value.day}`;
    case 'timestamp': return String(value.getFullTime());
  }
  return String(value);
}

(async () => {
  const options = {projectId: 'p'};
  const endpoint = process.env.SMOKE_ENDPOINT;
  if (endpoint) {
    const colon = endpoint.lastIndexOf(':');
    options.servicePath = endpoint.slice(0, colon);
    options.port = Number(endpoint.slice(colon + 1));
  }
  const bigtable = new Bigtable(options);
  const instance = bigtable.instance('node-sql');
  if (endpoint && !(await instance.exists())[0]) {
    const [, operation] = await instance.create({displayName: 'node-sql', clusters: [{id: 'node-sql', location: 'local-a', nodes: 1, storage: 'ssd'}]});
    await operation.promise();
  }
  const table = instance.table('steps');
  if ((await table.exists())[0]) await table.delete();
  await table.create({families: ['f', 'g'], splits: [Buffer.from('b')]});
  const n = number => Buffer.from([0, 0, 0, 0, 0, 0, 0, number]);
  const cell = value => ({value, timestamp: 1000});
  await table.insert([
    {key: 'a', data: {f: {n: cell(n(1)), t: cell('one')}}},
    {key: 'b', data: {f: {n: cell(n(2)), t: cell('two')}}},
    {key: 'c', data: {f: {n: cell(n(3)), t: cell('three')}}},
    {key: 'h', data: {f: {v: cell('old')}}},
    {key: 'h', data: {f: {v: {value: 'new', timestamp: 2000}}}},
  ]);

  // run returns the cells of a result as a step has them.
  async function run({query, params}) {
    const parameterTypes = {}, parameters = {};
    for (const [name, [type, value]] of Object.entries(params || {})) {
      parameterTypes[name] = typeOf(type);
      parameters[name] = valueOf(value, parameterTypes[name]);
    }
    const [preparedStatement] = await instance.prepareStatement({query, parameterTypes});
    const stream = instance.createExecuteQueryStream({preparedStatement, parameters});
    const cells = [];
    for await (const row of stream) {
      const types = stream.getMetadata();
      types.columns.forEach((type, i) => cells.push(`${types.getFieldNameAtIndex(i)} ${typeName(type)} ${text(row.get(i), type)}`));
    }
    return cells;
  }
  // materializedViews makes a view of what the table has, and reads it.
  async function materializedViews() {
    const admin = bigtable.admin.getInstanceAdminClient(), parent = instance.name.replace('{{projectId}}', 'p'), name = parent + '/materializedViews/letters';
    const [operation] = await admin.createMaterializedView({
      parent, materializedViewId: 'letters',
      materializedView: {query: 'SELECT SUBSTR(_key, 1, 1) AS letter, COUNT(*) AS result FROM steps GROUP BY letter', deletionProtection: true},
    });
    const [made] = await operation.promise();
    assert.strictEqual(made.name, name);
    assert.strictEqual((await admin.getMaterializedView({name}))[0].query, made.query);
    assert.deepStrictEqual((await admin.listMaterializedViews({parent}))[0].map(view => view.name), [name]);
    assert.deepStrictEqual(await run({query: "SELECT result FROM letters WHERE letter = 'w'"}), ['result INT64 12000']);
    // The handwritten client has no rows of views: the generated one asks for them.
    const rows = new v2.BigtableClient(bigtable.options.BigtableClient).readRows({materializedViewName: name, rowsLimit: 1});
    let chunks = 0;
    for await (const response of rows) chunks += response.chunks.length;
    assert.ok(chunks > 0);
    await assert.rejects(admin.deleteMaterializedView({name}), {code: codes.FAILED_PRECONDITION});
    const [update] = await admin.updateMaterializedView({materializedView: {name, deletionProtection: false}, updateMask: {paths: ['deletion_protection']}});
    await update.promise();
    await admin.deleteMaterializedView({name});
    await assert.rejects(admin.getMaterializedView({name}), {code: codes.NOT_FOUND});
  }
  for (const step of steps.queries) {
    assert.deepStrictEqual(await run(step), step.want, step.query);
  }
  for (const step of steps.errors) {
    // An error of a stream loses its code in the client, which writes it into the message.
    await assert.rejects(run(step), e => (e.code === codes[step.code] || e.message.includes(`${codes[step.code]} ${step.code}: `)) &&
      e.message.includes(step.text) || assert.fail(`${step.query}: ${e.code} ${e.message}`));
  }

  // A result of several batches and tokens, in order; then one that nobody reads to its end.
  const wide = 'x'.repeat(1000);
  for (let from = 0; from < 12000; from += 3000) {
    await table.insert(Array.from({length: 3000}, (_, i) => ({key: 'w' + String(from + i).padStart(5, '0'), data: {g: {wide: cell(wide)}}})));
  }
  const [statement] = await instance.prepareStatement("SELECT _key, g['wide'] AS wide FROM steps WHERE _key >= 'w'");
  const [rows] = await instance.executeQuery(statement);
  assert.strictEqual(rows.length, 12000);
  rows.forEach((row, i) => {
    assert.strictEqual(Buffer.from(row.get('_key')).toString(), 'w' + String(i).padStart(5, '0'));
    assert.strictEqual(row.get('wide').length, 1000);
  });
  const stream = instance.createExecuteQueryStream({preparedStatement: statement});
  let seen = 0;
  await new Promise((resolve, reject) => stream.on('error', reject).on('close', resolve).on('data', () => ++seen === 10 && stream.end()));
  assert.ok(seen >= 10 && seen < 12000, seen);

  await materializedViews();

  // One statement, many times at once.
  const [point] = await instance.prepareStatement({query: 'SELECT TO_INT64(f[\'n\']) AS n FROM steps WHERE _key = @k', parameterTypes: {k: SqlTypes.Bytes()}});
  const keys = Array.from({length: 300}, (_, i) => 'abc'[i % 3]);
  const answers = await Promise.all(keys.map(k => instance.executeQuery({preparedStatement: point, parameters: {k: Buffer.from(k)}})));
  answers.forEach(([[row]], i) => assert.strictEqual(row.get('n'), BigInt(1 + i % 3)));

  // A statement whose columns have changed is prepared again by the client.
  const [all] = await instance.prepareStatement("SELECT * FROM steps WHERE _key = 'a'");
  assert.strictEqual((await instance.executeQuery(all))[0][0].values.length, 3);
  await table.createFamily('later');
  assert.strictEqual((await instance.executeQuery(all))[0][0].values.length, 4);

  await table.delete();
  await assert.rejects(instance.executeQuery(all), /Table not found/);
  if (endpoint) await instance.delete();
  console.log(`node sql ok, ${steps.queries.length} queries, ${steps.errors.length} errors`);
})().catch(e => {
  console.error(e);
  process.exit(1);
});
