"""Links from the pages to files of the repository outside of docs/.

On GitHub such a link opens the file. In the built site it has to lead to a page: every file that a
page links to is added to the site below `repository/`, Markdown and pictures as they are, source
code as a page with one code block.
"""

import os
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = "repository"
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml"}


def site_path(path):
  """Where a file of the repository lies in the site: "repository/examples/loss.py.md"."""
  added = "" if path.endswith((".md", ".svg")) else ".md"
  return f"{FOLDER}/{path}{added}"


def linked_files(text, folder):
  """{link: path from the root} of the links of a page to files outside of docs/."""
  found = {}
  for link in LINK.findall(text):
    path = posixpath.normpath(posixpath.join(folder, link))
    if not path.startswith("docs/") and (ROOT / path).is_file():
      found[link] = path
  return found


def on_files(files, config):
  """Adds the files that pages link to, and those that these link to in turn."""
  waiting = sorted(ROOT.glob("docs/**/*.md"))
  added = set()
  while waiting:
    page = waiting.pop()
    folder = page.parent.relative_to(ROOT).as_posix()
    for path in linked_files(page.read_text("utf-8"), folder).values():
      if path in added:
        continue
      added.add(path)
      source = ROOT / path
      if source.suffix in (".md", ".svg"):
        files.append(File.generated(config, site_path(path), abs_src_path=str(source)))
      else:
        language = LANGUAGES.get(source.suffix, "text")
        text = f"# `{path}`\n\n````{language}\n{source.read_text('utf-8')}````\n"
        files.append(File.generated(config, site_path(path), content=text))
      if source.suffix == ".md":
        waiting.append(source)
  return files


def on_page_markdown(markdown, page, config, files):
  """Turns links to files of the repository into links to their places in the site."""
  source = page.file.src_uri
  inside = source.startswith(f"{FOLDER}/")
  path = source.removeprefix(f"{FOLDER}/") if inside else f"docs/{source}"
  here = posixpath.dirname(source)

  def target(match):
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
    if wanted.startswith("docs/"):
      place = wanted.removeprefix("docs/")
    elif (ROOT / wanted).is_file():
      place = site_path(wanted)
    else:
      return match[0]
    return "](" + posixpath.relpath(place, here or os.curdir)

  return LINK.sub(target, markdown)
