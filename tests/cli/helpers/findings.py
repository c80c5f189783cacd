"""What `medusaq doctor` finds, held to its exit code and to the form of a finding."""

from __future__ import annotations

import json

from cli.doctor.findings import Finding, Grade
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.support.servers import free_port


def examined(cli: Cli | InProcessCli, **env: str) -> dict[str, list[Finding]]:
    """The findings by check, from the command as a user runs it; its exit code is held to them."""
    # Loading the heads takes as long as all the rest together.
    quick = {"MEDUSAQ_SPECULATION": "0"}
    ports = {"MEDUSAQ_PORT": str(free_port()), "MEDUSAQ_FLOWER_PORT": str(free_port()), **quick}
    ended = cli("doctor", "--json", **{**ports, **env})
    found: dict[str, list[Finding]] = {}
    for each in json.loads(ended.stdout):
        finding = Finding(each["check"], Grade(each["grade"]), each["what"], each["mend"])
        assert bool(finding.mend) == (finding.grade is not Grade.OK), finding
        assert "\n" not in finding.what + finding.mend
        found.setdefault(finding.check, []).append(finding)
    failed = any(one.grade is Grade.FAIL for several in found.values() for one in several)
    assert ended.returncode == int(failed)
    return found


def only(found: dict[str, list[Finding]], check: str, grade: Grade) -> Finding:
    [finding] = found[check]
    assert finding.grade is grade, finding
    return finding
