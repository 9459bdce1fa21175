// graphile-worker. GRAPHILE_MODE=batched: its documented settings for throughput; plain: its own defaults for latency;
// 0.13: that version's defaults, which take no preset and run one job at once.
'use strict';
const { join } = require('path');
const { createRequire } = require('module');
const { hit, sendSlowly, timed } = require('./probe.js');

const modules = createRequire(join(process.env.PEERS_NODE, 'package.json'));
const { run, makeWorkerUtils, Logger } = modules('graphile-worker');
const { Pool } = modules('pg');

const mode = process.env.GRAPHILE_MODE;
const batched = mode === 'batched';
const concurrentJobs = { batched: 24, plain: 10, '0.13': 1 }[mode];
const pgPool = new Pool({ max: concurrentJobs + 2 }); // the server is named by PGHOST and its kin
pgPool.on('error', () => {});
const throughput = {
  localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const logger = new Logger(() => () => {});
const preset = { worker: { pgPool, concurrentJobs, logger, ...(batched ? throughput : {}) } };
const options = mode === '0.13' ? { pgPool, concurrency: concurrentJobs, logger } : { preset };

const verbs = {
  setup: async (utils) => {
    await utils.migrate();
    const names = mode === '0.13' ? ['jobs', 'job_queues'] : ['_private_jobs', '_private_job_queues'];
    await pgPool.query(`truncate ${names.map((name) => `graphile_worker.${name}`)}`);
  },
  one: (utils, count) =>
    timed(count, async () => {
      for (let number = 0; number < count; number++) await utils.addJob('noop', { number });
    }),
  many: (utils, count) =>
    timed(count, async () => {
      for (let from = 0; from < count; from += 1000) {
        const length = Math.min(1000, count - from);
        await utils.addJobs(Array.from({ length }, (_, at) => ({ identifier: 'noop', payload: { number: from + at } })));
      }
    }),
  slowly: (utils, count) => sendSlowly(count, (number, sent) => utils.addJob('noop', { number, sent })),
};

const main = async (verb, count) => {
  if (verb === 'worker') {
    await run({ ...options, taskList: { noop: async (payload) => hit(payload.sent) } });
    return;
  }
  const utils = await makeWorkerUtils(options);
  await verbs[verb](utils, count);
  await utils.release();
  await pgPool.end();
};

main(process.argv[2], Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
