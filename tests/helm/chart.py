"""The chart as tests see it: rendered, split into documents, and what RayService holds of each role."""

import subprocess
from pathlib import Path

import yaml

from helm.fetch_tools import fetch
from helm.generate import APIS, CHART, EXAMPLES

EXAMPLE_NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/values.yaml"))


def helm(*arguments, check=True):
    """Runs helm; with `check` a failure shows what it said."""
    done = subprocess.run([fetch()["helm"], *map(str, arguments)], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def template(example="cpu", *settings, values=None, apis=APIS, check=True):
    """`helm template` of an example's values with `--set` settings and a further values file."""
    command = ["template", "truedraft", CHART, "--namespace", "truedraft"]
    command += ["--values", EXAMPLES / example / "values.yaml"] if example else []
    command += ["--values", values] if values else []
    for setting in settings:
        command += ["--set", setting]
    for api in apis:
        command += ["--api-versions", api]
    return helm(*command, check=check)


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def ray_service(text):
    [found] = [document for document in documents(text) if document["kind"] == "RayService"]
    return found


def serve_config(service):
    return yaml.safe_load(service["spec"]["serveConfigV2"])


def ray_groups(service):
    """Head and worker groups by name."""
    cluster = service["spec"]["rayClusterConfig"]
    workers = {each["groupName"]: each for each in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]} | workers


def pod_specs(text):
    """Every pod of the chart, those inside other kinds too: (name, spec)."""
    found = []
    for document in documents(text):
        if document["kind"] == "RayService":
            found += [(name, group["template"]["spec"]) for name, group in ray_groups(document).items()]
        elif document["kind"] in ("Deployment", "Job"):
            found.append((document["metadata"]["name"], document["spec"]["template"]["spec"]))
        elif document["kind"] == "Pod":
            found.append((document["metadata"]["name"], document["spec"]))
    return found


def rendered_example(name):
    return (EXAMPLES / name / "rendered.yaml").read_text()


def chart_file(*parts):
    return Path(CHART, *parts)
