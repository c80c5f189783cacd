"""Celery over Redis: the application, its queues, publishing, the consumer and task events.

In: messages to send.
Out: messages on the queues, received in order of priority.
"""
