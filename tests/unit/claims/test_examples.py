"""The templates that come with the chart are right for the node that they are for."""

import re
from pathlib import Path

import pytest
import yaml

from service.cli import run
from tests.prove import claims_world

EXAMPLES = Path(__file__).parents[3] / "charts" / "tenure" / "examples"
TEMPLATES = sorted([*EXAMPLES.glob("manifests/rct/*.yaml"), *EXAMPLES.glob("models/*/rct-*.yaml")])
CLASSES = [
    claims_world.device_class("npu.rebellions.ai", claims_world.NPU),
    claims_world.device_class("dranet", claims_world.NIC),
]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump_all([*CLASSES, *claims_world.reference("n1")]))
    return file


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_example_passes_the_check_on_the_reference_node(
    template: Path, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["claims", "check", "--offline", "-f", str(template), "-f", str(node)])
    shown = capsys.readouterr().out
    assert code == 0, shown
    room = re.search(r"room for (\d+) more pods", shown)
    assert room
    assert int(room[1]) == (1 if "8-npus" in template.name else 2)


def test_the_templates_have_the_names_that_the_chart_refers_to() -> None:
    names = {path.stem: yaml.safe_load(path.read_text())["metadata"]["name"] for path in TEMPLATES[:3]}
    assert names == {"npu-only": "npu-only", "numa-aligned": "npu-rdma", "numa-unaligned": "npu-rdma"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either NAMESPACE/TEMPLATE, or a file with -f"),
        (["team/npu", "--offline"], "--offline needs files"),
        (["npu"], "'npu' is not NAMESPACE/TEMPLATE, such as team-a/npu-rdma"),
        (["-f", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file or directory"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["claims", "check", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert sentence in lines[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("kind: Pod", "there is no ResourceClaimTemplate"),
        ("a: [", "it is not YAML"),
        ("kind: ResourceClaimTemplate", "has no metadata"),
        (
            "kind: ResourceClaimTemplate\nmetadata: {name: x}\nspec: 3",
            "ResourceClaimTemplate x cannot be read",
        ),
        ("\x00", "it is not YAML"),
    ],
)
def test_a_file_that_holds_something_else_is_one_sentence(
    content: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content)
    code = run(["claims", "check", "--offline", "-f", str(file)])
    assert (code, sentence in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("shape", ["json", "yaml"])
def test_the_whole_answer_comes_as_json_or_yaml_and_findings_are_exit_code_1(
    shape: str, node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "template.yaml"
    wrong.write_text(
        (EXAMPLES / "manifests/rct/npu-only.yaml").read_text().replace("npu.rebellions.ai", "nowhere")
    )
    assert run(["claims", "check", "--offline", "-f", str(wrong), "-f", str(node), "-o", shape]) == 1
    (report,) = yaml.safe_load(capsys.readouterr().out)
    assert report["verdict"] == "fail"
    assert report["checks"][0]["findings"][0]["code"] == "CLASS_MISSING"
