"""Packages are found with all that they require; those whose files are unknown are refused."""

import sys

import pytest

from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host import packages
from jaxrl_agents.sandbox.host.runtime import Runtime


def installed(folder, name, *requires, record="", url=""):
  info = folder / f"{name}-1.0.dist-info"
  info.mkdir(parents=True)
  lines = [f"Requires-Dist: {each}" for each in requires]
  text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines])
  (info / "METADATA").write_text(f"{text}\n")
  if record is not None:
    (info / "RECORD").write_text(record)
  if url:
    (info / "direct_url.json").write_text(url)


def test_what_is_required_is_found_through_extras_and_what_is_missing_left_out(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(sys, "path", [str(tmp_path)])
  installed(tmp_path, "first", "second[fast,good]>=2; python_version > '3'", "windows_only")
  installed(tmp_path, "second", "third; extra == 'fast'", "fourth ; extra == 'slow'", "first")
  installed(tmp_path, "third")
  installed(tmp_path, "fourth")
  assert sorted(packages.required(["First"])) == ["first", "second", "third"]
  with pytest.raises(NoSandbox, match="package fifth is not installed in this environment"):
    packages.required(["fifth"])


def test_files_are_those_that_were_recorded_without_scripts(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", [str(tmp_path)])
  record = "one/__init__.py,,\none/gone.py,,\n../../bin/one,,\n"
  installed(tmp_path, "one", record=record)
  (tmp_path / "one").mkdir()
  (tmp_path / "one/__init__.py").write_text("")
  found = packages.files(packages.required(["one"]))
  assert found == {"one/__init__.py": str(tmp_path / "one/__init__.py")}


@pytest.mark.parametrize("given", [{"record": None}, {"url": '{"dir_info": {"editable": true}}'}])
def test_a_package_whose_files_are_not_recorded_is_refused(tmp_path, monkeypatch, given):
  monkeypatch.setattr(sys, "path", [str(tmp_path)])
  installed(tmp_path, "one", **given)
  with pytest.raises(NoSandbox, match="install it by pip, and not as editable"):
    packages.files(packages.required(["one"]))


def test_packages_of_another_interpreter_are_refused():
  with pytest.raises(ValueError, match="leave out one of them"):
    Runtime(python="/usr/bin/another_python", packages=("one",))
