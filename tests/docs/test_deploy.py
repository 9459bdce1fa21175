"""The files of deploy/ are right: each is read by the tool it is for, as far as there is one, and names what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter

from stowhand.app.settings.resolver import read_settings
from stowhand.app.settings.settings import SETTINGS, WorkerSettings
from stowhand.observe import metric_definitions
from stowhand.observe.queue_metrics import QueueMetrics
from stowhand.observe.worker_metrics import WorkerMetrics
from stowhand.service.health import max_loop_ages
from stowhand.service.health_reporter import STOP_MARGIN_SECONDS
from stowhand.worker.host import DEFAULT_TIMINGS
from tests.docs.pages import DOCS, ROOT
from tests.docs.test_reference import read, rows

DEPLOY = ROOT / "deploy"
AFTERWARDS = DEFAULT_TIMINGS.exit_timeout
"""Seconds that a worker may take to end beyond its grace."""
VARIABLES = {setting.variables[0]: setting for setting in SETTINGS.values()}
INSTRUCTION = re.compile(r"^(FROM|COPY|RUN|ENV|USER|WORKDIR|VOLUME|EXPOSE|STOPSIGNAL|HEALTHCHECK|ENTRYPOINT|CMD) (.+)$")
KUBERNETES = ("1.28", "1.37")
"""The oldest and the newest of which a manifest is tried."""


def settings(**said: str) -> WorkerSettings:
    return read_settings({}, environ=said)


# -- systemd ---------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    """Directives of the unit, in their order."""
    result: dict[str, list[str]] = {}
    for line in (DEPLOY / "stowhand-worker.service").read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            result.setdefault(name, []).append(value)
    return result


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "stowhand-worker.service").read_text()
    program = unit()["ExecStart"][0].split()[0]
    written = tmp_path / "stowhand-worker.service"
    written.write_text(text.replace(program, sys.executable))  # where it is installed is the reader's to say
    command = ["systemd-analyze", "verify", "--recursive-errors=no", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_starts_a_worker_with_options_that_exist() -> None:
    _, command, *options = unit()["ExecStart"][0].split()
    assert command == "worker"
    for option in options[::2]:
        assert option in {setting.flag for setting in SETTINGS.values()}


def test_the_units_times_fit_the_workers() -> None:
    directives = unit()
    usual = settings()
    grace = usual.worker.grace
    assert directives["Type"] == ["notify"]
    assert seconds(directives["TimeoutStopSec"][0]) == grace + STOP_MARGIN_SECONDS > grace + AFTERWARDS
    assert seconds(directives["WatchdogSec"][0]) >= 5
    assert max_loop_ages(usual.worker)["loop"] == 30, "the comment in the unit says so"


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# -- Docker ----------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    results = [INSTRUCTION.match(line) for line in text.splitlines() if line.strip()]
    assert all(results), text
    return [(one[1], one[2]) for one in results if one is not None]


def test_the_linter_accepts_the_dockerfile() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint has no wheel for this platform")
    done = subprocess.run([linter, "--no-color", DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_stop_times_on_pages_are_the_grace_and_ten_seconds() -> None:
    usual, preset = (
        f"{settings(**said).worker.grace + STOP_MARGIN_SECONDS:g}" for said in ({}, {"STOWHAND_PRESET": "service"})
    )
    page = (DOCS / "how-to" / "deploy.md").read_text()
    for text in ((DEPLOY / "Dockerfile").read_text(), page):
        assert f"--stop-timeout {usual}" in text
        assert preset in text
    assert f"TimeoutStopSec={preset}s" in (DEPLOY / "stowhand-worker.service").read_text()


def test_the_image_runs_a_worker_without_rights_and_by_variables_that_exist() -> None:
    output = dict(instructions())
    assert json.loads(output["ENTRYPOINT"]) == ["stowhand"]
    assert json.loads(output["CMD"]) == ["worker"]
    assert output["USER"].split(":")[0].isdigit(), "so that Kubernetes can tell that it is not root"
    assert "/tasks" in json.loads(output["VOLUME"])
    assert output["HEALTHCHECK"].partition(" CMD ")[2] == '["stowhand", "health"]'
    options = dict(pair.split("=", 1) for pair in output["ENV"].split())
    ours = {name: value for name, value in options.items() if name.startswith("STOWHAND_")}
    assert ours.keys() <= VARIABLES.keys()
    instance = settings(**ours)
    assert (instance.tasks, instance.http) == ("/tasks", f"127.0.0.1:{output['EXPOSE']}")
    app = settings(**{**ours, "STOWHAND_APP": "shop.jobs:app", "STOWHAND_TASKS": ""})
    assert (app.tasks, app.app) == (None, "shop.jobs:app"), "as its first lines say"


def test_files_for_the_image_are_not_ignored() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert kept == {"src", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in kept)


# -- Compose ---------------------------------------------------------------------------------------


def test_the_compose_file_fits_the_schema_and_starts_workers_with_variables_that_exist(tmp_path: Path) -> None:
    file = DEPLOY / "compose.yaml"
    checker = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*checker, str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(file.read_text().replace("stop_grace_period", "stop_grace"))
    assert subprocess.run([*checker, str(wrong)], capture_output=True, timeout=60).returncode == 1
    services = yaml.safe_load(file.read_text())["services"]
    worker = services["worker"]
    assert worker["environment"].keys() <= VARIABLES.keys()
    assert (services["migrate"]["command"], worker["command"]) == (["migrate"], ["worker"])
    assert seconds(worker["stop_grace_period"]) == settings().worker.grace + STOP_MARGIN_SECONDS
    assert (ROOT / worker["build"]["dockerfile"]).is_file()


# -- Kubernetes ------------------------------------------------------------------------------------


def manifests() -> dict[str, Any]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def container(kind: str) -> Any:
    (one,) = manifests()[kind]["spec"]["template"]["spec"]["containers"]
    return one


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_understands_the_manifests(version: str) -> None:
    assert manifests().keys() == {"Job", "Deployment", "NetworkPolicy"}
    for manifest in manifests().values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_policy_selects_the_pods_and_the_port_of_the_workers() -> None:
    policy, labels = manifests()["NetworkPolicy"]["spec"], manifests()["Deployment"]["spec"]["template"]["metadata"]
    assert policy["podSelector"]["matchLabels"] == labels["labels"]
    (allowed,) = policy["ingress"]
    assert [one["port"] for one in allowed["ports"]] == [one["name"] for one in container("Deployment")["ports"]]


def test_an_invalid_manifest_would_be_noticed() -> None:
    wrong = manifests()["Deployment"]
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 45
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


def test_the_deployment_gives_a_worker_what_it_needs() -> None:
    worker, pod = container("Deployment"), manifests()["Deployment"]["spec"]["template"]["spec"]
    options = {one["name"]: one.get("value", "postgresql:///x") for one in worker["env"]}
    folder = options.pop("TMPDIR")
    assert options.keys() <= VARIABLES.keys()
    instance = settings(**options)
    assert (instance.preset, instance.worker.grace) == ("service", instance.worker.timeout)
    assert pod["terminationGracePeriodSeconds"] == instance.worker.grace + STOP_MARGIN_SECONDS
    (port,) = worker["ports"]
    assert instance.http == f"0.0.0.0:{port['containerPort']}"
    probes = {name: worker[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/readyz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    image = dict(instructions())
    assert mounts["tasks"] == "/tasks"
    assert folder in mounts.values(), "nothing else can be written to"
    assert str(pod["securityContext"]["runAsUser"]) == image["USER"].split(":")[0]
    assert worker["args"] == ["worker"]


def test_the_job_migrates() -> None:
    job = container("Job")
    assert job["args"] == ["migrate"]
    assert job["image"] == container("Deployment")["image"]


# -- metrics ---------------------------------------------------------------------------------------


def samples() -> dict[str, str]:
    """Every name that is shown, with the metric's own: a histogram has three."""
    registry = CollectorRegistry()
    WorkerMetrics(registry)
    result: dict[str, str] = {}
    for metric in (*registry.collect(), *QueueMetrics(lambda: None, lambda: None, registry).describe()):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
        shown = f"{metric.name}_total" if metric.type == "counter" else metric.name
        result |= {metric.name + ending: shown for ending in endings}
    return result


def names(text: str) -> set[str]:
    return set(re.findall(r"\bstowhand_(?:worker|queue)_\w+", text))


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    calls = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert calls
    existing = samples()
    assert {existing.get(name, f"{name} does not exist") for query in calls for name in names(query)} == set(
        existing.values()
    )
    assert all(query.count("(") == query.count(")") for query in calls)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_alerts_are_those_of_the_page_and_ask_for_metrics_that_exist() -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    calls = [rule["expr"] for rule in group["rules"]]
    page = (DOCS / "how-to" / "watch-a-worker-with-prometheus.md").read_text()
    table = page.partition("## When to worry")[2].partition("[All names]")[0]
    assert re.findall(r"^\| `(.+?)` \|", table, re.M) == [rule["alert"] for rule in group["rules"]]
    assert {name for query in calls for name in names(query)} <= samples().keys()
    assert len({rule["alert"] for rule in group["rules"]}) == len(calls)
    assert all(rule["labels"]["severity"] and rule["annotations"]["summary"] for rule in group["rules"])


def declared_metrics() -> dict[str, tuple[str, ...]]:
    """The labels of each, by its name as it is shown."""
    groups = (each if isinstance(each, tuple) else (each,) for each in vars(metric_definitions).values())
    return {
        name + ("_total" if one.func is Counter else ""): labels[0] if labels else one.keywords.get("labels", ())
        for group in groups
        for one in group
        if isinstance(one, partial)
        for name, _, *labels in [one.args]
    }


def test_the_page_of_metrics_matches_the_metrics() -> None:
    """Those of tables have a page of their own."""
    result = {
        name: tuple(re.findall(r"`(\w+)`", cells[2]))
        for name, cells in rows(read("metrics.md")).items()
        if name.startswith("stowhand_")
    }
    assert result == {name: labels for name, labels in declared_metrics().items() if "_table_" not in name}
    assert set(samples().values()) == {
        name for name in result if name.startswith(("stowhand_worker", "stowhand_queue"))
    }


@pytest.mark.parametrize("page", ["watch-a-worker-with-prometheus.md", "deploy.md"])
def test_pages_name_metrics_that_exist(page: str) -> None:
    known = samples()
    written = names((DOCS / "how-to" / page).read_text())
    assert {name for name in written if name not in known} <= {"stowhand_worker_info"} | set(known.values())
