// BullMQ. FLOW_CONCURRENCY jobs at once; else its defaults. Finished jobs are not kept.
// FLOW_QUEUES: so many queues, each of whose processors adds the job to the next.
'use strict';
const { join } = require('path');
const { createRequire } = require('module');
const { hit, sendSlowly, timed } = require('./probe.js');

const modules = createRequire(join(process.env.PEERS_NODE, 'package.json'));
const { Queue, Worker } = modules('bullmq');
const { Redis } = modules('ioredis');

const connection = { path: process.env.FLOW_SOCKET, db: Number(process.env.FLOW_DB), maxRetriesPerRequest: null };
const concurrency = Number(process.env.FLOW_CONCURRENCY);
const names = Array.from({ length: Number(process.env.FLOW_QUEUES) }, (_, at) => `q${at + 1}`);
const opts = { removeOnComplete: true };

const work = () =>
  names.forEach((name, at) => {
    const next = at + 1 < names.length && new Queue(names[at + 1], { connection });
    const process = async (job) => {
      hit(job.data.sent);
      if (next) await next.add('noop', job.data, opts);
    };
    new Worker(name, process, { connection, concurrency });
  });

const verbs = {
  setup: async () => {
    const client = new Redis(connection);
    await client.flushdb();
    await client.quit();
  },
  one: (queue, count) =>
    timed(count, async () => {
      for (let number = 0; number < count; number++) await queue.add('noop', { number }, opts);
    }),
  many: (queue, count) =>
    timed(count, async () => {
      for (let from = 0; from < count; from += 1000) {
        const length = Math.min(1000, count - from);
        await queue.addBulk(Array.from({ length }, (_, at) => ({ name: 'noop', data: { number: from + at }, opts })));
      }
    }),
  slowly: (queue, count) => sendSlowly(count, (number, sent) => queue.add('noop', { number, sent }, opts)),
};

const main = async (verb, count) => {
  if (verb === 'worker') return work();
  const queue = new Queue(names[0], { connection });
  await queue.waitUntilReady();
  await verbs[verb](queue, count);
  await queue.close();
};

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
