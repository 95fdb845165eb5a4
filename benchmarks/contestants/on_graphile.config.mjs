// BENCH_BATCHED: the batching that the project's page on performance shows. Successes are not logged, as nobody's are.
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
