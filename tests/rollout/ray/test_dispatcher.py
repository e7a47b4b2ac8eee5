"""Which worker plays which job, and what becomes of jobs whose worker died."""

from __future__ import annotations

from toolgym.envs import Task
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.runner.ray.dispatcher import Dispatcher, PendingJob, WorkerSlots
from toolgym.tools.message import user


def dispatcher(*rooms, jobs=0):
    made = Dispatcher()
    made.workers += [WorkerSlots(room) for room in rooms]
    made.waiting += [PendingJob(at, Job(Task(messages=[user("?")]), EpisodeKey(at, 0), "")) for at in range(jobs)]
    return made


def dispatch(one):
    return [(one.workers.index(slots), entry.number) for slots, entry in one.dispatch()]


def die(one, at):
    """A worker dies, and another one takes its place. Returns the jobs that are played no more."""
    failed = one.worker_died(one.workers[at])
    one.workers.append(WorkerSlots(4))
    return [entry.number for entry in failed]


def test_the_worker_with_the_most_room_gets_the_next_job():
    one = dispatcher(1, 3, jobs=5)
    assert dispatch(one) == [(1, 0), (1, 1), (0, 2), (1, 3)]
    assert not one.wants_more
    del one.workers[0].playing[2]
    assert dispatch(one) == [(0, 4)]
    del one.workers[1].playing[0]
    assert one.wants_more
    assert one.open == 3


def test_what_a_dead_worker_played_goes_to_others_at_once_before_new_jobs():
    one = dispatcher(2, 2, jobs=6)
    dispatch(one)
    assert die(one, 0) == []
    assert [entry.number for entry in one.waiting] == [0, 2, 4, 5]
    assert dispatch(one) == [(1, 0), (1, 2), (1, 4), (1, 5)]


def test_a_job_that_kills_its_workers_is_found_and_no_other_one_fails():
    one = dispatcher(4, jobs=4)
    killer, failed, finished, deaths = 2, [], [], 0
    while one.open:
        for _ in dispatch(one):
            pass
        playing = one.workers[0].playing
        if killer in playing:
            deaths += 1
            failed += die(one, 0)
        else:
            finished += list(playing)
            playing.clear()
    assert (failed, sorted(finished), deaths) == ([killer], [0, 1, 3], 3)


def test_others_go_on_while_suspects_are_played_alone():
    one = dispatcher(4, 4, jobs=2)
    dispatch(one)
    for entry in one.workers[0].playing.values():
        entry.deaths = 1
    die(one, 0)  # the second time for one of them
    assert [entry.number for entry in one.suspects] == [0]
    one.waiting += [PendingJob(at, None) for at in (7, 8, 9)]
    assert dispatch(one) == [(1, 0), (0, 7), (0, 8), (0, 9)]
    assert not one.workers[1].free
    one.workers[1].playing.clear()
    assert one.workers[1].free == 4
