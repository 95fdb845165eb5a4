from cronjobs.django.revisions import migration

Migration = migration("0007", after="0006_exec")
