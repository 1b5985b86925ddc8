"""A program of one process, ported to run in several instances; losses in other files."""

from pathlib import Path

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

FIXTURES = Path(__file__).parent / "rules"


def ported(popdist=False, **files):
    sources = [Source(f"{name}.py", text) for name, text in files.items()]
    return port(Project(sources), popdist=popdist)


def test_a_program_of_one_process_gets_instances_when_asked():
    text = (FIXTURES / "evaluation.in.py").read_text().replace("  # ABP", "  # was ABP")
    result = ported(popdist=True, evaluation=text)
    after = result.after["evaluation.py"]
    options = (
        "if popdist.isPopdistEnvSet():\n"
        "    popdist.init()\n"
        "    opts = popdist.poptorch.Options()\n"
        "    opts.randomSeed(42)\n"
        "else:\n"
        "    opts = poptorch.Options()\n"
    )
    assert options in after
    assert "popdist" not in ported(evaluation=text).after["evaluation.py"]
    assert ported(popdist=True, evaluation=after).after["evaluation.py"] == after


def test_losses_in_other_files_move_into_the_program():
    losses = (
        "import torch\n\n\n"
        "def total(model, x, y):\n"
        "    return (model(x) - y).square().mean() + 0.1 * model(x).abs().mean()\n"
    )
    main = (
        "import torch\n"
        "from losses import total\n\n"
        "model = torch.nn.Linear(4, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(20):\n"
        "    x, y = torch.randn(8, 4), torch.randn(8, 3)\n"
        "    optimizer.zero_grad()\n"
        "    loss = total(model, x, y)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    result = ported(main=main, losses=losses)
    assert result.verdict is Verdict.MODIFIED
    assert result.after["losses.py"] == losses
    assert "        loss = total(self.model, x, y)\n" in result.after["main.py"]
    assert "    loss = training_model(x, y)\n" in result.after["main.py"]
    assert "backward" not in result.after["main.py"]


def test_a_method_that_computes_the_loss_goes_into_the_program():
    text = (
        "import torch\n\n\n"
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.model = torch.nn.Linear(4, 3)\n"
        "        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)\n\n"
        "    def compute_loss(self, x, y):\n"
        "        return torch.nn.functional.mse_loss(self.model(x), y)\n\n"
        "    def train_step(self, x, y):\n"
        "        self.optimizer.zero_grad()\n"
        "        loss = self.compute_loss(x, y)\n"
        "        loss.backward()\n"
        "        self.optimizer.step()\n"
        "        return loss.item()\n\n\n"
        "trainer = Trainer()\n"
        "for step in range(20):\n"
        "    print(trainer.train_step(torch.ones(8, 4) * step, torch.ones(8, 3)))\n"
    )
    result = ported(trainer=text)
    assert result.verdict is Verdict.MODIFIED
    after = result.after["trainer.py"]
    assert "ModelWithLoss(self.model, self.compute_loss)" in after
    assert "        loss = self.training_model(x, y)\n" in after
