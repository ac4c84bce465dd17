from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

import pytest
from wiring import TIMEOUT_S, wait_until

from pytriton.proxy.worker.threads import EventLoop, MainThread, ThreadPool

_numbers = itertools.count()


@pytest.fixture
def name():
    return f"of-a-test-{next(_numbers)}"


@contextlib.contextmanager
def no_threads():
    """Lets no thread start, as when the system has too many."""

    def start(_):
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def wait_until_gone(name):
    for thread in named(name):
        thread.join(TIMEOUT_S)
    assert not named(name)


@pytest.fixture
def loop(name):
    loop = EventLoop(name)
    yield loop
    loop.stop()
    wait_until_gone(name)


def run(loop, coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(TIMEOUT_S)


def waiting_task(loop):
    """Starts a task that waits until it is cancelled; returns an event that it sets when it has cleaned up."""
    entered, cleaned = threading.Event(), threading.Event()

    async def waiting():
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned.set()

    asyncio.run_coroutine_threadsafe(waiting(), loop)
    assert entered.wait(TIMEOUT_S)
    return cleaned


class TestEventLoop:
    def test_it_starts_on_first_use(self, loop, name):
        assert named(name) == []

        running = loop.get()

        (thread,) = named(name)
        assert thread.daemon
        assert loop.get() is running
        assert run(running, asyncio.sleep(0, "done")) == "done"
        assert named(name) == [thread]

    def test_a_loop_that_has_not_started_can_be_stopped(self, loop, name):
        loop.stop()
        loop.stop()

        assert named(name) == []

    def test_stopping_cancels_remaining_tasks_and_lets_them_clean_up(self, loop, name):
        events = []

        async def waiting():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                events.append("cleaned up")

        async def steps():
            try:
                yield 1
            finally:
                events.append("closed")

        async def start():
            tasks.append(asyncio.create_task(waiting()))
            generators.append(steps())
            return await anext(generators[0])

        tasks, generators = [], []
        running = loop.get()
        assert run(running, start()) == 1

        loop.stop()

        wait_until_gone(name)
        assert running.is_closed()
        assert tasks[0].cancelled()
        assert sorted(events) == ["cleaned up", "closed"]

    def test_a_task_added_during_the_stop_starts_and_cleans_up(self, loop, name):
        gate, events = threading.Event(), []

        async def waiting():
            events.append("started")
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cleaned up")

        running = loop.get()
        running.call_soon_threadsafe(lambda: gate.wait(TIMEOUT_S))
        running.call_soon_threadsafe(lambda: tasks.append(running.create_task(waiting())))
        tasks = []
        loop.stop()
        gate.set()

        wait_until_gone(name)
        assert events == ["started", "cleaned up"]
        assert tasks[0].cancelled()

    def test_joining_waits_for_cleanups(self, loop, name):
        cleaned = waiting_task(loop.get())

        loop.stop()
        loop.join(TIMEOUT_S)

        assert cleaned.is_set()
        assert named(name) == []

    def test_joining_waits_for_a_loop_in_the_main_thread_too(self, name):
        main_thread = MainThread()
        threading.Thread(target=main_thread.run, daemon=True).start()
        loop = EventLoop(name, main_thread)
        cleaned = waiting_task(loop.get())

        loop.stop()
        loop.join(TIMEOUT_S)

        assert cleaned.is_set()

    def test_joining_a_loop_that_has_not_started_returns_at_once(self, loop, name):
        loop.join(TIMEOUT_S)
        EventLoop(name, MainThread()).join(TIMEOUT_S)

    def test_joining_times_out(self, loop, name):
        gate, blocked = threading.Event(), threading.Event()
        loop.get().call_soon_threadsafe(lambda: (blocked.set(), gate.wait(TIMEOUT_S)))
        assert blocked.wait(TIMEOUT_S)

        loop.stop()
        loop.join(0.01)

        assert len(named(name)) == 1
        gate.set()

    def test_joining_in_the_loops_own_thread_does_nothing(self, loop):
        async def join():
            loop.join(TIMEOUT_S)
            return "joined"

        assert run(loop.get(), join()) == "joined"

    def test_tasks_that_ignore_their_cancellation_do_not_block_the_stop(self, loop, name):
        entered = threading.Event()

        async def stubborn():
            while True:
                try:
                    entered.set()
                    await asyncio.sleep(TIMEOUT_S)
                except asyncio.CancelledError:
                    pass

        running = loop.get()
        task = asyncio.run_coroutine_threadsafe(stubborn(), running)
        assert entered.wait(TIMEOUT_S)

        loop.stop()

        wait_until_gone(name)
        assert running.is_closed()
        assert not task.done()

    def test_a_stopped_loop_restarts_on_use(self, loop, name):
        before = loop.get()
        loop.stop()
        wait_until_gone(name)

        assert loop.get() is not before
        assert run(loop.get(), asyncio.sleep(0, "done")) == "done"

    def test_a_loop_without_an_available_thread_starts_later(self, loop, name):
        with no_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
            loop.enter()

        assert run(loop.enter(), asyncio.sleep(0, "done")) == "done"
        loop.retire()
        loop.leave()
        wait_until_gone(name)

    def test_a_retired_loop_stops_with_its_last_user(self, loop, name):
        running = loop.enter()
        assert loop.enter() is running
        loop.retire()
        loop.leave()
        assert run(running, asyncio.sleep(0, "done")) == "done"

        loop.leave()

        wait_until_gone(name)

    def test_a_retired_loop_without_users_stops_at_once(self, loop, name):
        loop.enter()
        loop.leave()
        assert len(named(name)) == 1, "it is not retired, and may be needed again"

        loop.retire()

        wait_until_gone(name)


class TestThreadPool:
    def test_threads_start_when_there_is_work(self, name):
        pool = ThreadPool(3, name)
        assert named(name) == []

        for _ in range(5):  # one thread is enough for work that comes one after the other
            done = threading.Event()
            pool.submit(done.set)
            assert done.wait(TIMEOUT_S)
            wait_until(lambda: pool._busy == 0)

        (thread,) = named(name)
        assert thread.daemon
        pool.stop()
        wait_until_gone(name)

    def test_it_grows_up_to_its_size(self, name):
        pool = ThreadPool(3, name)
        gate, running, done = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

        def work():
            running.release()
            gate.wait(TIMEOUT_S)
            done.release()

        for _ in range(8):
            pool.submit(work)
        for _ in range(3):
            assert running.acquire(timeout=TIMEOUT_S)

        assert len(named(name)) == 3
        assert not running.acquire(timeout=0.05)
        gate.set()
        for _ in range(8):
            assert done.acquire(timeout=TIMEOUT_S)
        pool.stop()
        wait_until_gone(name)

    def test_work_is_refused_only_while_no_thread_can_start(self, name):
        pool = ThreadPool(1, name)
        with no_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit(lambda: None)

        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(TIMEOUT_S)
        pool.stop()
        wait_until_gone(name)

    def test_running_threads_do_the_work_of_those_that_cannot_start(self, name):
        pool = ThreadPool(2, name)
        gate, done = threading.Event(), threading.Event()
        pool.submit(lambda: gate.wait(TIMEOUT_S))
        with no_threads():
            pool.submit(done.set)

        gate.set()
        assert done.wait(TIMEOUT_S)
        pool.stop()
        wait_until_gone(name)

    def test_stopping_leaves_no_work_undone(self, name):
        pool = ThreadPool(1, name)
        gate, done = threading.Event(), []
        pool.submit(lambda: gate.wait(TIMEOUT_S))
        for number in range(3):
            pool.submit(lambda number=number: done.append(number))

        pool.stop()
        assert done == []
        gate.set()

        wait_until_gone(name)
        assert done == [0, 1, 2]

    def test_it_keeps_no_reference_to_finished_work(self, name):
        class Work:
            def __init__(self, gone):
                self._gone = gone

            def __call__(self):
                pass

            def __del__(self):
                self._gone.set()

        pool = ThreadPool(1, name)
        gone = threading.Event()
        pool.submit(Work(gone))

        assert gone.wait(TIMEOUT_S)
        pool.stop()
        wait_until_gone(name)
