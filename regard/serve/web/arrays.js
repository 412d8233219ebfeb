// Arrays of numbers as a trace writes them (docs/trace.md), and the few things that are computed from them here.

const decoded = new WeakMap();

/** Numbers with a shape, the last axis fastest. */
export class Tensor {
  constructor(shape, values) {
    this.shape = shape;
    this.values = values;
  }

  /** What lies at the first few indices: a smaller tensor over the same numbers. */
  at(...indices) {
    const rest = this.shape.slice(indices.length),
      size = rest.reduce((product, length) => product * length, 1);
    let place = 0;
    indices.forEach((index, axis) => {
      place = place * this.shape[axis] + index;
    });
    return new Tensor(rest, this.values.subarray(place * size, (place + 1) * size));
  }

  /** The numbers of one row of a table. */
  row(index) {
    return this.at(index).values;
  }
}

/** An array of a document as a tensor, or null where it is missing. */
export function read(record) {
  if (!record) return null;
  if (!decoded.has(record)) decoded.set(record, new Tensor(record.shape, numbers(record)));
  return decoded.get(record);
}

function numbers({ shape, type, data, scale }) {
  if (type === "float32") return new Float32Array(bytes(data));
  if (type === "bool") return new Uint8Array(bytes(data));
  if (type === "float16") return Float32Array.from(new Uint16Array(bytes(data)), half);
  const rows = new Float32Array(bytes(scale)),
    width = shape.at(-1);
  return Float32Array.from(new Int8Array(bytes(data)), (value, index) => value * rows[Math.floor(index / width)]);
}

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1,
    exponent = (bits >> 10) & 31,
    fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return exponent === 31 ? (fraction ? NaN : sign * Infinity) : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export function add(one, other) {
  return one.map((value, place) => value + other[place]);
}

export function product(one, other) {
  return one.map((value, place) => value * other[place]);
}

export function length(values) {
  return Math.sqrt(sum(product(values, values)));
}

/** The place of the largest. */
export function largest(values) {
  return values.reduce((best, value, place) => (value > values[best] ? place : best), 0);
}

/** In nats: 0 where all weight is on one, ln n where it is spread over n. */
export function entropy(weights) {
  return -sum(weights.map((weight) => (weight > 0 ? weight * Math.log(weight) : 0)));
}

/** A vector normed as the model does it: `kind` is "layer" or "rms"; with γ and β. */
export function normed(values, kind, epsilon, norm) {
  const mean = kind === "layer" ? sum(values) / values.length : 0;
  const centred = values.map((value) => value - mean);
  const deviation = Math.sqrt(sum(product(centred, centred)) / values.length + epsilon);
  const weight = read(norm.weight).values,
    bias = read(norm.bias)?.values;
  const result = centred.map((value, place) => (value / deviation) * weight[place] + (bias ? bias[place] : 0));
  return { values: result, mean, deviation };
}

/** Rows of values (key, width) mixed by weights: what a head gives. */
export function mixed(weights, table) {
  const result = new Float32Array(table.shape[1]);
  weights.forEach((weight, key) =>
    table.row(key).forEach((value, place) => {
      result[place] += weight * value;
    }),
  );
  return result;
}
