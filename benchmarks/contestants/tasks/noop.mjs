import { noop } from "../seen.mjs";

export default ({ n }) => noop(n);
