"""Deliveries of webhooks: due times, signatures, checked addresses, retries.

In: deliveries in the outbox.
Out: signed HTTP requests, and the log of their attempts.
Public: store.DeliveryStore, ssrf_guard.Guard, store.Secrets, sender.WebhookSender.
"""
