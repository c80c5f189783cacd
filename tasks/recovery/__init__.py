"""Killed model workers: found by their connections to Redis, before their leases run out.

In: the connections that Redis lists, and the beats of the workers.
Out: leases that end early; the reconciler takes up what they were for.
Public: holder_watch.HolderWatch, lost_holders.LostHolders.
"""
