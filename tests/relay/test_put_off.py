"""What a thread puts off while it handles a message."""

from __future__ import annotations

import threading

from omni_python.relay import put_off


def test_calls_wait_for_the_message_of_their_own_thread_alone() -> None:
    made: list[str] = []
    put_off.call_later(made.append, "before")
    put_off.begin(threading.get_ident())
    put_off.call_later(made.append, "first")
    put_off.call_later(made.append, "second")
    other = threading.Thread(target=put_off.call_later, args=(made.append, "another thread's"))
    other.start()
    other.join()
    assert made == ["before", "another thread's"]
    put_off.finish(threading.get_ident())
    assert made[2:] == ["first", "second"]
    put_off.call_later(made.append, "after")
    assert made[-1] == "after"
