"""Writes the reward, and how far off the number is."""

import json
import pathlib

file = pathlib.Path("/app/errors.txt")
text = file.read_text().strip() if file.is_file() else ""
number = int(text) if text.isdecimal() else 0
reward = {"reward": float(number == 3), "off_by": abs(number - 3)}
pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps(reward))
