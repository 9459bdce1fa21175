// The file that a worker process leaves for whoever measures it; the same bytes as benchmarks/probe.py writes.
'use strict';
const fs = require('fs');

const FOLDER = process.env.STOWHAND_BENCH_PROBE;
const HEAD = 24;
const MOST_DELAYS = 2000;
const FLUSH_EVERY = 5; // milliseconds

const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const head = Buffer.alloc(HEAD);
let file;
let count = 0;
let written = 0;

function flush() {
  if (written === count) return;
  written = count;
  head.writeBigInt64LE(BigInt(count), 16);
  fs.writeSync(file, head, 0, HEAD, 0);
}

// A handler begins.
exports.hit = (sent) => {
  const now = seconds();
  if (!count) {
    file = fs.openSync(`${FOLDER}/${process.pid}`, 'w+');
    head.writeDoubleLE(now, 0);
    setInterval(flush, FLUSH_EVERY).unref();
  }
  head.writeDoubleLE(now, 8);
  count += 1;
  if (!sent) return;
  if (count <= MOST_DELAYS) {
    const delay = Buffer.alloc(8);
    delay.writeDoubleLE(now - sent, 0);
    fs.writeSync(file, delay, 0, 8, HEAD + 8 * (count - 1));
  }
  flush();
};

const total = () =>
  fs.readdirSync(FOLDER).reduce((sum, name) => {
    const read = fs.readFileSync(`${FOLDER}/${name}`);
    return read.length < HEAD ? sum : sum + Number(read.readBigInt64LE(16));
  }, 0);

const sleep = (milliseconds) => new Promise((wake) => setTimeout(wake, milliseconds));

// Enqueue one after another, each when the one before has begun and a pause has passed.
exports.sendSlowly = async (count, enqueue) => {
  for (let number = 0; number < count; number++) {
    await enqueue(number, seconds());
    const deadline = seconds() + 30;
    while (total() <= number) {
      if (seconds() > deadline) throw new Error(`job ${number} did not begin within 30 s`);
      await sleep(2);
    }
    await sleep(4 + 20 * ((number * 0.6180339887) % 1));
  }
};

// Do it, and print how long it took, and the processor time of this process meanwhile.
exports.timed = async (count, work) => {
  const began = seconds();
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before); // microseconds
  console.log(JSON.stringify({ count, seconds: seconds() - began, processor: (user + system) / 1e6 }));
};
