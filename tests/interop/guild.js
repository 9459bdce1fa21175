// Drives the real @guildxyz/queues. Its package is installed where NODE_PATH says.
//
// Reads commands, one JSON object a line, and answers each with one line: {"ok": what it gave} or {"error": its text}.
//   {"do": "flow", "redis": options of its client, "name", "queues": its queue options, "lookups": […]}
//   {"do": "work", "queue", "count", "lock", "step"}            lock in seconds; see function of a step below
//   {"do": "parent", "queue", "count", "lock"}    {"do": "child", "queue", "child", "count", "lock", "step"}
//   {"do": "start"}    connects too    {"do": "stop"}
//   {"do": "create", "jobs": [{…}, …]} gives ids    {"do": "find", "key", "value", "resolve"}    {"do": "delete", "id"}
'use strict';
const { createInterface } = require('readline');
const { Flow } = require('@guildxyz/queues');
const { createClient } = require('redis');

const BLOCK_SECONDS = 0.1; // so that stopping is prompt
const silent = () => {};
const logger = { debug: silent, verbose: silent, info: silent, warn: silent, error: silent };
const correlator = { getId: () => 'corr-1', withId: (id, work) => work() };
let flow;
let ledger;

// The worker function that a step describes; guild.py has the same for our side.
//   writes  attributes of the result       saw     one more, in which it keeps the job as it got it
//   fails   {"n": number, "message"}: every job whose n is a multiple of it fails
//   hangs   true: it never ends             ledger  the list to which it appends the job's id
const functionOf = (step) => async (job) => {
  await ledger.rPush(step.ledger, job.id);
  if (step.hangs) await new Promise(() => {});
  if (step.fails && job.n % step.fails.n === 0) throw new Error(step.fails.message);
  return { ...step.writes, ...(step.saw ? { [step.saw]: { ...job } } : {}) };
};

const commands = {
  flow: async ({ redis, name, queues, lookups }) => {
    flow = new Flow({
      name,
      logger,
      correlator,
      redisClientOptions: redis,
      queueOptions: queues,
      lookupAttributes: lookups,
    });
    ledger = createClient(redis);
    await ledger.connect();
  },
  work: async ({ queue, count, lock, step }) => {
    flow.createWorkers(queue, functionOf(step), count, lock, BLOCK_SECONDS);
  },
  parent: async ({ queue, count, lock }) => {
    flow.createParentWorkers(queue, count, lock, BLOCK_SECONDS);
  },
  child: async ({ queue, child, count, lock, step }) => {
    flow.createChildWorkers(queue, child, functionOf(step), count, lock, BLOCK_SECONDS);
  },
  start: () => flow.startAll(),
  stop: async () => {
    await flow.stopAll();
    await ledger.disconnect();
  },
  create: ({ jobs }) => Promise.all(jobs.map((job) => flow.createJob(job))),
  find: ({ key, value, resolve }) => flow.getJobsByKey(key, value, resolve),
  delete: ({ id }) => flow.deleteJob(id),
};

const answer = async (line) => {
  const command = JSON.parse(line);
  try {
    return { ok: (await commands[command.do](command)) ?? null };
  } catch (error) {
    return { error: String(error && error.stack) };
  }
};

(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await answer(line)));
  }
  process.exit(0);
})();
