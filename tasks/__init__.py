"""Publish and run Celery tasks that end in success or in the dead-letter queue."""
