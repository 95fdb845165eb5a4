from cronjobs.django.revisions import migration

Migration = migration("0005", after="0004_totals")
