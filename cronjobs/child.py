"""For one release: ``-m cronjobs.child``, by which ticks of the previous version start a handler during a deploy."""

from __future__ import annotations

from cronjobs.execution.child import main

if __name__ == "__main__":
    main()
