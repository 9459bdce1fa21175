// Drives the real graphile-worker. Its packages, one a version, are installed where NODE_PATH says.
//
//   node original.js VERSION migrate  URL                     install its schema
//   node original.js VERSION add      URL TASK                enqueue one job
//   node original.js VERSION work     URL                     run the due jobs of the task "fails", which fails
//   node original.js VERSION backfill URL CRONTAB NOW         start its scheduler at the moment NOW, and end once it has
//                                                             scheduled what was missed
"use strict";
const fs = require("fs");

const [version, verb, url, crontab, moment] = process.argv.slice(2);

function shiftTime(now) {
  const Real = Date;
  const shift = new Real(now).getTime() - Real.now();
  global.Date = class extends Real {
    constructor(...args) {
      if (args.length) super(...args);
      else super(Real.now() + shift);
    }
    static now() {
      return Real.now() + shift;
    }
  };
}

async function main() {
  if (verb === "backfill") shiftTime(moment);
  const { run, runOnce, runMigrations, quickAddJob, parseCrontab } = require(`graphile-worker-${version}`);
  if (verb === "migrate") return runMigrations({ connectionString: url });
  if (verb === "add") return quickAddJob({ connectionString: url }, crontab, { from: "theirs" });
  if (verb === "work") {
    const fails = () => {
      throw new Error("no luck");
    };
    return runOnce({ connectionString: url, taskList: { fails }, noHandleSignals: true });
  }
  const { EventEmitter } = require("events");
  const events = new EventEmitter();
  const started = new Promise((resolve) => events.on("cron:started", resolve));
  const runner = await run({
    connectionString: url,
    parsedCronItems: parseCrontab(fs.readFileSync(crontab, "utf8")),
    taskList: { nothing_of_this_name: () => {} },
    noHandleSignals: true,
    events,
  });
  await started;
  await runner.stop();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
