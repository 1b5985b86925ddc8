"""Number of samples that a call of a wrapped model consumes, with its factors."""

from dataclasses import dataclass
from typing import Any, Self

from poptorch.options import Options


@dataclass(frozen=True)
class BatchSize:
    """The factors of a combined batch.

    Attributes:
        rows: Rows of a micro-batch; None if they are not known beforehand.
        device_iterations: Steps of one call.
        gradient_accumulation: Micro-batches of one weight update on one replica.
        replicas: Replicas with inputs of their own.
    """

    rows: int | None
    device_iterations: int
    gradient_accumulation: int
    replicas: int

    @classmethod
    def of(cls, options: Options, batch_size: int | None, batch_sampler: Any) -> Self:
        """Read the factors; a batch sampler may have its own `batch_size`."""
        return cls(
            batch_size if batch_sampler is None else getattr(batch_sampler, "batch_size", None),
            options.device_iterations,
            options.Training.gradient_accumulation,
            options.replication_factor // options.input_group_size,
        )

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one call consumes."""
        return self.device_iterations * self.gradient_accumulation * self.replicas

    @property
    def combined(self) -> int | None:
        """Rows that one call consumes, if known."""
        return None if self.rows is None else self.rows * self.micro_batches

    def spelled_out(self, count_rows: bool, processes: int = 1) -> str:
        """Return for example "16 = batch_size 2 x deviceIterations 4 x ...".

        Args:
            count_rows: Rows rather than micro-batches.
            processes: How many processes need as many each.
        """
        factors = {
            "deviceIterations": self.device_iterations,
            "gradientAccumulation": self.gradient_accumulation,
            "replicas": self.replicas,
        }
        total = self.micro_batches * processes
        if count_rows and self.rows is not None:
            factors = {"batch_size": self.rows, **factors}
            total *= self.rows
        if processes > 1:
            factors["processes"] = processes
        return f"{total} = {' x '.join(f'{name} {count}' for name, count in factors.items())}"
