"""Pages for the browser: findings, schedules, jobs, queues, hosts, as one WSGI application without a framework.

``cronjobs web`` serves them; ``app()`` and ``flask_blueprint()`` put them into an app of yours.
"""

from cronjobs.contrib.web.mounted import app, flask_blueprint

__all__ = ["app", "flask_blueprint"]
