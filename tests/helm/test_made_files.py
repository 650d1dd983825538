"""What is made from other files is as it would be made now, and the chart passes helm's own checks."""

import pytest
import yaml

from helm.generate import EXAMPLES, documented_values, files, rendered
from tests.helm.chart import CHART, EXAMPLE_NAMES, chart_file, helm


def test_schema_and_readme_are_up_to_date():
    for path, content in files().items():
        if content:
            assert path.read_text() == content, f"{path.name}: run `make chart`"


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_an_example_renders_as_kept(name):
    assert rendered(EXAMPLES / name) == (EXAMPLES / name / "rendered.yaml").read_text(), "run `make chart`"


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_helm_has_nothing_to_object(name):
    result = helm("lint", "--strict", CHART, "--values", EXAMPLES / name / "values.yaml")
    assert "0 chart(s) failed" in result.stdout
    assert "[WARNING]" not in result.stdout


def test_helm_can_pack_it(tmp_path):
    helm("package", CHART, "--destination", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["truedraft-0.1.0.tgz"]


def test_every_value_is_explained():
    explained = {name for name, *_ in documented_values()}

    def left(values, path=""):
        for name, value in values.items():
            where = f"{path}{name}"
            if where not in explained:
                assert isinstance(value, dict), where
                assert value, where
                yield where
                yield from left(value, f"{where}.")

    # What remains are sections, and the default model, which `config` explains.
    sections = set(left(yaml.safe_load(chart_file("values.yaml").read_text())))
    assert not sections & explained
