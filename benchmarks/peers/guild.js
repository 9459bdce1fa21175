// @guildxyz/queues. FLOW_CONCURRENCY workers of each of FLOW_QUEUES queues. It has no call that creates many jobs:
// a hundred calls are under way at once. It keeps finished jobs for a day, and has no setting for that.
'use strict';
const { join } = require('path');
const { createRequire } = require('module');
const { hit, sendSlowly, timed } = require('./probe.js');

const modules = createRequire(join(process.env.PEERS_NODE, 'package.json'));
const { Flow } = modules('@guildxyz/queues');
const { createClient } = modules('redis');

const LOCK_SECONDS = 180;
const AT_ONCE = 100;
const redisClientOptions = { socket: { path: process.env.FLOW_SOCKET }, database: Number(process.env.FLOW_DB) };
const silent = () => {};
const flow = new Flow({
  name: 'bench',
  logger: { debug: silent, verbose: silent, info: silent, warn: silent, error: silent },
  correlator: { getId: () => 'bench', withId: (id, work) => work() },
  redisClientOptions,
  queueOptions: Array.from({ length: Number(process.env.FLOW_QUEUES) }, (_, at) => ({
    queueName: `q${at + 1}`,
    nextQueueName: at + 1 < Number(process.env.FLOW_QUEUES) ? `q${at + 2}` : undefined,
    attributesToGet: ['sent'],
  })),
  lookupAttributes: [],
});

const work = async (job) => {
  hit(job.sent);
  return { done: true };
};

const verbs = {
  setup: async () => {
    const client = await createClient(redisClientOptions).connect();
    await client.flushDb();
    await client.disconnect();
  },
  one: (count) =>
    timed(count, async () => {
      for (let number = 0; number < count; number++) await flow.createJob({ number });
    }),
  many: (count) =>
    timed(count, async () => {
      for (let from = 0; from < count; from += AT_ONCE) {
        const length = Math.min(AT_ONCE, count - from);
        await Promise.all(Array.from({ length }, (_, at) => flow.createJob({ number: from + at })));
      }
    }),
  slowly: (count) => sendSlowly(count, (number, sent) => flow.createJob({ number, sent })),
};

const main = async (verb, count) => {
  if (verb === 'worker') {
    flow.queues.forEach((queue) => flow.createWorkers(queue.name, work, Number(process.env.FLOW_CONCURRENCY), LOCK_SECONDS));
    await flow.startAll();
    return;
  }
  await flow.startAll();
  await verbs[verb](count);
  await flow.stopAll();
};

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
