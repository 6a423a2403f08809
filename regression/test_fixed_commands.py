"""Fixed bugs of the command line and of what it is given."""

import json

import pytest

from phaseflip import cli, faults
from phaseflip.errors import BadInput
from phaseflip.kernel import find_kernel
from phaseflip.verify import verify


@pytest.mark.parametrize("command", ["fault", "study", "silicon"])
def test_the_help_of_a_command_that_takes_faults_did_not_say_how_to_list_them(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "list --faults" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["list", "--faults", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["faults"]
    every = [*faults.catalogue(), *faults.mutations(), faults.no_op()]
    assert [(f["name"], f["kind"]) for f in listed] == [(f.name, f.kind) for f in every]


@pytest.mark.parametrize(
    ("kernel", "schedule", "sentence"),
    [
        ("hgemm_v1", "lazy+delay:cta1", "delays CTA 1, but a cluster of the kernel has CTA 0"),
        ("hgemm_v1", "lazy+delay:cta0.warp9", "delays warp 9, but a CTA of the kernel has warps 0-3"),
        ("hgemm_v1", "eager+delay:warps2-4", "delays warps 2-4, but a CTA of the kernel has warps 0-3"),
        ("hgemm_v8", "random:1+delay:warp0+delay:cta2", "delays CTA 2, but a cluster of the kernel has CTAs 0-1"),
    ],
)  # fmt: skip
def test_a_delay_of_threads_that_the_kernel_does_not_have_did_nothing(kernel, schedule, sentence):
    shape = find_kernel(kernel).shape_rule.nearest(1, 1, 1)
    with pytest.raises(BadInput) as error:
        verify(find_kernel(kernel), *shape, schedule=schedule)
    assert str(error.value) == f"schedule {schedule!r} {sentence}"


@pytest.mark.parametrize("command", ["run", "fault"])
def test_a_delay_of_threads_that_are_not_there_is_bad_input_of_the_commands(command, capsys):
    kernel = ["hgemm_v1"] if command == "run" else ["hgemm_v1", "missing-commit"]
    words = [command, *kernel, "128", "128", "64", "--schedule", "lazy+delay:warp4", "--json"]
    assert cli.main(words) == 2
    assert "has warps 0-3" in json.loads(capsys.readouterr().out)["error"]
