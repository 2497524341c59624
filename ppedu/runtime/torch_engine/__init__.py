"""torch.distributed.pipelining's own runtime, given our schedules."""
