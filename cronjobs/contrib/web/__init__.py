"""Pages for the browser: findings, schedules, jobs, queues, hosts, as one WSGI application.

``cronjobs web`` serves them; ``app()`` and ``flask_blueprint()`` put them into an app of yours, and ``basic_auth()``
lets in who knows a password. They need the extra: ``pip install 'cronjobs[web]'``.
"""

from cronjobs.contrib.web.missing import WebMissing

try:
    from cronjobs.contrib.web.mounted import app, flask_blueprint
    from cronjobs.contrib.web.security import basic_auth
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("jinja2", "werkzeug"):
        raise WebMissing from None
    raise

__all__ = ["app", "basic_auth", "flask_blueprint"]
