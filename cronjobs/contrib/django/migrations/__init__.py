"""One migration per revision of the tables; see ``cronjobs.contrib.django.revisions``."""
