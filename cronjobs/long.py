"""``python -m cronjobs.long``: the process of a long job, under the name by which operators signal it."""

from __future__ import annotations

from cronjobs.tick.long_job_process import main

if __name__ == "__main__":
    main()
