// A reader of protobuf messages by the descriptors of a schema bundle: what the data page
// needs of it, in place of a library of 100 KiB.
import { hex, toBase64 } from "./util.js";

// fields returns [number, wire type, value] of each field; values are BigInt or bytes.
function fields(b) {
  const out = [];
  let i = 0;
  const varint = () => {
    let v = 0n;
    for (let s = 0n; s < 70n; s += 7n) {
      if (i >= b.length) throw new Error("it ends early");
      const x = b[i++];
      v |= BigInt(x & 127) << s;
      if (x < 128) return BigInt.asUintN(64, v);
    }
    throw new Error("a number is too long");
  };
  const take = (n) => {
    if (n > b.length - i) throw new Error("it ends early");
    i += n;
    return b.subarray(i - n, i);
  };
  while (i < b.length) {
    const key = varint(), n = Number(key >> 3n), w = Number(key & 7n);
    if (n === 0) throw new Error("field 0");
    if (w === 0) out.push([n, w, varint()]);
    else if (w === 1) out.push([n, w, take(8)]);
    else if (w === 2) out.push([n, w, take(Number(varint()))]);
    else if (w === 5) out.push([n, w, take(4)]);
    else throw new Error(`wire type ${w}`);
  }
  return out;
}
const all = (b, n) => fields(b).filter((f) => f[0] === n).map((f) => f[2]);
const text = (b, n) => { const v = all(b, n).pop(); return v ? new TextDecoder().decode(v) : ""; };
const number = (b, n) => Number(all(b, n).pop() ?? 0);

// messagesOf returns the messages and enums of a FileDescriptorSet by full name.
export function messagesOf(set) {
  const types = new Map();
  const message = (b, prefix) => {
    const name = prefix + text(b, 1);
    types.set(name, { fields: new Map(all(b, 2).map((f) => [number(f, 3), { name: text(f, 1), type: number(f, 5), repeated: number(f, 4) === 3, ref: text(f, 6).replace(/^\./, "") }])) });
    for (const m of all(b, 3)) message(m, name + ".");
    for (const e of all(b, 4)) enumeration(e, name + ".");
  };
  const enumeration = (b, prefix) => types.set(prefix + text(b, 1), { values: new Map(all(b, 2).map((v) => [number(v, 2), text(v, 1)])) });
  for (const file of all(set, 1)) {
    const prefix = text(file, 2) ? text(file, 2) + "." : "";
    for (const m of all(file, 4)) message(m, prefix);
    for (const e of all(file, 5)) enumeration(e, prefix);
  }
  return types;
}

// scalar reads a number of a type of FieldDescriptorProto.
function scalar(type, wire, v) {
  if (wire !== 0) {
    const d = new DataView(v.buffer, v.byteOffset, v.length);
    switch (type) {
      case 1: return d.getFloat64(0, true);
      case 2: return d.getFloat32(0, true);
      case 6: return d.getBigUint64(0, true).toString();
      case 7: return d.getUint32(0, true);
      case 15: return d.getInt32(0, true);
      case 16: return d.getBigInt64(0, true).toString();
    }
    return hex(v);
  }
  switch (type) {
    case 3: return BigInt.asIntN(64, v).toString();
    case 5: case 14: return Number(BigInt.asIntN(32, v));
    case 8: return v !== 0n;
    case 17: case 18: return ((v >> 1n) ^ -(v & 1n)).toString();
  }
  return v.toString();
}

// reader returns a function that reads bytes as the message of a name.
export function reader(types, name, depth = 0) {
  return (b) => {
    if (depth > 50) throw new Error("nested too deep");
    const type = types.get(name), out = {};
    if (!type || !type.fields) throw new Error(`there is no message ${name}`);
    for (const [n, wire, v] of fields(b)) {
      const f = type.fields.get(n);
      if (!f) { out[`#${n}`] = wire === 0 ? v.toString() : hex(v); continue; }
      let values;
      if (wire === 2) {
        if (f.type === 9) values = [new TextDecoder().decode(v)];
        else if (f.type === 12) values = [toBase64(v)];
        else if (f.type === 11) values = [reader(types, f.ref, depth + 1)(v)];
        else values = packed(f.type, v);
      } else values = [scalar(f.type, wire, v)];
      if (f.type === 14) values = values.map((x) => types.get(f.ref)?.values?.get(x) ?? x);
      out[f.name] = f.repeated ? [...(out[f.name] ?? []), ...values] : values.at(-1);
    }
    return out;
  };
}

// packed reads numbers that stand one behind the other.
function packed(type, b) {
  const size = [1, 6, 16].includes(type) ? 8 : [2, 7, 15].includes(type) ? 4 : 0, out = [];
  if (size) {
    for (let i = 0; i + size <= b.length; i += size) out.push(scalar(type, 1, b.subarray(i, i + size)));
    return out;
  }
  for (let i = 0; i < b.length;) {
    let v = 0n;
    for (let s = 0n; ; s += 7n) {
      if (i >= b.length || s > 63n) throw new Error("it ends early");
      const x = b[i++];
      v |= BigInt(x & 127) << s;
      if (x < 128) break;
    }
    out.push(scalar(type, 0, BigInt.asUintN(64, v)));
  }
  return out;
}
