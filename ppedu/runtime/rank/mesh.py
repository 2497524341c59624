"""Where a rank stands: its rank in the world, and its coordinate in the mesh that the world is seen as."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coordinate:
    """pipeline: its rank in its pipeline, as schedules count. replica: which of the pipelines that share the batch. shard: its
    part of each of its layers (tensor parallelism)."""

    pipeline: int
    replica: int = 0
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Mesh:
    """pipeline x replicas x shards ranks. Shards are next to each other in the world, for they talk most, then replicas.

    >>> mesh = Mesh(pipeline=4, replicas=2)
    >>> mesh.coordinate(5)
    Coordinate(pipeline=2, replica=1, shard=0)
    >>> [mesh.rank(mesh.coordinate(rank)) for rank in range(mesh.size)] == list(range(8))
    True
    """

    pipeline: int
    replicas: int = 1
    shards: int = 1

    @property
    def size(self) -> int:
        return self.pipeline * self.replicas * self.shards

    def coordinate(self, rank: int) -> Coordinate:
        rest, shard = divmod(rank, self.shards)
        pipeline, replica = divmod(rest, self.replicas)
        return Coordinate(pipeline, replica, shard)

    def rank(self, at: Coordinate) -> int:
        """The rank in the world."""
        return (at.pipeline * self.replicas + at.replica) * self.shards + at.shard
