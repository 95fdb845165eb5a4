from cronjobs.contrib.django.revisions import migration

Migration = migration("0012")
