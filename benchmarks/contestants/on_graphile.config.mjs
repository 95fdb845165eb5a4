// BENCH_BATCHED turns on the batching that graphile-worker's page about performance shows. Successes are not logged,
// because no contestant logs them.
import { Logger } from "graphile-worker";

const quiet = new Logger(() => (level, message) => level === "error" && console.error(message));

export default {
  worker: {
    connectionString: process.env.BENCH_URL,
    taskDirectory: "tasks",
    concurrentJobs: 4,
    logger: quiet,
    ...(process.env.BENCH_BATCHED && { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }),
  },
};
