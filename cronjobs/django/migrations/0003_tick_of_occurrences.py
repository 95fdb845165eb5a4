from cronjobs.django.revisions import migration

Migration = migration("0003", after="0002_policy_pauses_lengths")
