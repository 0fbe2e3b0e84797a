"""The division of a model and a row among the GPUs of a replica: degrees of 4D parallelism, and each GPU's place."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A GPU's ranks in its replica."""

    pp_rank: int
    cp_rank: int
    sp_rank: int
    tp_rank: int


DEGREES = ("sp", "cp", "tp", "pp")
"""Fields of `Layout` that are degrees."""


class Layout(NamedTuple):
    """The degrees of a replica. GPUs are numbered with tensor parallelism innermost and pipeline stages outermost."""

    sp: int = 1
    """Sequence parallelism by all-to-alls (Ulysses). Megatron's "sequence parallelism" is a part of `tp`."""
    cp: int = 1
    """Context parallelism (ring, all-gather). Not above 1 together with `sp`."""
    tp: int = 1
    """Tensor parallelism."""
    pp: int = 1
    """Pipeline stages."""
    vpp: int = 1
    """Parts of each stage, which take turns (interleaved 1F1B). No degree: it moves no token to another GPU."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the replica.

        >>> Layout(cp=2, tp=8, pp=4).num_gpus
        64
        """
        return self.sp * self.cp * self.tp * self.pp

    @property
    def row_ranks(self) -> int:
        """Ranks that share the tokens of a row."""
        return self.sp * self.cp

    @property
    def stage_gpus(self) -> int:
        """GPUs of a pipeline stage, which share the tokens of a row."""
        return self.sp * self.cp * self.tp

    @property
    def row_multiple(self) -> int:
        """Tokens of which a full row is a multiple.

        Each GPU of a stage has equally many, and with context parallelism each of its two chunks, see
        `format.sharding`.

        >>> Layout(sp=8).row_multiple, Layout(cp=2, tp=4).row_multiple
        (8, 16)
        """
        return self.stage_gpus * (2 if self.cp > 1 else 1)

    @property
    def sizes(self) -> dict[str, int]:
        """The degrees by the names that groups and manifests give them: `sp_size`, `cp_size`, `tp_size`, `pp_size`."""
        return {f"{name}_size": size for name, size in zip(DEGREES, self[:4], strict=True)}

    @property
    def place_sizes(self) -> tuple[int, int, int, int]:
        """The degrees in the order of `Place`."""
        return self.pp, self.cp, self.sp, self.tp

    def place(self, gpu: int) -> Place:
        """Find the ranks of GPU `gpu` of the replica, from 0.

        >>> Layout(cp=2, tp=2, pp=2).place(5)
        Place(pp_rank=1, cp_rank=0, sp_rank=0, tp_rank=1)
        """
        gpu, tp_rank = divmod(gpu, self.tp)
        gpu, sp_rank = divmod(gpu, self.sp)
        pp_rank, cp_rank = divmod(gpu, self.cp)
        return Place(pp_rank, cp_rank, sp_rank, tp_rank)

    def gpu(self, *, pp_rank: int = 0, cp_rank: int = 0, sp_rank: int = 0, tp_rank: int = 0) -> int:
        """Find the GPU of the replica with these ranks: the inverse of `place`.

        Raises:
            ValueError: a rank is not below its degree.
        """
        place = Place(pp_rank, cp_rank, sp_rank, tp_rank)
        for name, rank, size in zip(place._fields, place, self.place_sizes, strict=True):
            if not 0 <= rank < size:
                raise ValueError(f"{name} is {rank}, and the degree is {size}")
        return ((pp_rank * self.cp + cp_rank) * self.sp + sp_rank) * self.tp + tp_rank

    def row_rank(self, gpu: int) -> int:
        """Find the place of GPU `gpu` of the replica among the `row_ranks` that share a row."""
        return gpu // self.tp % self.row_ranks

    def __str__(self) -> str:
        """Write the degrees above 1, SP always, as folders and tables show them.

        >>> str(Layout(sp=8)), str(Layout(cp=2, tp=8, pp=4))
        ('sp8', 'sp1-cp2-tp8-pp4')
        """
        more = [f"{name}{size}" for name, size in zip(DEGREES[1:], self[1:4], strict=True) if size > 1]
        return "-".join([f"sp{self.sp}", *more])


ONE_GPU = Layout()
"""No parallelism inside a replica."""
