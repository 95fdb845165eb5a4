from cronjobs.django.revisions import migration

Migration = migration("0004", after="0003_tick_of_occurrences")
