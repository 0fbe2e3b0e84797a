"""PackedDataset: a packed set as a map-style torch data set of one rank."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from torch.utils.data import Dataset

from packer_cli.errors import ConfigError
from packer_cli.format.constants import VALIDATION, Mask
from packer_cli.format.epochs import parse_state
from packer_cli.format.layout import Layout
from packer_cli.format.ranks import RankRows
from packer_cli.format.versions import version_beside
from packer_cli.loader import options
from packer_cli.loader.build_batch import SP_SHARDINGS, PadTo, SPSharding
from packer_cli.loader.formats import FORMATS
from packer_cli.loader.resume import PackedSampler, Place, begins_at, is_left_to_sampler, read_state
from packer_cli.loader.shard_reader import ShardReader
from packer_cli.loader.storage import Verify, choose_pad_token, open_set
from packer_cli.remote.local import CACHE_BYTES
from packer_cli.remote.system import is_url


class PackedDataset(Dataset[Any]):
    """The part of the packed set in folder `path` that rank `rank` of `world_size` GPUs reads.

    ``ds[i]`` is the batch of iteration `i` of the epoch: one pack (or this rank's slice of it), ready for a forward.
    Every rank has the same number of iterations, and iteration `i` is the same one on all, so neither shuffle nor
    shard the set again: use no DistributedSampler, and do not pass the loader through accelerate's `prepare` or
    Lightning's `use_distributed_sampler=True`. ::

        ds = PackedDataset("OUT", rank, world_size)
        for epoch in range(3):
            ds.set_epoch(epoch)
            for batch in DataLoader(ds, batch_size=None):
                ...

    Always set `batch_size=None`: a pack is already a batch, which the default collate function would stack.

    **Batch**, in the format "transformers", with t tokens on this rank and n samples in the pack:

    =========================================  ==============================================================
    `input_ids`, `labels`, `position_ids`      int64 [1, t]
    `seq_idx`                                  int32 [1, t], the segment of each token, for hybrid models
    `cu_seq_lens_q`, `cu_seq_lens_k`           int32 [segments+1] (one tensor under two names)
    `max_length_q`, `max_length_k`             int
    `shift_labels`                             int64 [1, t], only if ranks share the row
    `loss_weights`, `shift_loss_weights`       float32 [1, t], only in a set with weights; the second like
                                               `shift_labels`
    `loss_weight`, `global_loss_weight`        float, likewise: sums over the pack and over the whole step
    `sample_ids`, `sample_num_loss_tokens`     int64 [n], ids in the token store and loss tokens
    `group`, `checkpoint_layers`, `pack_id`    int; pack_id is -1 for a filler
    `sp_size`, `sp_rank`, `dp_rank`, `dp_size` int
    `cp_size`, `cp_rank`, `tp_size`, `tp_rank` int
    `pp_size`, `pp_rank`                       int
    `sp_sharding`                              str, how the SP group divides the row
    `epoch`, `step`, `iteration`               int
    `num_samples`, `num_loss_tokens`           int, of the whole pack
    `global_num_packs` ...`_loss_tokens`       int, of the whole step over all ranks, to divide a loss by
    =========================================  ==============================================================

    There is no `attention_mask`; do not add one. The keys from `sample_ids` on are not arguments of a model.
    Other formats have the keys of their trainers, see docs/loader.md; `metadata_of` returns the others.

    **Labels and sequence parallelism. Read this before you slice or shift anything.** `labels` are aligned with
    `input_ids` (the Hugging Face convention: the model shifts), with -100 for no loss and for the first token of each
    sample. In a slot with sp_size > 1, every rank of the SP group reads the *same* pack; with `sp_slice` its batch
    holds only the rank's slice (`sp_sharding`), and **shifting that slice's `labels` loses the token at its
    end**. Use `shift_labels`, which were shifted over the whole row before slicing, and never cross samples. A Hugging
    Face model that gets both uses `shift_labels`. `cu_seq_lens_*` and `max_length_*` are those of the whole row.

    **Padding** is one more segment at the tail, with positions from 0 and labels -100; it counts in `cu_seq_lens_*`
    and `max_length_*`, never in `num_samples`. A *filler* (the rank has no pack in this iteration) is `8 * sp_size`
    padding tokens without loss, or a whole padded row if `pad_to` requires it; run it like any batch, so that
    collectives do not hang. As for any batch, sum its loss and divide by `global_num_loss_tokens`: the mean over no
    loss tokens is NaN.

    **Resuming.** Save ``ds.state_dict(batch["iteration"] + 1)``: workers read ahead, so the data set does not know
    which batches were used. To resume, call ``ds.load_state_dict(state)`` and, only for the rest of that epoch, give
    ``sampler=ds.remaining()`` to the DataLoader. Without a loader, ``for batch in ds`` continues by itself. A
    StatefulDataLoader that is restored by its own state needs ``sampler=ds.sampler()``; see docs/resume.md. Loading
    the state of a finished epoch goes to the start of the next. A state fits every rank, and names its version of the
    set, which the data set then reads. Without a state, all processes of torch.distributed read one version.

    Epochs after the last one written repeat the rows of epoch 0, with whole steps in another seeded order.

    Args:
        path: the folder that `hbpack pack` wrote, a copy, `OUT@3` for a version, or any URL of fsspec. A local folder
            is memory-mapped; a remote set is read through a cache on this node (docs/loader.md).
        rank: this process, 0 to world_size - 1.
        world_size: must be the number of GPUs for which the set was planned.
        epoch: epoch to start with; None: the set's first, which is 0 unless it was rebalanced later.
        format: a name of `packer_cli.loader.FORMATS`.
        sp_slice: give each rank of an SP group its slice; False: the whole row, for a trainer that slices; None: as
            the format's trainer expects (slices, except for "torchtitan", "megatron", "megatron-thd", "torchtune").
        sp_sharding: the tokens of a rank's slice: a name of `packer_cli.loader.parallel.SHARDINGS` ("contiguous" for
            Ulysses, "zigzag" for ring attention, "document"), or "planned" for the pack's `cp_sharding`; None: the
            format's own, else "planned" in groups with context parallelism, and "contiguous" in others.
        pad_to: "multiple": only to a multiple of lcm(`pad_to_multiple_of`, sp_size); "row": to the length of the
            iteration's longest row, so that ranks agree; "capacity": to the group's capacity, so that shapes are
            static (costs the most padding). The last two are rounded up to the same multiple.
        pad_to_multiple_of: tokens, at least 1.
        pad_token_id: None: the tokenizer's pad token, else its end-of-text token, else 0.
        mask: "document": attention within each sample; "causal": the whole row is one segment, so that every token
            sees all before it. None: the mask for which the set was planned (`hbpack pack --mask`).
        reset_positions: whether positions begin at 0 in each sample, or run through the row; None: as the mask, in
            each sample with "document". Models that find samples by their positions need the two to agree.
        max_segments: a fixed number of segments for every row, for CUDA graphs and `torch.compile`: borders are
            int32 [max_segments+1], in which the last one repeats (samples without tokens, which varlen kernels skip),
            and the greatest length is the row's. "plan": the samples of the set's largest pack, and one for padding;
            an integer may be greater. Limit it with `hbpack pack --max-samples`. None: as many as the row has.
        loss_weights: whether to give the weights of a set that has any (`weight` of its records or messages); False:
            all loss tokens count 1. Formats whose trainers have no place for weights need False.
        lockstep: False for a trainer whose ranks meet only at the end of a step (DDP, ZeRO-1): an item is then the
            list of this rank's micro-batches of an iteration. Sets planned with `--lockstep 1` need it, because ranks
            have different numbers of them, with which FSDP and ZeRO-2 or 3 would hang.
        verify: "lazy": compare each file and each pack with its checksum when this process first reads it; "full":
            also compare all shards now; "none": do not compare. Files of another set or of a wrong size are always
            found.
        cache_dir, cache_bytes: for a remote set: the folder of what was read, shared by all processes of the node (by
            default $HBPACK_CACHE, else hbpack in the user's cache folder), and the most bytes in it.
        storage_options: for a remote set: options of its fsspec file system.

    Raises:
        FormatError: there is no packed set, or it is damaged or of another format version.
        ConfigError: the set was planned for another number of GPUs, the epoch was over when it was rebalanced to this
            number, `pad_token_id` is not in the vocabulary, or the set needs `lockstep=False`.
        TypeError, ValueError: another argument is wrong.

    Price: about two plain copies of the batch's tensors, 16K tokens in about 100 us from a warm page cache. Memory
    stays flat: it keeps a few rows to reuse, and about 80 bytes per iteration. Sending a batch from a worker takes
    longer (0.3 to 1 ms) than reading it here, so num_workers=0 is usually best. Pickles to its arguments and state;
    workers map the shards themselves.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: int,
        world_size: int,
        epoch: int | None = None,
        format: str = "transformers",
        *,
        sp_slice: bool | None = None,
        sp_sharding: SPSharding | None = None,
        pad_to: PadTo = "multiple",
        pad_to_multiple_of: int = 1,
        pad_token_id: int | None = None,
        mask: Mask | None = None,
        reset_positions: bool | None = None,
        max_segments: int | Literal["plan"] | None = None,
        loss_weights: bool = True,
        lockstep: bool = True,
        verify: Verify = "lazy",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name not in ("self", "path", "epoch")}
        self.format = format
        if format not in FORMATS:
            raise ValueError(FORMATS.unknown(format))
        self._format = FORMATS[format]
        # What can be wrong before anything is read.
        if sp_sharding is not None:
            options.check_choice("sp_sharding", sp_sharding, SP_SHARDINGS)
        options.check_choice("pad_to", pad_to, get_args(PadTo))
        options.as_integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
        if pad_token_id is not None:
            options.as_integer("pad_token_id", pad_token_id)
        options.check_choice("verify", verify, get_args(Verify))
        options.as_integer("cache_bytes", cache_bytes, "64 * 2**30", least=0)
        self.path = str(path) if is_url(path) else Path(path)
        self._storage, manifest = open_set(
            path, verify=verify, cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=storage_options
        )
        self.folder = str(self._storage.root)
        """Folder or URL with the files of the version that is read."""
        self._manifest, name = manifest, repr(str(self.path))
        self._lockstep = options.check_lockstep(lockstep, manifest, name)
        self.rank, self.world_size = options.check_rank(rank, world_size, manifest, name)
        chosen, resets = options.choose_mask(
            manifest, mask, reset_positions, format, positions_are_borders=self._format.positions_are_borders
        )
        epoch = manifest.first_epoch if epoch is None else epoch
        self._place = Place(self._storage, manifest, self.rank, epoch)
        is_plain = chosen == "document" and resets and max_segments is None
        options.check_tree_format(
            manifest, format, self._format.builder, name, pad_to=pad_to, sp_sharding=sp_sharding, is_plain=is_plain
        )
        takes_weights = self._format.takes_weights
        self._is_weighted = options.choose_weights(manifest, loss_weights, format, name, takes_weights=takes_weights)
        self._builder = self._format.builder(
            pad_to=pad_to,
            pad_to_multiple_of=pad_to_multiple_of,
            pad_token_id=choose_pad_token(manifest, pad_token_id),
            sp_slice=self._format.sp_slice if sp_slice is None else sp_slice,
            sp_sharding=self._format.sp_sharding if sp_sharding is None else sp_sharding,
            align_samples=self._format.align_samples,
            groups=manifest.groups,
            mask=chosen,
            reset_positions=resets,
            is_weighted=self._is_weighted,
            max_segments=options.choose_max_segments(manifest, max_segments, chosen, name),
        )
        self._shards = ShardReader(self._storage, manifest)
        if verify == "full":
            self._shards.check_all()

    def require_pairs(self) -> None:
        """Raise ConfigError unless all items are pairs that count alike, for losses of preference pairs."""
        options.require_pairs(self._manifest, repr(str(self.path)), is_weighted=self._is_weighted)

    def require_held_out(self, training: PackedDataset) -> None:
        """Raise ConfigError if `training` has samples of this validation set, which goes to its version before."""
        own = f"{training.folder}/{VALIDATION}"
        if str(self.path) == f"{str(training.path).rstrip('/')}/{VALIDATION}" and self.folder != own:
            self._become(PackedDataset(own, **self._given))
        options.require_held_out(self._manifest, training._manifest, repr(str(self.path)))

    @property
    def manifest(self) -> dict[str, Any]:
        """`hbpack.json` as a new dictionary, with tuples for its lists."""
        return asdict(self._manifest)

    @property
    def replicas(self) -> dict[Layout, tuple[int, ...]]:
        """First ranks of the replicas of more than one GPU, by layout; for `init_sp_groups`."""
        return {each.layout: each.first_gpus for each in self._manifest.replicas}

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._place.epoch

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the epoch, the same on every rank."""
        self._place.is_counted = True
        return self._place.rows.num_steps

    def steps_of(self, epoch: int) -> int:
        """Count the optimizer steps of any epoch, without going there. Raises ConfigError if the set lacks it."""
        self._place.is_counted = True
        entry, _ = self._manifest.generation.find_epoch(epoch)
        return entry.first_step + entry.num_steps

    @property
    def position(self) -> int:
        """The iteration at which `__iter__` and `remaining` begin."""
        self._place.rows  # noqa: B018  (resets the position if the epoch has changed)
        return self._place.position

    def __len__(self) -> int:
        """Count the iterations of the epoch, the same on every rank."""
        self._place.is_counted = True
        return len(self._place.rows)

    def __getitem__(self, i: int) -> Any:
        """Return the batch of iteration `i`; do not move `position`.

        Raises FormatError if a shard is damaged, and RuntimeError if a state was loaded that is past the iteration.
        """
        rows = self._place.rows
        self._place.require(rows.epoch, self._manifest)
        i = operator.index(i)
        num_iterations = len(rows)
        if i < 0:
            i += num_iterations
        if not 0 <= i < num_iterations:
            raise IndexError(f"iteration {i} of {num_iterations}")
        if i < self._place.unused:
            raise RuntimeError(
                f"iteration {i} is asked for, and the loaded state goes on at {self._place.unused}: give DataLoader "
                "sampler=ds.remaining() or ds.sampler(), without shuffle, Subset or prepare; or iterate over ds itself"
            )
        item = self._batch(rows, i) if self._lockstep else [self._batch(rows, number) for number in rows.rows_of(i)]
        self._place.next = i + 1
        return item

    def _batch(self, rows: RankRows, number: int) -> Any:
        row, pack = self._shards.read_row(rows, number)
        return self._format.adapt(self._builder.build(pack, row, rows.epoch))

    def __iter__(self) -> Iterator[Any]:
        """Iterate from `position`, or from 0 if at the end, to the end of the epoch; moves `position`."""
        position = self.position
        return self.iter_from(position if position < len(self._place.rows) else 0)

    def iter_from(self, i: int) -> Iterator[Any]:
        """Iterate from iteration `i` to the end of the epoch; moves `position`."""
        i, self._place.unused = options.as_integer("iteration", i, least=0, most=len(self._place.rows)), 0
        return self._iterate(i)

    def _iterate(self, i: int) -> Iterator[Any]:
        epoch, manifest = self.epoch, self._manifest
        while i < len(self._place.rows):
            self._place.require(epoch, manifest)
            batch = self[i]
            i += 1
            # Before the yield, so that a state saved while the batch is in use begins with the next one.
            self._place.position = i
            yield batch

    def remaining(self) -> range:
        """Return the iterations from `position` to the end, as `sampler` of a plain DataLoader that resumes."""
        position, self._place.unused = self.position, 0
        return range(position, len(self._place.rows))

    def sampler(self) -> PackedSampler:
        """Make the `sampler` of a StatefulDataLoader that saves its own state: whole epochs, or the rest of one."""
        self._place.unused = 0
        return PackedSampler(self._place, self._read_state)

    def step_of(self, i: int) -> int:
        """Return the optimizer step of iteration `i`; `num_steps` for the iteration after the last."""
        rows = self._place.rows
        return rows.step_of(options.as_integer("iteration", i, least=0, most=len(rows)))

    def predicted_seconds(self, i: int) -> float | None:
        """Return the predicted seconds of the whole step of iteration `i`.

        None if the set was planned without a model of the GPUs (`hbpack pack --model M --gpu G`, or `--profile P`).
        """
        i = options.as_integer("iteration", i, least=0, most=len(self._place.rows) - 1)
        seconds = self._place.rows.columns.get("step_seconds")
        return None if seconds is None else float(seconds[self._place.rows.firsts[i]])

    def set_epoch(self, epoch: int) -> None:
        """Go to iteration 0 of `epoch`; the position does not change if this is the current epoch.

        Call it between two passes over a loader, not during one. It also reaches persistent workers.
        """
        self._place.set_epoch(epoch)

    def state_dict(self, iteration: int | None = None) -> dict[str, Any]:
        """Return where to resume, the same on every rank.

        `iteration` is the first one not yet used, ``batch["iteration"] + 1``; None: the one after the last that this
        object returned, which is only right without workers."""
        rows = self._place.rows
        i = self._place.next if iteration is None else iteration
        return self._place.state(rows, options.as_integer("iteration", i, least=0, most=len(rows)))

    def begins_at(self, state: dict[str, Any]) -> bool:
        """Whether this set was rebalanced where the run of `state` stopped: then it begins there, and loads none."""
        return begins_at(parse_state(state, "the loader state"), self._manifest)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place of `state`; if its epoch was over, to the start of the next. Earlier iterations are an error
        until you call `remaining`, `sampler` or `iter_from`, iterate, or go to another epoch.

        Raises:
            FormatError: the state is of another packed set, or of a version that was removed, or does not fit.
            ConfigError: a StatefulDataLoader without `sampler` loads it, or lengths of another version were asked for.
        """
        epoch, iteration, is_over = self._read_state(state, keeps_epoch=False)
        if not is_left_to_sampler(self._place):
            self.set_epoch(epoch + 1 if is_over else epoch)
            self._place.resume_at(0 if is_over else iteration)
            self._place.unused = self._place.position

    def _read_state(self, state: Any, *, keeps_epoch: bool = True) -> tuple[int, int, bool]:
        """Read a state, see `read_state`, and go to its version, in the current epoch or in the state's."""
        found = parse_state(state, "the loader state")
        name = version_beside(self._storage.root, found.planned_fingerprint, self.path)
        epoch = self.epoch if keeps_epoch else found.epoch
        other = self if name is None else PackedDataset(name, epoch=epoch, **self._given)
        result = read_state(found, other._manifest, repr(str(other.path)))
        if other is not self:
            lengths = [[(of.num_steps, of.num_iterations) for of in each._manifest.epochs] for each in (self, other)]
            if self._place.is_counted and lengths[0] != lengths[1]:
                raise ConfigError(
                    f"the loader state is of {name!r}, and the lengths of another version were used: open {name!r}"
                )
            self._become(other)
        return result

    def _become(self, other: PackedDataset) -> None:
        """Read another version from now on, as do this object's samplers."""
        self._place.move(other._place)
        self.__dict__.update(other.__dict__ | {"path": self.path, "_place": self._place})

    def close(self) -> None:
        """Close the files, and wait for what is being fetched; reading opens files again.

        Call it before you move or remove the cache of a remote set in a running process. Batches remain valid.
        """
        self._shards.close()
