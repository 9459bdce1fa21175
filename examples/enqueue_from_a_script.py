"""Enqueueing without an event loop: a script, a Django view, a shell. ``enqueue_sync`` and ``app.sync`` wait."""

from __future__ import annotations

from collections.abc import Iterator

from stowhand import App, NewJob

app = App()


@app.task
def resize(path: str, width: int = 800) -> None:
    """Workers run this; the script only enqueues."""


def photos() -> Iterator[NewJob]:
    """Iterated in this thread, so it may read from this thread's database connection."""
    for number in range(1_000):
        yield resize.new_job(f"photo-{number}.jpg", width=400)


def main() -> None:
    app.sync.install()
    job = resize.options(priority=-5).enqueue_sync("cover.jpg", width=1600)
    ids = app.sync.enqueue_many(photos())
    print(f"enqueued job {job.id} and {len(ids)} more")
    app.sync.close()


if __name__ == "__main__":
    main()
