// The work of every Node handler here: count one run of job n, as seen.py does. Node cannot map files, so it writes the
// counts when it exits.
import { readFileSync, writeFileSync } from "node:fs";

const seen = readFileSync(process.env.BENCH_SEEN);

export function noop(n) {
  if (n === 0) seen.writeDoubleLE(Number(process.hrtime.bigint()) / 1e9, 0);
  seen[8 + n] += 1;
}

process.on("exit", () => writeFileSync(process.env.BENCH_SEEN, seen));
