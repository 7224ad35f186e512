"""Trains the lab model: one schedule of stages, resumable, one process for each core.

    train.py --merges merges.json --out checkpoint.pt [--seed 1]

Run under `train.sh`, which starts two processes whose gradients are averaged. Every step draws its
documents from a generator seeded with (seed, step, process), so a run that was stopped continues
from its checkpoint exactly as if it had not been.

The loss is cross-entropy on the answers plus an auxiliary loss: -log of the attention on the
targets that each document carries (documents.py). Without it a model this small and this briefly
trained stays at "some value of the right kind".
"""

import argparse
import dataclasses
import gc
import os
import random
import time

import torch
from torch import distributed
from torch.nn import functional

import bpe
import documents
import facts
import starting_weights
from model import MASKED, ROWS, Config, Qwen3


@dataclasses.dataclass
class Stage:
    length: int             # tokens of a sequence
    batch: int              # sequences of each process
    steps: int
    rate_start: float       # learning rate, linear from start to end
    rate_end: float
    restate: float          # share of documents that restate the facts instead of asking
    attention: float        # weight of the auxiliary loss
    drop: float             # share of documents with dropped blocks
    reword: float = 0.0     # share of questions with words left out and put in at random
    average: bool = False   # export the mean of the weights over this stage


SCHEDULE = [
    Stage(128, 16, 250, 3e-3, 3e-3, 0.5, 0.3, 0.0),
    Stage(256, 12, 100, 2.5e-3, 2e-3, 0.4, 0.2, 0.0),
    Stage(512, 5, 150, 2e-3, 1.5e-3, 0.25, 0.15, 0.4),
    Stage(1024, 2, 100, 1.5e-3, 1.2e-3, 0.1, 0.1, 0.6),
    Stage(2048, 1, 80, 1.2e-3, 7e-4, 0.05, 0.1, 0.7),
    Stage(512, 5, 200, 8e-4, 5e-4, 0.0, 0.1, 0.6, reword=0.4),
    Stage(2048, 1, 60, 5e-4, 3e-4, 0.0, 0.1, 0.6, reword=0.4),
    Stage(2048, 1, 80, 3e-4, 2e-5, 0.0, 0.1, 0.6, reword=0.3, average=True),
]

WARM_UP_STEPS = 40
GAIN_RATE = 3.0             # learning rate of the norm gains, relative to that of the matrices
GAP_SHARE = 0.6             # sequences with one gap in their positions
GAP_END = 5200              # largest position that a gap may reach
ADAM_BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
FLOOR = 1e-5                # added to attention weights before the logarithm
REPORT_EVERY = 25
SAVE_EVERY = 25


class AttentionLoss:
    """-log(weight on target columns) of the supervised heads, each kind averaged over its rows."""

    def __init__(self, config):
        second = config.group               # the first query head of the second group
        last = config.layers - 1
        self.config = config
        self.heads = [("name", 1, 0), ("key", 1, second), ("broad", last, config.heads - 1)]
        self.heads += [("sharp", last, head) for head in range(config.heads - 1)]
        self.look_back = [(0, 1), (second, 2)]      # layer 0: (head, tokens back)

    def targets(self, layer, docs, length):
        """Yields (kind, head, [(document, row, columns, weights)]) of one layer."""
        for kind, of_layer, head in self.heads:
            if of_layer == layer:
                yield kind, head, [(b, row, columns, weights) for b, doc in enumerate(docs)
                                   for row, columns, weights in doc.targets[kind]
                                   if row < length and max(columns) < length]

    def __call__(self, record, docs, length):
        """record: of Attention.forward. Returns the loss and {kind: mean weight on its targets}."""
        loss, report = 0.0, {}
        for layer, chunks in enumerate(record):
            if layer == 0:
                for head, back in self.look_back:
                    attended = torch.cat([weights[:, head].diagonal(at * ROWS - back, 1, 2)
                                          for at, weights in enumerate(chunks)], dim=1)
                    loss = loss - (attended + FLOOR).log().mean()
                    report[f"back{back}"] = float(attended.detach().mean())
            places = [[] for _ in chunks]
            shares = [[] for _ in chunks]
            spans = [[] for _ in chunks]        # of a chunk: (kind, first place, end, rows)
            for kind, head, rows in self.targets(layer, docs, length):
                first_places = [len(of_chunk) for of_chunk in places]
                for b, row, columns, row_shares in rows:
                    at, row = divmod(row, ROWS)
                    _, heads, height, width = chunks[at].shape
                    first = ((b * heads + head) * height + row) * width
                    places[at] += [first + column for column in columns]
                    shares[at] += [share / len(rows) for share in row_shares]
                for at, first in enumerate(first_places):
                    spans[at].append((kind, first, len(places[at]), len(rows)))
            for weights, of_place, share, of_kind in zip(chunks, places, shares, spans):
                if not of_place:
                    continue
                attended = weights.reshape(-1)[torch.tensor(of_place)]
                loss = loss - (torch.tensor(share) * (attended + FLOOR).log()).sum()
                for kind, first, end, rows in of_kind:
                    total = float(attended[first:end].detach().sum()) / max(1, rows)
                    report[kind] = report.get(kind, 0.0) + total
        return loss, report


def dropped_blocks_mask(rng, docs, dropped, length):
    """(B, 1, T, T), MASKED where an answer row of a dropped document may not look."""
    mask = torch.zeros(len(docs), 1, length, length)
    own = torch.arange(length) // documents.BLOCK
    for b in dropped:
        for begin, end, blocks in documents.visible_blocks(rng, docs[b], length):
            visible = torch.full((int(own[-1]) + 1,), MASKED)
            visible[[block for block in blocks if block <= int(own[-1])]] = 0
            rows = visible[own].repeat(end - begin, 1)
            rows[own[None, :] == own[begin:end, None]] = 0
            mask[b, 0, begin:end] = rows
    return mask


def gapped_positions(rng, docs, length):
    """(B, T) positions; most have one gap, before a fact or a question: far distances without
    the price of long sequences."""
    positions = torch.arange(length).repeat(len(docs), 1)
    for b, doc in enumerate(docs):
        if rng.random() < GAP_SHARE:
            if rng.random() < 0.4 or not doc.turns:
                at = rng.choice([source.begin for source in doc.sources.values()])
            else:
                at = rng.choice(doc.turns).question
            positions[b, at:] += rng.randrange(max(1, GAP_END - length))
    return positions


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = int(os.environ.get("RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        torch.set_num_threads(1 if self.world_size > 1 else os.cpu_count())
        torch.manual_seed(args.seed)
        tokenizer = bpe.Tokenizer.load(args.merges)
        self.writer = documents.Writer(facts.World(tokenizer, args.seed))
        self.config = Config(vocab=len(tokenizer.vocab) + len(tokenizer.added))
        self.model = Qwen3(self.config)
        starting_weights.apply(self.model, tokenizer)
        self.attention_loss = AttentionLoss(self.config)
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        gains = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": WEIGHT_DECAY},
             {"params": gains, "weight_decay": 0.0}], lr=1e-3, betas=ADAM_BETAS)
        self.step = 0               # steps done, over all stages
        self.seconds = 0.0          # training time so far, over all runs
        self.average, self.averaged = None, 0
        self.log = []
        if os.path.exists(args.out):
            self.resume()
        gc.freeze()                 # the word pools stay: the collector need not scan them again
        if self.world_size > 1:
            distributed.init_process_group("gloo", rank=self.rank, world_size=self.world_size)

    # --- checkpoint ----------------------------------------------------------------------------

    def save(self):
        if self.rank != 0:
            return
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                 "config": dataclasses.asdict(self.config), "step": self.step,
                 "seed": self.args.seed, "seconds": self.seconds,
                 "average": self.average, "averaged": self.averaged}
        torch.save(state, self.args.out + ".part")
        os.replace(self.args.out + ".part", self.args.out)

    def resume(self):
        state = torch.load(self.args.out)
        if state["seed"] != self.args.seed:
            raise SystemExit(f"{self.args.out} is of seed {state['seed']}, not {self.args.seed}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.average, self.averaged = state["average"], state["averaged"]

    # --- one step ------------------------------------------------------------------------------

    def losses(self, stage):
        """Draws a batch; returns (loss, losses of learned tokens, are they right, are they values)."""
        rng = random.Random(f"{self.args.seed} {self.step} {self.rank}")
        docs = [self.writer.document(rng, stage.length, rng.random() < stage.restate, stage.reword)
                for _ in range(stage.batch)]
        dropped = [b for b in range(stage.batch) if rng.random() < stage.drop]
        length = stage.length
        mask = dropped_blocks_mask(rng, docs, dropped, length) if dropped else None
        ids = torch.tensor([doc.ids[:length] for doc in docs])
        labels = torch.tensor([doc.labels[1:length + 1] for doc in docs]).view(-1)
        is_value = torch.tensor([doc.is_value[1:length + 1] for doc in docs]).view(-1)
        record = []
        hidden = self.model.hidden(ids, gapped_positions(rng, docs, length), mask, record)
        learned = (labels != documents.IGNORE).nonzero()[:, 0]
        logits = self.model.logits(hidden.reshape(-1, self.config.d_model)[learned])
        token_losses = functional.cross_entropy(logits, labels[learned], reduction="none")
        attention, report = self.attention_loss(record, docs, length)
        # A document may be all facts and no answer: then only the attention loss remains.
        loss = token_losses.sum() / max(1, len(learned)) + stage.attention * attention
        right = (logits.argmax(-1) == labels[learned]).float()
        return loss, token_losses, right, is_value[learned], report

    def average_gradients(self):
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([p.grad.view(-1) for p in parameters])
        distributed.all_reduce(flat)
        flat /= self.world_size
        at = 0
        for p in parameters:
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    def train_step(self, stage, done):
        """One update; `done` steps of the stage came before it."""
        rate = stage.rate_start + (stage.rate_end - stage.rate_start) * done / max(
            1, stage.steps - 1)
        rate *= min(1.0, (self.step + 1) / WARM_UP_STEPS)
        for group, factor in zip(self.optimizer.param_groups, (1.0, GAIN_RATE)):
            group["lr"] = rate * factor
        loss, token_losses, right, is_value, report = self.losses(stage)
        loss.backward()
        if self.world_size > 1:
            self.average_gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        values, others = right[is_value], right[~is_value]
        self.log.append((token_losses.sum().item() / max(1, len(right)),
                         values.mean().item() if len(values) else 1.0,
                         others.mean().item() if len(others) else 1.0))
        return rate, report

    def add_to_average(self):
        """The running mean of the weights over the steps of an averaging stage."""
        weights = self.model.state_dict()
        self.averaged += 1
        if self.averaged == 1:
            self.average = {name: w.clone() for name, w in weights.items()}
            return
        for name, mean in self.average.items():
            mean += (weights[name] - mean) / self.averaged

    # --- the whole schedule --------------------------------------------------------------------

    def run(self):
        first = 0
        for number, stage in enumerate(SCHEDULE, 1):
            while self.step < first + stage.steps:
                started = time.time()
                done = self.step - first
                if stage.average and done == 0:
                    self.averaged = 0
                rate, report = self.train_step(stage, done)
                self.step += 1
                if stage.average:
                    self.add_to_average()
                self.seconds += time.time() - started
                if self.step % REPORT_EVERY == 0 or done == stage.steps - 1:
                    self.report(number, stage, rate, report)
                if self.step % SAVE_EVERY == 0:
                    self.save()
                if self.step == self.args.stop_after:
                    self.save()
                    return
            first += stage.steps
        self.save()

    def report(self, number, stage, rate, attention):
        if self.rank != 0:
            return
        recent = self.log[-REPORT_EVERY:]
        loss, values, others = (sum(entry[i] for entry in recent) / len(recent) for i in range(3))
        shown = " ".join(f"{kind} {weight:.2f}" for kind, weight in attention.items())
        print(f"stage {number} length {stage.length} step {self.step} {self.seconds:.0f} s "
              f"rate {rate:.5f} loss {loss:.3f} right: values {values:.4f} others {others:.4f} "
              f"attention: {shown}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--merges", required=True, help="merges.json of bpe.py")
    parser.add_argument("--out", required=True, help="checkpoint; continued if it exists")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop-after", type=int, default=0, help="stop after this many steps")
    Trainer(parser.parse_args()).run()


if __name__ == "__main__":
    main()
