from cronjobs.django.revisions import migration

Migration = migration("0002", after="0001_first")
