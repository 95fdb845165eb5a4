"""One migration for each revision of the tables; ``cronjobs.contrib.django.revisions`` has what they do."""
