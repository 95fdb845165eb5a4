"""``python -m cronjobs.long``: the process of a long job, by the name that operators signal it by."""

from __future__ import annotations

from cronjobs.tick.long_job_process import main

if __name__ == "__main__":
    main()
