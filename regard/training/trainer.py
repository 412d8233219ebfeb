"""The loop: batches, steps, validations and checkpoints, until the recipe's end, a signal, or trouble that it can explain."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard.data.collate import Batch, Form
from regard.data.loader import Cursor, Share, Step, steps
from regard.data.plan import Plan, make_plan
from regard.errors import ConfigError, TrainingError, out_of_memory
from regard.evaluation.metrics import Confusion
from regard.models import build
from regard.nn.backends import choose, varlen_starts
from regard.recipe import Recipe
from regard.training.average import Ema
from regard.training.checkpoint import Checkpoint, Checkpoints
from regard.training.distributed import World, last_part_only, load_optimizer, load_weights, spread, whole, wrap
from regard.training.fused import fuse
from regard.training.objective import Objective, compiles
from regard.training.optim import clip, freeze, learning_rate, make_optimizer
from regard.training.precision import keep_half
from regard.training.prepare import Prepared
from regard.training.replay import Replayed
from regard.training.report import Report
from regard.training.validate import Validation, tested, validate

BAD_IN_A_ROW = 5  # steps without a finite loss before training stops


@dataclass
class Progress:
    """Where a run stands; all of it is in a checkpoint."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    best: float | None = None
    waiting: int = 0  # validations since the best one
    accumulate: int = 1
    bad: int = 0  # steps in a row whose loss was not finite
    skipped: int = 0  # of those in all


@dataclass(frozen=True)
class Outcome:
    """What a step came to. A GPU may still be working on the figures: mean loss (NaN where the step was left out), norm, tokens."""

    step: int
    lr: float
    figures: Tensor


class StoppedError(TrainingError):
    """Training was asked to stop, and has saved where it stood."""


class Trainer:
    """A model on its way. Everything that changes is in it, and all that must last goes into its checkpoints."""

    def __init__(self, recipe: Recipe, prepared: Prepared, checkpoints: Checkpoints, world: World, report: Report) -> None:
        self.recipe, self.settings, self.prepared = recipe, recipe.training, prepared
        self.checkpoints, self.world, self.report = checkpoints, world, report
        self.progress = Progress(accumulate=self.settings.accumulate)
        self.saved = -1  # the step of the last checkpoint
        self.pending: list[Outcome] = []  # of steps that were taken but not looked at
        self.looked = time.perf_counter()  # when that was done last
        self.on_gpu = world.device.type == "cuda"
        self.packed = self._packs()
        torch.manual_seed(self.settings.seed)
        backend = "varlen" if self.packed and self.on_gpu and self._varlen_can() else "sdpa"
        model = build(prepared.config, backend)
        if prepared.beginning is not None:
            prepared.beginning.give(model, report.say)
        model = model.to(world.device)
        freeze(model, self.settings.freeze)
        keep_half(model)
        fuse(model)
        compiled = self.settings.compile == "yes" or (self.settings.compile == "auto" and self.on_gpu and compiles(world.device))
        tables = self.packed and backend != "varlen"
        self.objective = Objective(model, self.settings.label_smoothing, r_drop=self.settings.r_drop, compiled=compiled, tables=tables)
        if self.settings.parallel == "fsdp" and self.settings.optimizer == "muon" and world.size > 1:
            raise ConfigError("Muon needs whole matrices, and fsdp splits them; use optimizer = 'adamw' or parallel = 'ddp'")
        self.wrapped = wrap(self.objective, world, self.settings.parallel)
        self.optimizer = make_optimizer(model, self.settings, fused=self.on_gpu)
        self.ema = Ema(model.state_dict(), self.settings.ema) if self.settings.ema else None
        self.replayed: Replayed | None = None
        if compiled and self._replays():
            self.replayed = Replayed(lambda batch, counts: self._learn((batch,), counts), forget=self.optimizer.zero_grad)
        torch.manual_seed(self.settings.seed + 1 + world.rank)  # dropout differs between processes, weights must not

    def train(self) -> None:
        """Goes on from where the run stands to its last step."""
        with _stop_requested() as requested, self.report:
            stepping = self._steps()
            self.looked = time.perf_counter()
            try:
                while self.progress.step < self.settings.steps and not self._out_of_patience():
                    stepping = self._one_step(stepping)
                    ended = self.progress.step == self.settings.steps
                    if self.progress.step % self.settings.validate_every == 0 or ended:
                        self._validate()
                    elif self.progress.step % self.settings.checkpoint_every == 0:
                        self.save()
                    if not self.pending:
                        self.looked = time.perf_counter()  # validations and checkpoints are no training
                    if self._anyone(requested()):
                        if self.saved != self.progress.step:
                            self.save(passing=True)
                        raise StoppedError(f"stopped after step {self.progress.step:,}, with all of it saved")
            finally:
                stepping.close()  # type: ignore[attr-defined]

    def resume(self, checkpoint: Checkpoint) -> None:
        """Goes back to where a checkpoint was taken, to the last bit."""
        state = checkpoint.state()
        with checkpoint.understood():
            self._take_up(state, checkpoint)

    def _take_up(self, state: dict[str, Any], checkpoint: Checkpoint) -> None:
        for name, was in state.get("settings", {}).items():  # earlier checkpoints don't have them
            if was != (now := self._changeable().get(name, was)):
                self.report.say(f"{name} = {now!r}, and was {was!r} up to step {checkpoint.step:,}")
        for what, made in self._made_for().items():
            if state["made_for"].get(what, made) != made:
                raise TrainingError(f"the {what} changed since step {checkpoint.step}; put it back, or start again in another folder")
        load_weights(self.objective.model, checkpoint.weights())
        load_optimizer(self.optimizer, state["optimizer"])
        if self.ema is not None:
            own = self.ema.state_dict()["weights"]
            kept = state["ema"]
            self.ema.load_state_dict({**kept, "weights": {name: spread(tensor, own[name]) for name, tensor in kept["weights"].items()}})
        progress = dict(state["progress"])
        self.progress = Progress(**{**progress, "cursor": Cursor(**progress["cursor"])})
        randomness = state["random"].get(self.world.rank)
        if randomness is not None:  # another number of processes than before: dropout goes on with fresh numbers
            torch.set_rng_state(randomness["cpu"])
            if self.on_gpu and "cuda" in randomness:
                torch.cuda.set_rng_state(randomness["cuda"], self.world.device)

    def save(self, score: float | None = None, *, passing: bool = False) -> None:
        """A checkpoint of everything; every process takes part, one writes."""
        self._settle()
        weights = whole(self.objective.model.state_dict())
        state = {
            "optimizer": whole(self.optimizer.state_dict()),
            "ema": None if self.ema is None else whole(self.ema.state_dict()),
            "progress": asdict(self.progress),
            "random": self.world.gather(self._randomness()),
            "made_for": self._made_for(),
            "settings": self._changeable(),
        }
        if self.world.first:
            self.checkpoints.save(self.progress.step, weights, state, score=score, passing=passing)
        self.saved = self.progress.step
        self.world.wait()

    def _one_step(self, stepping: Iterator[Step]) -> Iterator[Step]:
        step = next(stepping)
        try:
            figures = self._update(step)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return self._smaller_parts(stepping, error)
        self.progress.step += 1
        self.progress.cursor = step.after
        self.pending.append(Outcome(self.progress.step, self._lr(), figures))
        self.report.tick(self.progress.step)
        if self._due():
            self._settle()
        return stepping

    def _update(self, step: Step) -> Tensor:
        """One update from this process's parts of a batch: mean loss, norm of the gradient, tokens. Nothing in it waits for a GPU."""
        counts = self._sum(sum(part.count for part in step.parts), sum(part.tokens for part in step.parts))
        self.optimizer.set_lr(self._lr(next_step=True))
        if self.replayed is not None and len(step.parts) == 1:
            figures = self.replayed(step.parts[0], counts)
        else:
            figures = self._learn(step.parts, counts)
        if self.ema is not None:
            self.ema.update(self.objective.model.state_dict())
        return figures

    def _learn(self, parts: Sequence[Batch], counts: Tensor) -> Tensor:
        """Forwards, backwards and the step, all processes together. Where the loss or the gradient is not finite, nothing is changed."""
        count, tokens = counts
        total = torch.zeros((), device=self.world.device)
        for number, part in enumerate(parts, 1):
            last_part_only(self.wrapped, number == len(parts))
            with self._precision():
                part_total = self.wrapped(part)
            # Wrappers take the mean over processes; what is wanted is the sum over all, divided by all that counts.
            (part_total * (self.world.size / count.clamp(min=1)).to(part_total.dtype)).backward()
            total += part_total.detach()
        norm = clip(self.objective.parameters(), self.settings.clip)
        total, norm = self._sum(total, norm / self.world.size)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        self.optimizer.step(unless=~finite)
        self.optimizer.zero_grad()
        return torch.stack((torch.where(finite, total / count.clamp(min=1), math.nan), norm, tokens))

    def _due(self) -> bool:
        """Whether to look at the figures now. That takes waiting for them, and meanwhile a GPU would have nothing to do."""
        return not self.on_gpu or self.progress.step % self.settings.log_every == 0 or self.progress.step == self.settings.steps

    def _settle(self) -> None:
        """Looks at the figures of the steps since it was last done, tells of them, and counts those that were left out."""
        if not self.pending:
            return
        figures = torch.stack([outcome.figures for outcome in self.pending]).tolist()
        now = time.perf_counter()
        seconds, self.looked = (now - self.looked) / len(figures), now
        outcomes, self.pending = self.pending, []
        for outcome, (loss, norm, tokens) in zip(outcomes, figures, strict=True):
            if math.isfinite(loss):
                self.progress.bad = 0
            else:
                self._bad_step(outcome.step)
            self.report.step(outcome.step, self.settings.steps, loss, norm, outcome.lr, tokens, seconds)

    def _bad_step(self, step: int) -> None:
        self.progress.bad += 1
        self.progress.skipped += 1
        self.report.say(f"step {step}: the loss is not finite; the step is left out ({self.progress.skipped} so far)")
        if self.progress.bad >= BAD_IN_A_ROW:
            raise TrainingError(
                f"the loss was not finite {self.progress.bad} times in a row, up to step {step}; "
                "lower training.lr or lengthen training.warmup, and resume"
            )

    def _sum(self, *values: Tensor | float) -> Tensor:
        """The sums over all processes, where they were computed: no one waits for them."""
        numbers = torch.stack([_on(self.world.device, value) for value in values])
        if self.world.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def _smaller_parts(self, stepping: Iterator[Step], error: Exception) -> Iterator[Step]:
        """Works through each batch in twice as many parts: less memory, the same result."""
        if self.world.size > 1 or self.progress.accumulate >= 256:
            raise TrainingError(f"out of memory at step {self.progress.step + 1}; lower training.batch_tokens") from error
        stepping.close()  # type: ignore[attr-defined]
        self.replayed = None  # parts are not replayed, and a recording keeps its memory
        self.optimizer.zero_grad()
        if self.on_gpu:
            torch.cuda.empty_cache()
        self.progress.accumulate *= 2
        self.report.say(f"out of memory: each batch is now worked through in {self.progress.accumulate} parts, with the same result")
        return self._steps()

    def measure(self) -> Validation:
        """How good the model is on the dev set, as it is now."""
        found = validate(self.recipe, self.prepared, self.objective, self.world, self._form(packed=False), self._precision)
        return self.world.share(found)  # so that all processes decide alike

    def test(self) -> Confusion | None:
        """How good a classifier is on the test examples, as it is now."""
        return tested(self.recipe, self.prepared, self.objective, self.world, self._form(packed=False), self._precision)

    def _validate(self) -> None:
        self._settle()
        if not len(self.prepared.dev):
            self.save()
            return
        with self._averaged():
            measured = self.measure()
        better = math.isfinite(measured.score) and (self.progress.best is None or measured.score > self.progress.best)
        self.progress.waiting = 0 if better else self.progress.waiting + 1
        self.progress.best = measured.score if better else self.progress.best
        self.report.validation(self.progress.step, measured, better)
        self.save(measured.score)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The moving average in the model's place, where there is one."""
        if self.ema is None:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.objective.model.state_dict().items()}
        self.objective.model.load_state_dict(self.ema.weights())
        try:
            yield
        finally:
            self.objective.model.load_state_dict(own)

    def _steps(self) -> Iterator[Step]:
        store, data = self.prepared.train, self.recipe.data

        def plan_of(epoch: int) -> Plan:
            return make_plan(
                store.lengths,
                batch_tokens=self.settings.batch_tokens,
                seed=self.settings.seed,
                epoch=epoch,
                groups=store.groups,
                weights=[file.weight for file in data.train],
                packed=self.packed,
            )

        share = Share(self.world.rank, self.world.size, self.progress.accumulate)
        return steps(store, plan_of, self._form(packed=self.packed), share, self.progress.cursor, self.world.device)

    def _form(self, *, packed: bool) -> Form:
        config, settings = self.prepared.config, self.settings
        target = self.prepared.vocabularies.target
        parts = self.world.size * self.progress.accumulate
        return Form(
            self.recipe.task,
            seed=settings.seed,
            max_length=self.recipe.data.max_length,
            vocabulary=config.vocabulary,
            pad=config.pad_token,
            mask=target.mask_id if self.recipe.task == "mlm" else -1,  # a tokenizer from elsewhere may have none
            special=target.special_ids,
            mask_share=settings.mask_share,
            prefix_share=settings.prefix_share if getattr(config, "mask", "causal") == "prefix" else None,
            # No part of a batch is longer than an even share and one example.
            packed=-(-settings.batch_tokens // parts) + (0 if parts == 1 else self.recipe.data.max_length + 1) if packed else None,
        )

    def _packs(self) -> bool:
        """Whether batches are packed rows: on a GPU, where the model allows it."""
        layout = self.settings.layout
        if layout == "padded" or self.prepared.config.kind == "rnn":
            return False
        return layout == "packed" or (self.on_gpu and self._varlen_can())

    def _varlen_can(self) -> bool:
        config = self.prepared.config
        if config.kind == "rnn" or self.settings.precision == "float32":
            return False
        try:
            choose("varlen", positions=config.positions, mask=getattr(config, "mask", None), dropout=config.attention_dropout)
        except ConfigError:
            return False
        return not self.on_gpu or varlen_starts(torch.bfloat16, self.world.device, config.key_width)

    def _replays(self) -> bool:
        """Whether steps can be recorded: all of one shape, on one GPU, with an optimizer that lives there."""
        of_one_shape = self.packed and self._varlen_can() and self.prepared.config.kind != "rnn"
        return of_one_shape and self.on_gpu and self.world.size == 1 and self.optimizer.fused

    def _precision(self) -> AbstractContextManager[Any]:
        half = self.settings.precision == "bfloat16" or (self.settings.precision == "auto" and self.on_gpu)
        return torch.autocast(self.world.device.type, torch.bfloat16) if half else nullcontext()

    def _lr(self, *, next_step: bool = False) -> float:
        return learning_rate(self.settings, self.progress.step + next_step, self.prepared.config.width)

    def _made_for(self) -> dict[str, Any]:
        """What a checkpoint makes sense with; a learning rate or a number of steps may change, these may not."""
        config = self.prepared.config.model_dump(mode="json", exclude={"task"})
        vocabularies = self.prepared.vocabularies
        return {
            "data or tokenizer": self.prepared.key,
            "vocabulary": [vocabularies.target.fingerprint, vocabularies.source.fingerprint],  # earlier checkpoints don't have it
            "model": config,
            "setting of training.ema": bool(self.settings.ema),
        }

    def _changeable(self) -> dict[str, Any]:
        """What another part of a run may have otherwise, though it makes other weights."""
        sections = {name: getattr(self.recipe, name).model_dump() for name in ("training", "decoding")}
        return {f"{name}.{key}": value for name, settings in sections.items() for key, value in settings.items()}

    def _randomness(self) -> dict[str, torch.Tensor]:
        kept = {"cpu": torch.get_rng_state()}
        if self.on_gpu:
            kept["cuda"] = torch.cuda.get_rng_state(self.world.device)
        return kept

    def _out_of_patience(self) -> bool:
        return bool(self.settings.patience) and self.progress.waiting >= self.settings.patience

    def _anyone(self, asked: bool) -> bool:
        """Whether a process was asked to stop; several agree on it when they look at their figures, since asking takes waiting."""
        if self.world.size == 1:
            return asked
        return not self.pending and self.world.sum(float(asked))[0] > 0


def _on(device: torch.device, value: Tensor | float) -> Tensor:
    """A number where it is needed; a fill instead of a copy, which would wait for the device."""
    return value.to(torch.float64) if isinstance(value, Tensor) else torch.full((), value, dtype=torch.float64, device=device)


@contextmanager
def _stop_requested() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill end training after the step that is under way; a second Ctrl-C ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup and background jobs of scripts are not meant by Ctrl-C
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread: signals are someone else's
        pass
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
