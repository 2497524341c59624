"""What a fork server imports once, so that every rank is born with it: torch, and what torch imports lazily at the first
backward, optimizer step and process group."""

import gc

import cloudpickle
import torch
import torch._dynamo
import torch.distributed.distributed_c10d
import torch.optim

import ppedu.runtime.execute
import ppedu.runtime.launch

__all__ = ["cloudpickle", "ppedu", "torch"]

gc.collect()
gc.freeze()  # a collection in a rank would write to, and so copy, every page that the ranks share
