"""Running a schedule for real: the only place, with ppedu.course.models and ppedu.course.data, that imports torch."""
