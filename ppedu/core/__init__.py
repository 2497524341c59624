"""Schedules as data: their order, what is wrong with it, when its operations run, and every figure that follows."""
