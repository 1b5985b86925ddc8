"""Training, validation and inference of the network."""

import os

import torch

from base import TrainerBase, logger
from events import EventFetcher
from losses import LossCalculator
from network import PlaneNet
from settings import ComputeMode, OptimizerKind, Precision


class Trainer(TrainerBase):
    def __init__(self, args):
        super().__init__(args)
        self._train_data = EventFetcher(args.run.minibatch_size, seed=1)
        self._aux_data = EventFetcher(args.run.minibatch_size, seed=2)

    def initialize(self):
        torch.manual_seed(11)
        self.init_network()
        if self.is_training():
            self.init_optimizer()
        self.restore_model()
        self._net = self._net.to(self.default_device())
        if self.is_training():
            self.loss_calculator = LossCalculator()
        count = sum(each.numel() for each in self._net.parameters())
        logger.info(f"Parameters: {count}")

    def init_network(self):
        self._raw_net = PlaneNet()
        if self.args.run.compute_mode == ComputeMode.XPU:
            self._net = self._raw_net.to(memory_format=torch.channels_last)
        else:
            self._net = self._raw_net

    def init_optimizer(self):
        if self.args.mode.optimizer.name == OptimizerKind.rmsprop:
            self._opt = torch.optim.RMSprop(self._net.parameters(), 1.0, eps=1e-4)
        else:
            self._opt = torch.optim.Adam(self._net.parameters(), 1.0)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self._opt, self.rate)
        if (
            self.args.run.precision == Precision.mixed
            and self.args.run.compute_mode == ComputeMode.GPU
        ):
            self.scaler = torch.amp.GradScaler("cuda")

    def rate(self, step):
        return self.args.mode.optimizer.learning_rate * min(1.0, (step + 1) / 5)

    def default_device(self):
        if self.args.run.compute_mode == ComputeMode.GPU:
            return torch.device("cuda")
        elif self.args.run.compute_mode == ComputeMode.XPU:
            return torch.device("xpu")
        elif self.args.run.compute_mode == ComputeMode.CPU:
            return torch.device("cpu")
        raise ValueError(f"no device for {self.args.run.compute_mode}")

    def to_torch(self, minibatch_data):
        device = self.default_device()
        for key in ("image", "label"):
            minibatch_data[key] = torch.tensor(minibatch_data[key], device=device)
        if self.args.run.precision == Precision.mixed:
            minibatch_data["image"] = minibatch_data["image"].half()
        return minibatch_data

    def restore_model(self):
        folder, _, latest = self.get_model_filepath()
        if not os.path.isfile(latest):
            logger.info("No checkpoint, the weights are new")
            return
        with open(latest) as file:
            name = file.read().strip()
        state = torch.load(os.path.join(folder, name), weights_only=True)
        self._net.load_state_dict(state["state_dict"])
        if self.is_training():
            self._opt.load_state_dict(state["optimizer"])
            self.lr_scheduler.load_state_dict(state["scheduler"])
        self._global_step = state["global_step"]
        logger.info(f"Restored step {self._global_step}")

    def save_model(self):
        folder, path, latest = self.get_model_filepath()
        os.makedirs(folder, exist_ok=True)
        state = {
            "global_step": self._global_step,
            "state_dict": self._net.state_dict(),
            "optimizer": self._opt.state_dict(),
            "scheduler": self.lr_scheduler.state_dict(),
        }
        torch.save(state, path)
        with open(latest, "w") as file:
            file.write(os.path.basename(path))

    def forward_pass(self, minibatch_data, net=None):
        with torch.no_grad():
            minibatch_data = self.to_torch(minibatch_data)

        labels_image = minibatch_data["label"]
        # The images of all planes go through the network together.
        if net is None:
            logits_image = self._net(minibatch_data["image"])
        else:
            logits_image = net(minibatch_data["image"])

        labels_image = labels_image.long()
        labels_image = torch.chunk(labels_image, chunks=3, dim=1)
        labels_image = [label.squeeze(1) for label in labels_image]
        return logits_image, labels_image

    def compute_metrics(self, logits, labels, loss=None):
        with torch.no_grad():
            metrics = {} if loss is None else {"loss": loss.item()}
            for number, (plane, label) in enumerate(zip(logits, labels)):
                right = (plane.argmax(dim=1) == label).float().mean()
                metrics[f"plane{number}/accuracy"] = right.item()
        return metrics

    def train_step(self):
        self._net.train()
        self._opt.zero_grad()
        with self.timing_context("io"):
            minibatch_data = self._train_data.fetch_next_batch()

        with self.timing_context("forward"):
            if (
                self.args.run.precision == Precision.mixed
                and self.args.run.compute_mode == ComputeMode.GPU
            ):
                with torch.autocast("cuda"):
                    logits_image, labels_image = self.forward_pass(minibatch_data)
            else:
                logits_image, labels_image = self.forward_pass(minibatch_data)

        verbose = self._global_step % 10 == 0

        # The loss is that of the logits
        with self.timing_context("loss"):
            loss = self.loss_calculator(labels_image, logits_image)
        if verbose:
            logger.info("Computed the loss")

        with self.timing_context("backward"):
            if (
                self.args.run.precision == Precision.mixed
                and self.args.run.compute_mode == ComputeMode.GPU
            ):
                self.scaler.scale(loss).backward()
            else:
                loss.backward()

        with self.timing_context("metrics"):
            metrics = self.compute_metrics(logits_image, labels_image, loss)

        with self.timing_context("optimizer"):
            if (
                self.args.run.precision == Precision.mixed
                and self.args.run.compute_mode == ComputeMode.GPU
            ):
                self.scaler.step(self._opt)
                self.scaler.update()
            else:
                self._opt.step()
            self.lr_scheduler.step()
        if self.args.run.compute_mode == ComputeMode.GPU:
            torch.cuda.synchronize()

        self.log(metrics, "train")
        self._global_step += 1

    def val_step(self):
        self._net.eval()
        val_net = self._net
        with torch.no_grad():
            minibatch_data = self._aux_data.fetch_next_batch()
            if (
                self.args.run.precision == Precision.mixed
                and self.args.run.compute_mode == ComputeMode.GPU
            ):
                with torch.autocast("cuda"):
                    logits_image, labels_image = self.forward_pass(minibatch_data, net=val_net)
            else:
                logits_image, labels_image = self.forward_pass(minibatch_data, net=val_net)

            # The loss is that of the logits
            loss = self.loss_calculator(labels_image, logits_image)

            metrics = self.compute_metrics(logits_image, labels_image, loss)
        self.log(metrics, "test")

    def ana_step(self):
        self._net.eval()
        with torch.no_grad():
            minibatch_data = self._aux_data.fetch_next_batch()
            logits_image, labels_image = self.forward_pass(minibatch_data)
        self.log(self.compute_metrics(logits_image, labels_image), "ana")
        self._global_step += 1

    def batch_process(self):
        for iteration in range(self.args.run.iterations):
            if not self.is_training():
                self.ana_step()
                continue
            if iteration and iteration % self.args.run.aux_iterations == 0:
                self.val_step()
            self.train_step()
            if self._global_step % self.args.mode.checkpoint_iteration == 0:
                self.save_model()
        logger.info(f"Finished {self._global_step} steps")
