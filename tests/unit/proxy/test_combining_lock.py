"""A lock whose holder does the work that others have queued."""

from __future__ import annotations

import threading
import weakref

from pytriton.proxy.worker.combining_lock import _MOST_LEFT, CombiningLock


class Work:
    def __init__(self):
        self.done = []
        self.lock = CombiningLock(self.do)

    def do(self, left):
        self.done += left


def test_work_is_done_at_once_while_the_lock_is_free():
    work = Work()
    done, lock = work.done, work.lock
    lock.leave(1)
    assert done == [1]


def test_the_holder_does_queued_work_before_it_releases_the_lock():
    work = Work()
    done, lock = work.done, work.lock
    with lock:
        assert not lock.enter_if_free()
        lock.leave(1)
        lock.leave(2)
        assert done == []
    assert done == [1, 2]


def test_queued_work_is_done_before_that_of_the_next_holder():
    work = Work()
    done, lock = work.done, work.lock
    lock._left.append(1)
    assert lock.enter_if_free()
    done.append(2)
    lock.__exit__()
    assert done == [1, 2]


def test_nothing_is_lost_or_out_of_order_with_many_threads():
    work = Work()
    done, lock = work.done, work.lock

    def send(thread):
        for number in range(500):
            if not lock.enter_if_free():
                lock.leave((thread, number))
                continue
            done.append((thread, number))
            lock.__exit__()

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in range(8):
        assert [number for each, number in done if each == thread] == list(range(500))


def test_threads_wait_while_much_work_is_queued():
    work = Work()
    left = threading.Event()

    def leave_all():
        for number in range(_MOST_LEFT + 1):
            if number == _MOST_LEFT:
                left.set()
            work.lock.leave(number)

    with work.lock:
        thread = threading.Thread(target=leave_all)
        thread.start()
        assert left.wait(10)
        thread.join(0.1)
        assert thread.is_alive()
        assert len(work.lock._left) == _MOST_LEFT
    thread.join(10)
    assert work.done == list(range(_MOST_LEFT + 1))


def test_a_holder_whose_work_does_not_end_hands_the_lock_over():
    handed_over = threading.Event()
    begun = threading.Event()

    class Endless(Work):
        def do(self, left):
            if not handed_over.is_set():
                self.lock._left.append(0)
            if len(self.done) > 10:
                begun.set()
            self.done.append(1)

    work = Endless()
    holder = threading.Thread(target=work.lock.leave, args=[0])
    holder.start()
    assert begun.wait(10)
    with work.lock:
        handed_over.set()
    holder.join(10)
    assert not holder.is_alive()


def test_nothing_keeps_its_owner_alive():
    work = weakref.ref(Work())
    assert work() is None
