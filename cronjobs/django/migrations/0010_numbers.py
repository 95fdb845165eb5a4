from cronjobs.django.revisions import migration

Migration = migration("0010", after="0009_names_and_counts")
