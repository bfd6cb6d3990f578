"""Shorter ways with the same bits, for collectives that are called again and again, or are very large.

    call_sites      a source line that calls again is answered from what its first call found out
    single_step     values that fit a buffer: one step, prepared
    small_sum       sums of small values: one barrier, and the last rank to come adds
    large_sum       sums of large values: three stages at a time; values in shared arrays are added where they lie
    in_place        other large values, read where they lie
    messages        send and recv of what fits its ring whole
    placed          large messages: the receiver reads them where they lie
    peer_memory     reading another process's own memory

All of it can be deleted: the one hook is `worker_main.communicator_class`, and `WorkerPool(n, fast=False)` is what
remains. What it is for: eight ranks on two cores push each other's code and data out of the caches, so that whatever is
made, called or touched is seen in the time of a small collective.
"""
