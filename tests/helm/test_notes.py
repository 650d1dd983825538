"""What helm says after an installation, rendered as a template of a copy: `helm template` leaves it out."""

import shlex
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli import app
from helm.generate import APIS
from tests.helm.chart import CHART, EXAMPLES, helm


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    copy = tmp_path_factory.mktemp("notes") / "truedraft"
    shutil.copytree(CHART, copy)
    notes = (copy / "templates" / "NOTES.txt").read_text()
    template = f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}notes: {{{{ include "notes" . | toJson }}}}\n'
    (copy / "templates" / "notes.yaml").write_text(template)
    return copy


@pytest.fixture
def notes(copied):
    def render(example, *settings):
        command = ["template", "truedraft", copied, "--namespace", "apart"]
        command += ["--values", EXAMPLES / example / "values.yaml", "--show-only", "templates/notes.yaml"]
        command += [part for api in APIS for part in ("--api-versions", api)]
        command += [part for setting in settings for part in ("--set", setting)]
        return yaml.safe_load(helm(*command).stdout)["notes"]

    return render


def test_its_commands_are_whole_and_of_the_release(notes):
    text = notes("cpu")
    commands = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert {shlex.split(command)[0] for command in commands} == {"kubectl", "helm", "truedraft", "curl"}
    for command in commands:
        if command.startswith(("kubectl", "helm")):
            assert "--namespace apart" in command
    [generate] = [shlex.split(command) for command in commands if command.startswith("truedraft")]
    [curl] = [shlex.split(command) for command in commands if command.startswith("curl")]
    assert yaml.safe_load(curl[-1])["prompt"] == "Name three rivers."
    # Nobody listens here, but the command is understood.
    result = CliRunner().invoke(app, [*generate[1:-1], "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "No service answers" in result.output
    assert "16686" in text
    assert "WARNING" not in text


WITH_KEYS = ["apiKeys.existingSecret=tenants", "config.gateway.anonymous=false"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["config.channel.plaintext=true"], "WARNING: drafts cross the network in plain text"),
        (["networkPolicy.enabled=false"], "WARNING: networkPolicy.enabled is false"),
        (WITH_KEYS, "`helm test` is refused without an API key: set test.apiKey."),
        (
            WITH_KEYS,
            """ -H "authorization: Bearer $TRUEDRAFT_API_KEY" -d '{"prompt": "Name three rivers.",""",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_said(notes, settings, words):
    assert words in notes("cpu", *settings)
    assert words not in notes("cpu")


def test_a_gateway_that_everybody_reaches_is_warned_of(notes):
    words = "WARNING: whoever comes through the Ingress or the Gateway is answered"
    assert words in notes("a10g-2xh100", "apiKeys.existingSecret=", "config.gateway.anonymous=true")
    assert words not in notes("a10g-2xh100")
