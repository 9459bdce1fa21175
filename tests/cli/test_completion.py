"""Completion, asked of the program in the words of real shells."""

from __future__ import annotations

import os
import subprocess

import pytest

from stowhand.app.settings.settings import LOG_LEVELS
from tests.support import subprocesses


def shell(commands: str) -> str:
    environment = os.environ | {"PATH": f"{subprocesses.programs()}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", commands], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_commands_options_and_values() -> None:
    """What a real bash finds when somebody presses the tabulator."""
    press = (
        "COMPREPLY=(); COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1));"
        " _stowhand_completion stowhand; echo ${{COMPREPLY[@]}}"
    )
    lines = (
        "stowhand jo",
        "stowhand jobs re",
        "stowhand worker --preset s",
        "stowhand worker --lis",
        "stowhand nothing x",
        "stowhand jobs list --state FA",
        "stowhand enqueue --key-mode pre",
        "stowhand worker --log-level ''",
    )
    result = shell(
        'eval "$(stowhand completion bash)"\n' + "\n".join(press.format(line) for line in lines)
    ).splitlines()
    assert result[0] == "jobs"
    assert {"remove", "reschedule", "retry"} <= set(result[1].split())
    assert result[2] == "service"
    assert result[3:7] == ["--listen-url", "", "failed", "preserve_run_at"]
    assert set(result[7].split()) == set(LOG_LEVELS)
    assert shell('eval "$(stowhand completion bash)"; complete -p stowhand').strip().endswith("stowhand")


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_zsh_and_fish_get_a_completion_script(name: str) -> None:
    printed = shell(f"stowhand completion {name}")
    assert f"_STOWHAND_COMPLETE={name}_complete" in printed


def test_an_unknown_shell_is_refused_with_the_known_ones() -> None:
    done = subprocesses.run(
        [subprocesses.STOWHAND, "completion", "tcsh"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr
