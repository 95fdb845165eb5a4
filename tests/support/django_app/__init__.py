"""An app of a Django project, with tasks and jobs."""
