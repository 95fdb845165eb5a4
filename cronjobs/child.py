"""For one release: ``-m cronjobs.child``, as ticks of the version before start a handler while files are replaced."""

from __future__ import annotations

from cronjobs.execution.child import main

if __name__ == "__main__":
    main()
