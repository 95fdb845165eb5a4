"""One migration for each revision of the tables; ``cronjobs.django.revisions`` has what they do."""
