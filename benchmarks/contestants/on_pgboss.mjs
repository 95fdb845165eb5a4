// pg-boss. It has no command that exits when all is done, so the measured process is the verb "run" of this script: it
// starts pg-boss, fetches until no job is left, and stops.
import { PgBoss } from "pg-boss";

const [verb, count] = process.argv.slice(2);
const QUEUE = "noop";
const batchSize = 20; // as on pg-boss's page about fetch
const migrate = verb === "setup";
const boss = new PgBoss({ connectionString: process.env.BENCH_URL, supervise: false, schedule: false, migrate });
boss.on("error", (error) => {
  console.error(error);
  process.exitCode = 1;
});
await boss.start();
if (verb === "setup") {
  await boss.createQueue(QUEUE);
} else if (verb === "fill") {
  await boss.deleteAllJobs(QUEUE);
  const jobs = Array.from({ length: Number(count) }, (_, n) => ({ data: { n } }));
  if (jobs.length) await boss.insert(QUEUE, jobs);
} else if (verb === "left") {
  const left = await boss.getDb().executeSql("SELECT count(*) AS n FROM pgboss.job WHERE state <> 'completed'");
  console.log(left.rows[0].n);
} else {
  const { noop } = await import("./seen.mjs");
  const work = async () => {
    for (;;) {
      const jobs = await boss.fetch(QUEUE, { batchSize });
      if (jobs.length === 0) return;
      for (const job of jobs) noop(job.data.n);
      await boss.complete(QUEUE, jobs.map((job) => job.id));
    }
  };
  await Promise.all([work(), work(), work(), work()]);
}
await boss.stop();
