// graphile-worker. The measured process is "graphile-worker --once". This script does everything else.
import { makeWorkerUtils, runMigrations } from "graphile-worker";
import preset from "./on_graphile.config.mjs";

const [verb, count] = process.argv.slice(2);
if (verb === "setup") {
  await runMigrations({ preset });
} else {
  const utils = await makeWorkerUtils({ preset });
  const query = (text) => utils.withPgClient((client) => client.query(text));
  if (verb === "fill") {
    await query("TRUNCATE graphile_worker._private_jobs");
    const jobs = Array.from({ length: Number(count) }, (_, n) => ({ identifier: "noop", payload: { n } }));
    if (jobs.length) await utils.addJobs(jobs);
  } else {
    console.log((await query("SELECT count(*) AS n FROM graphile_worker._private_jobs")).rows[0].n);
  }
  await utils.release();
}
