"""Rubrics by which a judge grades episodes of the coding agent.

Composer 2 rewards coding style and communication, Kimi K2.5 strict instruction following, by
several rubrics for each context; neither publishes their words, which are ours. The judge reads the
episode: the request, all calls with their arguments (edits among them), results, the last message.
"""

from jaxrl_agents.agents.rubric import Rubric

RUBRICS = (
  Rubric(
    "code_review",
    {"correctness": 2.0, "scope": 1.0, "style": 1.0},
    {
      "correctness": "The edits repair the cause of the fault, for all inputs, not only for those "
      "that the tests show.",
      "scope": "The edits are as small as the repair allows; nothing else was touched or left "
      "behind.",
      "style": "The new code reads like the code around it; comments say why, where that is not "
      "plain, and hold no thinking.",
    },
  ),
  Rubric(
    "instructions",
    {"compliance": 2.0, "communication": 1.0},
    {
      "compliance": "Every instruction of the request was followed to the letter, those about what "
      "must not be changed included.",
      "communication": "The last message says in a few sentences what was changed and why, and "
      "claims nothing that the record does not show.",
    },
  ),
  Rubric(
    "intent",
    {"purpose": 2.0, "evidence": 1.0},
    {
      "purpose": "The result does what the author of the request wants of it, not merely what the "
      "words permit; tests are passed by working code, not by special cases.",
      "evidence": "The fault was looked for before it was edited, and the last edit was tested.",
    },
  ),
  Rubric(
    "merge",
    {"acceptance": 1.0},
    {"acceptance": "A strict maintainer of this repository would merge the change as it is."},
    held_out=True,
  ),
)
