"""The game: guess a number from 1 to `size`; each wrong guess is answered "higher" or "lower"."""

from jaxrl_agents.types import Context, Message


class NumberGame:
  """One game. The policy wins if it names the number within `options.guesses` turns."""

  def __init__(self, task, options):
    self.number, self.left, self.won = task.facts["number"], options.guesses, False
    self.messages = [Message("user", task.prompt)]

  async def start(self):
    return self._context()

  async def step(self, reply):
    self.left -= 1
    text = reply.content.strip()
    guess = int(text) if text.isdecimal() else 0
    self.won = guess == self.number
    hint = "higher" if guess < self.number else "lower"
    self.messages += [reply, Message("user", hint)]
    return self._context(done=self.won or not self.left)

  def _context(self, done=False):
    return Context(tuple(self.messages), max_new_tokens=4, done=done, stop="answer" if done else "")

  def rewards(self, trajectory):
    return {"reward": float(self.won), "guesses": float(len(self.messages) // 2)}

  async def close(self):
    pass
