"""Whether the plain models notice a wrong script: each mutant is one change of the Lua, and some test must fail by it.

`make mutate` runs them all, `make mutate WORDS=circuit` those whose names hold one of the words. Not a part of CI.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("notifier", "workers", "tests", "config")
PYPROJECT = "pyproject.toml"


class Mutant(NamedTuple):
    """One wrong script. test: the one that must fail, in tests/."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def script(self, root: Path) -> Path:
        """The script that it changes, of the sources in this folder."""
        return next(root.joinpath("notifier/scripts/lua").glob(f"*/{self.file}.lua"))


BACKLOGS = "property/test_backlogs.py::test_every_schedule_ends_well"
WAKE_UPS = "property/test_backlogs.py::test_wake_ups_open_at_the_first_moment_the_rules_admit"
ROUTES = "property/test_routes.py::test_whatever_is_held_nothing_is_lost"
DEVICES = "property/test_routes.py::test_no_device_gets_more_than_its_provider_admits"
SHARED = "property/test_routes.py::test_who_shares_a_device_does_not_wait_for_a_lease_of_another"
FULL = "property/test_max_waiting.py::test_no_more_wait_than_may"
DIGEST = "property/test_digest.py::test_every_digest_ends_well"
KINDS = "property/test_kinds.py::test_no_user_is_ever_burst_by_what_waits"
CLOCK = "property/test_clock.py::test_who_waits_for_the_clock_goes_when_it_says"
RATES = "property/test_changed_rates.py::test_each_send_keeps_the_rules_it_was_admitted_by"
PREVIEW = "property/forecast/test_replay.py::test_the_replay_is_the_limiter"
CIRCUIT = "contract/queue/test_circuits.py"
LIMITER = "property/test_limiter_laws.py"

MUTANTS = (
    Mutant("gap one µs short", "rules", "last + gap, 0", "last + gap - 1, 0", BACKLOGS),
    Mutant("gap one µs long", "rules", "last + gap, 0", "last + gap + 1, 0", BACKLOGS),
    Mutant("window of one more", "rules", "windows[i] - cost", "windows[i] - cost + 1", BACKLOGS),
    Mutant("window of one less", "rules", "windows[i] - cost", "windows[i] - cost - 1", WAKE_UPS),
    Mutant(
        "nothing is taken back",
        "settle",
        "cost, reached and now_text",
        "cost, now_text",
        BACKLOGS,
    ),
    Mutant(
        "what was sent is taken back",
        "settle",
        "cost, reached and now_text",
        "cost, nil",
        BACKLOGS,
    ),
    Mutant("a send is dated at its lease", "permits", "'XX', at, member", "'NX', at, member", WAKE_UPS),
    Mutant(
        "acquire gives nothing back",
        "refund",
        "date_sends(key, permit, tonumber(ARGV[3]))",
        "(date_sends and 1)",
        LIMITER,
    ),
    Mutant(
        "the category's rules are ignored",
        "admits_at",
        "at = math.max(at, own, least)",
        "at = math.max(at, least)",
        BACKLOGS,
    ),
    Mutant(
        "the user's rules are ignored",
        "admits_at",
        "at = math.max(at, own, least)",
        "at = math.max(own, least)",
        BACKLOGS,
    ),
    Mutant(
        "what bypasses is held",
        "admits_at",
        "if not backlog.bypass then",
        "if true then",
        BACKLOGS,
    ),
    Mutant(
        "what is in flight is not counted",
        "lease",
        "if not is_empty(policy) then",
        "if false then",
        BACKLOGS,
    ),
    Mutant(
        "a late backlog goes first",
        "enter_backlog",
        "order - HIGH or order, deadline",
        "order - HIGH or -order, deadline",
        BACKLOGS,
    ),
    Mutant(
        "high priority is ignored",
        "enter_backlog",
        "order - HIGH or order, deadline",
        "order - 0 * HIGH or order, deadline",
        BACKLOGS,
    ),
    Mutant(
        "the older head goes last",
        "select",
        "return order_of(a) < order_of(b)",
        "return order_of(a) > order_of(b)",
        PREVIEW,
    ),
    Mutant(
        "lower lanes starve",
        "wake_ups",
        "% EVERY == EVERY - 1",
        "% EVERY == EVERY",
        "contract/test_busy.py::test_no_lane_of_a_user_starves",
    ),
    Mutant(
        "a new backlog wakes nobody",
        "enter_backlog",
        "return lane, true, not standing",
        "return lane, false, not standing",
        BACKLOGS,
    ),
    Mutant(
        "a deadline wakes nobody",
        "enter_backlog",
        "look_by(user, lane, math.max(now, job.deadline))",
        "look_by(user, lane, math.max(now, job.deadline) + 30000000)",
        "contract/test_direct.py::test_who_takes_the_heads_place_is_looked_at_when_it_expires",
    ),
    Mutant(
        "what steps behind an alert never expires",
        "reschedule",
        "if job.deadline and backlog.head ~= job.id then",
        "if false then",
        "laws/test_expired_behind.py::test_what_steps_behind_an_alert_expires_in_time",
    ),
    Mutant(
        "what is overtaken as its lane changes never expires",
        "enter_backlog",
        "(is_new or needs_recheck or job.deadline)",
        "(needs_recheck or job.deadline)",
        "laws/test_expired_behind.py::test_a_head_that_is_displaced_as_its_lane_changes_expires_in_time",
    ),
    Mutant(
        "a wake-up is set a lease late",
        "wake_ups",
        "redis.call('ZADD', '@wakeups:' .. lane, text(at), user)",
        "redis.call('ZADD', '@wakeups:' .. lane, text(at + 30000000), user)",
        WAKE_UPS,
    ),
    Mutant(
        "settling sets no wake-up",
        "settle",
        "set_user_wake_ups(look, user, index, by_devices[user])",
        "local _ = set_user_wake_ups",
        WAKE_UPS,
    ),
    Mutant(
        "the head's end does not open its wake-up",
        "wake_ups",
        "if deadline and not backlog.elsewhere then at = math.max(now, math.min(at, deadline)) end",
        "",
        BACKLOGS,
    ),
    Mutant(
        "an expired head stays",
        "visit",
        "job.deadline and job.deadline <= look.now then",
        "job.deadline and job.deadline <= look.now - 60000000 then",
        BACKLOGS,
    ),
    Mutant(
        "who finds no room loses the place",
        "pull",
        "since[user] = at\n",
        "since[user] = at redis.call('ZADD', '@wakeups:' .. lane, 'XX', text(at + 30000000), user)\n",
        BACKLOGS,
    ),
    Mutant(
        "nobody looks again at what was read",
        "reschedule",
        "if backlog.unread then look_by",
        "if false then look_by",
        "laws/test_plain_jobs.py::test_what_was_read_goes_though_nobody_would_look_at_its_lane",
    ),
    Mutant(
        "a cancelled head keeps those behind it",
        "unsent",
        "if lane and redis.call('ZADD'",
        "if false and redis.call('ZADD'",
        "property/test_routes.py::test_who_stood_behind_one_that_leaves_does_not_wait_for_its_device",
    ),
    Mutant(
        "the collapsed lose their place",
        "collapse",
        "return old.order, expected, targets",
        "return order, expected, targets",
        "integration/test_worker.py::test_the_newest_takes_the_place_of_the_waiting_one",
    ),
    Mutant("nothing collapses", "pull", "local old = how ~= 'note' and", "local old = false and", BACKLOGS),
    Mutant("those that collapsed are not counted", "collapse", "old.count + 1)", "old.count)", BACKLOGS),
    Mutant(
        "one that a worker had gives way",
        "send_head",
        "if job.collapse then forget_candidate(",
        "if false then forget_candidate(",
        "contract/test_busy.py::test_one_that_a_worker_had_gives_way_to_nobody",
    ),
    Mutant("a digest's time is ignored", "rule_table", "if (till or 0) <= at then", "if true then", DIGEST),
    Mutant("a digest gathers twice as long", "rule_table", "till = now + within", "till = now + 2 * within", DIGEST),
    Mutant("a full digest waits", "collapse", "full and '0' or text(old.gather)", "text(old.gather or 0)", DIGEST),
    Mutant(
        "nothing is dropped",
        "backlog",
        "drops = of.drops",
        "drops = false",
        "contract/queue/test_history.py::test_every_end_leaves_one_record",
    ),
    Mutant(
        "what was tried is dropped",
        "rule_table",
        "return not (job[1] or job[2] or job[3] or job[4] or job[5])",
        "return true",
        BACKLOGS,
    ),
    Mutant(
        "what may have been sent is not noted",
        "outcomes",
        "if job.reached then redis",
        "if false then redis",
        "contract/queue/test_odd_ends.py",
    ),
    Mutant(
        "a change of lane is over at once",
        "enqueue",
        "return is_taken and not",
        "return not",
        "laws/test_changed_lane.py",
    ),
    Mutant("a crash is not counted", "dead_workers", "'push_crashes', crashes)", "'push_crashes', 0)", BACKLOGS),
    Mutant(
        "an attempt is not counted",
        "outcomes",
        "if job.word ~= 'expired' then add_one(job.key, 'push_attempts')\n",
        "if job.word ~= 'expired' then\n",
        "integration/test_worker.py::test_attempts_come_to_an_end",
    ),
    Mutant(
        "a lease is not fenced",
        "settle",
        "if job.origin and job.holder ~= job.permit then return false end",
        "",
        BACKLOGS,
    ),
    Mutant(
        "the dead come back late",
        "dead_workers",
        "text(look.now), 'LIMIT', 0, look.most)",
        "text(look.now - 60000000), 'LIMIT', 0, look.most)",
        BACKLOGS,
    ),
    Mutant(
        "what waits for its time is forgotten", "pull", "{'@leases', '@later'}", "{'@leases', '@expiring'}", BACKLOGS
    ),
    Mutant(
        "a retry waits a second more",
        "outcomes",
        "'@later', now + us",
        "'@later', now + us + 1000000",
        BACKLOGS,
    ),
    Mutant(
        "one more may wait",
        "max_waiting",
        "if of_user > 0 and count_of_user(user) >= of_user then",
        "if of_user > 0 and count_of_user(user) > of_user then",
        FULL,
    ),
    Mutant("one less may wait in all", "max_waiting", "count_in_all() >= in_all", "count_in_all() + 1 >= in_all", FULL),
    Mutant(
        "the newest is dropped",
        "max_waiting",
        "redis.call('ZRANGEBYSCORE', backlog, NORMAL, '+inf', 'LIMIT', 0, MAX_OLDEST)",
        "redis.call('ZREVRANGE', backlog, 0, MAX_OLDEST)",
        "integration/test_overload.py::test_the_oldest_makes_room",
    ),
    Mutant(
        "nothing gives way",
        "max_waiting",
        "overflow == 'drop_oldest' and drop_oldest(now, user, category)",
        "false",
        "integration/test_overload.py::test_the_oldest_makes_room",
    ),
    Mutant(
        "nothing collapses where no more may wait",
        "max_waiting",
        "if overflow ~= 'reject' and not at",
        "if false and not at",
        "integration/test_overload.py::test_the_same_makes_room",
    ),
    Mutant(
        "a newer one collapses before one that arrives",
        "max_waiting",
        "and not at and not is_arriving(now, user) then",
        "and not at then",
        "integration/test_overload.py::test_none_takes_the_place_before_one_that_arrives",
    ),
    Mutant(
        "those that arrive are not counted",
        "max_waiting",
        "local n = redis.call('ZCARD', arriving_key(user))",
        "local n = 0",
        FULL,
    ),
    Mutant(
        "an open circuit makes nobody wait",
        "decide",
        "hold.state == 'open' and hold.probe ~= '1' and (",
        "false and (",
        ROUTES,
    ),
    Mutant(
        "an open circuit makes users wait for ever",
        "decide",
        "hold.probe ~= '1' and (",
        "true or (",
        "laws/test_held_routes.py::test_apns_is_away_and_fcm_goes_on",
    ),
    Mutant(
        "probes go one after the other",
        "go",
        "local again = look.now + hold.interval",
        "local again = look.now",
        ROUTES,
    ),
    Mutant(
        "what closed lets nobody go",
        "held_routes",
        "if hold.state == 'closing' then return most end",
        "if hold.state == 'closing' then return 0 end",
        ROUTES,
    ),
    Mutant("vain probes wait no longer", "circuit", "math.floor(1.5 * hold.interval)", "hold.interval", CIRCUIT),
    Mutant("a clock set back holds a route", "routes", "hold.interval and at > now", "false and at > now", CIRCUIT),
    Mutant("a route that closed is not dropped", "circuit", "return 'closed'", "return ''", ROUTES),
    Mutant(
        "a rest that stepped aside is lost",
        "reschedule",
        "redis.call('ZADD', waiting_key(name), text(order + (job.refusals and FAR or 0)), 'j' .. backlog.head)",
        "",
        ROUTES,
    ),
    Mutant(
        "a project is not counted",
        "limits",
        "project.sum + n, project.added + n",
        "project.sum, project.added",
        ROUTES,
    ),
    Mutant(
        "a project has room for one more",
        "limits",
        "project.sum + cost > project.limit",
        "project.sum + cost > project.limit + 1",
        ROUTES,
    ),
    Mutant(
        "a project is full for too long",
        "limits",
        "return count[1] + project.bucket + project.interval,",
        "return count[1] + 3 * project.interval,",
        ROUTES,
    ),
    Mutant(
        "a device is not counted",
        "limits",
        "if policy then record(key, policy",
        "if false then record(key, policy",
        DEVICES,
    ),
    Mutant(
        "a device's limit is ignored",
        "limits",
        "local opens, rule = next_for(key, policy, 1)",
        "local opens, rule = next_for and 0, -1",
        DEVICES,
    ),
    Mutant(
        "a device waits for a lease of another user",
        "limits",
        "math.min(opens, now + (policy.windows[2 * rule] or policy.gap))",
        "opens",
        SHARED,
    ),
    Mutant(
        "a device waits for what never came",
        "limits",
        "job.reached and look.now_text",
        "look.now_text",
        ROUTES,
    ),
    Mutant(
        "a device's bucket has one more",
        "limits",
        "full - (burst[1] - 1) * burst[2]",
        "full - burst[1] * burst[2]",
        DEVICES,
    ),
    Mutant("a cost is one", "backlog", "cost = of.cost", "cost = 1", KINDS),
    Mutant("a burst has one more", "burst", "local free = burst[1] - cost", "local free = burst[1] - cost + 1", KINDS),
    Mutant(
        "a bucket counts its first send",
        "counts",
        "adds[n - 1], adds[n] = total, text(at)",
        "adds[n - 1] = total; adds[n] = adds[n] or text(at)",
        "property/test_kinds.py",
    ),
    Mutant(
        "quiet hours end early",
        "quiet_hours",
        "opens = first_outside(zone, hours[1], hours[2], begins, hours[3])",
        "opens = begins",
        CLOCK,
    ),
    Mutant("weeks begin on Thursday", "quiet_hours", "+ zone.o[i] + THURSDAY) % every", "+ zone.o[i]) % every", CLOCK),
    Mutant(
        "a day has one more", "quiet_hours", "window[1] - backlog.cost + 1)", "window[1] - backlog.cost + 2)", CLOCK
    ),
    Mutant(
        "changed rates wake nobody", "retime", "redis.call('ZADD', wake_ups, 'XX', text(now), found[2][i])", "", RATES
    ),
    Mutant(
        "two workers send one backlog",
        "claims",
        "claim.n, claim.elsewhere = before.n, before.owner ~= claimant",
        "claim.n = before.n",
        "laws/test_claims.py",
    ),
)


def run(mutant: Mutant) -> str:
    """What the test says to the wrong script: 'caught' or 'SURVIVED'."""
    with tempfile.TemporaryDirectory() as folder:
        for part in COPIED:
            copytree(ROOT / part, Path(folder, part), ignore=ignore_patterns(".peers", "__pycache__"))
        copyfile(ROOT / PYPROJECT, Path(folder, PYPROJECT))
        script = mutant.script(Path(folder))
        source = script.read_text(encoding="utf-8")
        script.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        env = os.environ | {"PYTHONPATH": folder, "HYPOTHESIS_PROFILE": "mutants"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"tests/{mutant.test}"]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    if "redis.exceptions." in done.stdout:
        return f"is no script that Redis runs: {done.stdout}"
    return {0: "SURVIVED", 1: "caught"}.get(done.returncode, f"pytest ended with {done.returncode}: {done.stdout}")


def main() -> int:
    """Run them; 1 if one was not caught."""
    words = sys.argv[1:] or [""]
    chosen = [mutant for mutant in MUTANTS if any(word in mutant.name for word in words)]
    if not chosen:
        sys.exit(f"no wrong script has one of these words in its name: {' '.join(words)}")
    answers = set()
    for mutant in chosen:
        answer = run(mutant)
        answers.add(answer)
        print(f"{answer:8}  {mutant.name}", flush=True)  # noqa: T201 - a command
    return int(answers != {"caught"})


if __name__ == "__main__":
    sys.exit(main())
