from cronjobs.django.revisions import migration

Migration = migration("0012")
