"""For one release: ``-m cronjobs.long``, as ticks of the version before start a long job while files are replaced."""

from __future__ import annotations

from cronjobs.tick.long_job_process import main

if __name__ == "__main__":
    main()
