"""One migration per revision of the tables. ``cronjobs.contrib.django.revisions`` makes the migrations."""
