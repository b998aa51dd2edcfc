"""The pages whose programs need more packages than the tests of the package itself."""

import forks
import pytest
from test_documents import ELSEWHERE, ROOT, python_blocks

# One worker runs them and what else starts clusters, of which two would share the processors.
pytestmark = pytest.mark.xdist_group("ray")
BLOCKS = [(path.name, number, block) for path in ELSEWHERE for number, block in enumerate(python_blocks(path))]


@pytest.mark.parametrize("block", [pytest.param(block, id=f"{name}-{number}") for name, number, block in BLOCKS])
def test_every_python_block_runs(block):
    # What a program starts, such as workers of a cluster, is to import the same package.
    result = forks.run(forks.program, block, PYTHONPATH=str(ROOT / "src"))
    assert result.code == 0, f"{block}\n{result.said[-4000:]}"


def test_every_integration_has_a_block_and_optuna_ten_lines():
    text = "\n".join(block for _, _, block in BLOCKS)
    for name in ("lightning", "transformers", "accelerate", "torch.utils.tensorboard", "optuna"):
        assert f"\nimport {name}" in f"\n{text}" or f"\nfrom {name} import" in text
    (tuning,) = [block.partition("import optuna")[2] for _, _, block in BLOCKS if "import optuna" in block]
    assert 1 + sum(bool(line.strip()) for line in tuning.splitlines()[1:]) <= 10
