"""Web pages with findings, schedules, jobs, queues and hosts, as one WSGI application.

``cronjobs web`` serves the pages. ``app()`` and ``flask_blueprint()`` mount them in your own app, and ``basic_auth()``
protects them with a password. The pages need the extra: ``pip install 'cronjobs[web]'``.
"""

from cronjobs.contrib.web.not_installed import WebMissing

try:
    from cronjobs.contrib.web.mounted import app, flask_blueprint
    from cronjobs.contrib.web.security import basic_auth
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("jinja2", "werkzeug"):
        raise WebMissing from None
    raise

__all__ = ["app", "basic_auth", "flask_blueprint"]
