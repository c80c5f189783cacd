"""What the commands that make models and heads are given."""

from tests.compiling.conftest import converter_folder as converter_folder
from tests.training.conftest import prompts as prompts
