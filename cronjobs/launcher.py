"""Starts ``execution/launcher.py``, under the path that a tick looks for among processes: ``identity.LAUNCHER``.

By this name a tick of the previous version proves that a command still runs. After one release it can go, with the
places that start it: ``identity.LAUNCHER`` and ``execution.process``. Never imported.
"""

import sys

here = __file__.rpartition("/")[0] + "/execution"
sys.path.insert(0, here)
from launcher import main  # type: ignore[import-not-found]  # noqa: E402

sys.path.remove(here)
main()
