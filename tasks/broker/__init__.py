"""Celery over Redis: the application, its queues, the consumer and task events; and what asks Sentinels.

In: messages on the queues, which the Lua scripts of the store send.
Out: messages, received in order of priority.
Public: celery_app.make_app, celery_app.add_queue, wakeable_consumer.WakingConsumer, sentinels.Sentinels,
sentinels.AsyncSentinels, sentinels.SentinelConnection, sentinels.TlsSentinelConnection.
"""
