"""What several runs have written to their reports comes as one table."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import msgspec

from tests.faults.rounds import ORCHESTRATOR, SERVER, Round, read, table


def test_a_table_has_the_times_of_all_reports(tmp_path: Path) -> None:
    rng = random.Random()
    rounds = [
        Round(victim, "SIGSTOP", seed, back_s=rng.random() * 9, ends={"equal": rng.randrange(1, 9), "Unavailable": 3})
        for seed in (1, 2)
        for victim in ("qwen3_omni_front", "qwen3_omni_speech", ORCHESTRATOR, SERVER, SERVER)
    ]
    reports = [tmp_path / "one", tmp_path / "two"]
    for report, written in zip(reports, (rounds[:5], rounds[5:]), strict=True):
        report.write_bytes(b"".join(msgspec.json.encode(done) + b"\n" for done in written))
    lines = [" ".join(line.split()) for line in table(read(reports)).splitlines()]
    equal = sum(done.ends["equal"] for done in rounds)
    assert lines[0] == f"10 rounds, {equal + 30} requests: 30 Unavailable, {equal} equal"
    assert lines[1] == "seeds 1, 2"
    for kind, victims in {"stage": rounds[0:2] + rounds[5:7], "server": rounds[3:5] + rounds[8:10]}.items():
        back = [done.back_s for done in victims]
        assert f"SIGSTOP {kind} 4 {statistics.median(back):.2f} s {max(back):.2f} s" in lines
