"""Celery over Redis: the application, its queues, publishing, the consumer and task events.

In: messages to send.
Out: messages on the queues, received in order of priority.
Public: publisher.Publisher, celery_app.make_app, publisher.Outbox, wakeable_consumer.WakingConsumer,
celery_app.add_queue.
"""
