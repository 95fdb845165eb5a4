from cronjobs.django.revisions import migration

Migration = migration("0009", after="0008_tokens")
