import pathlib
import subprocess
import sys
import time

import pytest

from jaxrl_agents.corpus import grep

ROOT = pathlib.Path(__file__).parents[2]


def test_the_first_matching_texts_are_found_in_order():
  texts = ["a cat", "dog", "Cat", "cats", "cat"]
  assert grep.matching(texts, "cat", limit=2) == [0, 3]
  assert grep.matching(texts, "(?i)^cat", limit=5) == [2, 3, 4]
  assert grep.matching(texts, "bird") == []
  assert grep.matching(texts, "cat", limit=0) == []


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "((a{1,1000}){1,1000}){1,1000}b"])
def test_a_catastrophic_pattern_ends_at_the_time_limit(pattern):
  start = time.process_time()
  with pytest.raises(grep.GrepError, match=r"took longer than 0\.2 s; use a simpler pattern"):
    grep.matching(["a" * 3000 + "!"] * 50, pattern, timeout_s=0.2)
  assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
  ("pattern", "message"),
  [
    ("[", "invalid pattern: unterminated character set"),
    ("(?P<x>a)(?P<x", "invalid pattern"),
    ("a{99999999999999}", "repeats too often"),
    ("a{1000000000}", "repeats too often"),
    ("a{1000000000,}", "repeats too often"),
    ("((a{1000}){1000}){1000}", "repeats too often"),
    ("(?<=(?i)a{10000000})b", "repeats too often"),
    ("(?x)a{1 000 000 000}", "repeats too often"),
    ("(?#[)a{1000000000}]", "repeats too often"),
    ("(?ix)a{1#}\n000000000}", "comments"),
    ("(?R){1000}", "recursion"),
    ("(a(?1)b)", "recursion"),
    ("(?x)(?<n>a( ? & n)b)", "recursion"),
    ("(" * 240 + ")" * 240, ""),
    (" ", "the pattern is empty"),
    ("x" * 501, "has 501 characters, at most 500"),
  ],
)
def test_an_unusable_pattern_is_a_typed_error_or_finds_nothing(pattern, message):
  if message:
    with pytest.raises(grep.GrepError, match=message):
      grep.matching(["text"], pattern)
  else:
    assert grep.matching(["text"], pattern) == [0]  # empty groups match anywhere


@pytest.mark.parametrize("pattern", ["[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", r"\d{4}-\d{2}"])
def test_ordinary_counts_are_allowed(pattern):
  text = "id 123e4567-e89b-12d3-a456-426614174000 of 2024-05"
  assert grep.matching([text], pattern) == [0]


@pytest.mark.slow
def test_no_pattern_of_random_syntax_takes_much_memory_to_compile(tmp_path):
  """In a process of its own, which may take 600 MB of addresses beyond its start."""
  script = tmp_path / "compile.py"
  script.write_text(
    "import pathlib, random, resource, sys\n"
    "from jaxrl_agents.corpus import grep\n"
    "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
    "resource.setrlimit(resource.RLIMIT_AS, (used + 600_000_000,) * 2)\n"
    "parts = ['a', 'ab', '(', ')', '[', ']', '|', '*', '(?:', '(?i)', '(?x)', '(?#', '#', ' ',\n"
    "         '\\n', '\\\\', '{', '}', ',', '0', '9', '{1000}', '{99999999}', '{9,}', '{,7}',\n"
    "         '(?<=', '{e<=3}', '\\\\p{L}', '(?V1)', '(?R)', '{100}', '(a{50}){50}', '^']\n"
    "draw = random.Random(0)\n"
    "for _ in range(20_000):\n"
    "  pattern = ''.join(draw.choices(parts, k=draw.randint(1, 12)))\n"
    "  try:\n"
    "    grep.matching(['ab'], pattern, timeout_s=0.5)\n"
    "  except grep.GrepError as error:\n"
    "    assert 'MemoryError' not in str(error) and 'memory' not in str(error), pattern\n"
  )
  done = subprocess.run(
    [sys.executable, script], capture_output=True, text=True, timeout=120, cwd=ROOT
  )
  assert done.returncode == 0, done.stderr
