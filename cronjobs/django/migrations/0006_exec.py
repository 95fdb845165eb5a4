from cronjobs.django.revisions import migration

Migration = migration("0006", after="0005_seeing")
