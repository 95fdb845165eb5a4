from cronjobs.django.revisions import migration

Migration = migration("0008", after="0007_released_keys")
