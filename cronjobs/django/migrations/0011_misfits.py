from cronjobs.django.revisions import migration

Migration = migration("0011", after="0010_numbers")
