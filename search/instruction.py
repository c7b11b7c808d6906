"""What a task tells the policy beside the question."""

from __future__ import annotations

from dataclasses import dataclass

from stepsearch.search.parameters import require_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructed:
    """Words a question with an instruction.

    Attributes:
        instruction: what the policy is told beside the question: put in the place of `{question}`
            when that occurs, else after a blank line; empty leaves the question as it is.
    """

    instruction: str = ""

    def __post_init__(self) -> None:
        require_text("task.instruction", self.instruction)

    def word(self, question: str) -> str:
        """The question with the instruction."""
        if "{question}" in self.instruction:
            return self.instruction.replace("{question}", question)
        return f"{question}\n\n{self.instruction}" if self.instruction else question
