"""Running a schedule for real: the only place, with ppedu.models and ppedu.data, that imports torch."""
