"""The web application: addresses and their answers."""

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from jobmanager.checks.metrics import CONTENT_TYPE, render_metrics
from jobmanager.database.database import DamagedDocument, DatabaseError, UnknownJob
from jobmanager.site.account import Account
from jobmanager.views.following import Wish, read_printed
from jobmanager.views.logs import render_log
from jobmanager.web.access import Guard
from jobmanager.web.live import Changes, Mark
from jobmanager.web.pages.grid_job import read_grid_job_page
from jobmanager.web.pages.local_job import find_file, find_local_job, read_local_job_page
from jobmanager.web.pages.overview import read_overview_page
from jobmanager.web.pages.query import read_query_page
from jobmanager.web.reading import (
    TAIL,
    ReadOnlyDatabase,
    measure,
    open_file,
    open_read_only,
    read_chunks,
    read_version,
)
from jobmanager.web.rendering import Templates

_LOG_LINES = 2000
"""Lines of a grid job's log that are shown, from its end."""
_PRINTED = 2.0
"""Seconds between two checks of what a local job prints, while its page is open."""
_MOST_QUERIES = 2
"""Queries that run at once."""
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class ErrorPage:
    """Why there is no page."""

    heading: str
    sentence: str
    here: str = ""
    events: str = ""


class Pages:
    """The pages of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._templates = Templates(account.configuration.site.name)
        self._queries = threading.BoundedSemaphore(_MOST_QUERIES)
        static = Path(__file__).with_name("static")
        self._static = {file.name: file.read_bytes() for file in static.iterdir() if file.suffix in _MEDIA_TYPES}
        self.changes = Changes(functools.partial(read_version, account))

    def overview(self, request: Request) -> Response:
        with open_read_only(self._account) as database:
            page = read_overview_page(database, request.query_params, time.time())
            return self._templates.render("overview.html", page)

    def grid_job(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        with open_read_only(self._account) as database:
            page = read_grid_job_page(self._account, database, job_id, request.query_params, time.time())
            return self._templates.render("grid_job.html", page)

    def local_job(self, request: Request) -> Response:
        with open_read_only(self._account) as database:
            return self._templates.render(
                "local_job.html", read_local_job_page(self._account, database, **request.path_params)
            )

    def local_file(self, request: Request) -> Response:
        """The end of a local job's file, as text."""
        job_id, index, what = (request.path_params[name] for name in ("job_id", "index", "what"))
        with open_read_only(self._account) as database:
            path = find_file(self._account, job_id, find_local_job(database, job_id, index), what)
        return _answer_with_tail(path)

    def log(self, request: Request) -> Response:
        """The end of what ``samgrid log`` shows for a grid job."""
        job_id = self._find(request)
        path = self._account.places.log(job_id)
        if os.path.lexists(path):
            _open(path).close()  # no link, nor in a folder that is one
        with open_read_only(self._account) as database:
            lines = list(render_log(self._account, database, job_id, _LOG_LINES))
        return PlainTextResponse("".join(f"{line}\n" for line in lines))

    def output(self, request: Request) -> Response:
        job_id = self._find(request)
        stream = open_file(self._account.places.output(job_id))
        if stream is None:
            raise HTTPException(404, f"Grid job {job_id} has no output tar yet.")
        size = measure(stream)
        headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{job_id}.tar"'}
        return StreamingResponse(read_chunks(stream, size), headers=headers, media_type="application/x-tar")

    def query(self, request: Request) -> Response:
        if not self._queries.acquire(blocking=False):
            raise HTTPException(503, "Other questions are being answered: ask again in some seconds.")
        try:
            return self._templates.render("query.html", read_query_page(self._account, request.query_params))
        finally:
            self._queries.release()

    def metrics(self, request: Request) -> Response:
        """What ``samgrid metrics`` prints."""
        with open_read_only(self._account) as database:
            text = render_metrics(self._account, database, time.time())
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    def events(self, request: Request) -> Response:
        """Announces changes of the list of grid jobs."""
        return self._stream(ReadOnlyDatabase.mark_of_all)

    def grid_job_events(self, request: Request) -> Response:
        """Announces changes of one grid job."""
        job_id = self._find(request)
        return self._stream(lambda database: database.mark_of_grid_job(job_id))

    def local_job_events(self, request: Request) -> Response:
        """Announces changes of one local job, and new output."""
        job_id, index = self._find(request), request.path_params["index"]
        wish = Wish()

        def read_mark() -> Mark:
            with open_read_only(self._account) as database:
                mark = database.mark_of_local_job(job_id, index)
                with contextlib.suppress(DatabaseError, UnknownJob):  # the page itself will say so
                    job = find_local_job(database, job_id, index)
                    wish.make(self._account, job_id, job)
                    mark = (*mark, *read_printed(self._account, job_id, job))
            return mark

        return self._serve(self._end_with(wish, self.changes.stream(read_mark, _PRINTED)))

    async def _end_with(self, wish: Wish, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for text in stream:
                yield text
        finally:
            wish.end()

    def static(self, request: Request) -> Response:
        """A style sheet, script or picture of ours, from memory."""
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404, f"There is no file {name} here.")
        media_type = _MEDIA_TYPES[Path(name).suffix]
        return Response(self._static[name], media_type=media_type, headers={"Cache-Control": "max-age=60"})

    def fault(self, request: Request, error: Exception) -> Response:
        """The page for an error."""
        heading, sentence, status = "The job database cannot be read", str(error), 503
        if isinstance(error, HTTPException):
            heading = {404: "There is nothing here", 503: "Not now"}.get(error.status_code, "This has no answer")
            sentence, status = error.detail, error.status_code
        elif isinstance(error, UnknownJob):
            heading, status = "There is no such job", 404
        elif isinstance(error, DamagedDocument):
            heading, sentence = "This grid job is in quarantine", f"{error}. All other grid jobs go on."
        return self._templates.render("error.html", ErrorPage(heading, sentence), status)

    def _find(self, request: Request) -> str:
        with open_read_only(self._account) as database:
            job_id: str = request.path_params["job_id"]
            if not database.grid_jobs.has(job_id):
                raise UnknownJob(f"there is no grid job {job_id}")
            return job_id

    def _stream(self, find_mark: Callable[[ReadOnlyDatabase], Mark]) -> Response:
        def read_mark() -> Mark:
            with open_read_only(self._account) as database:
                return find_mark(database)

        return self._serve(self.changes.stream(read_mark))

    def _serve(self, stream: AsyncIterator[bytes]) -> Response:
        if not self.changes.has_room:
            raise HTTPException(503, "Too many pages are open.")
        return StreamingResponse(stream, media_type="text/event-stream")


def _open(path: Path | None) -> BinaryIO:
    stream = open_file(path)
    if stream is None:
        raise HTTPException(404, "There is no such file, or it has not come back yet.")
    return stream


def _answer_with_tail(path: Path | None) -> Response:
    with _open(path) as stream:
        size = measure(stream)
        stream.seek(max(0, size - TAIL))
        tail = stream.read(TAIL)
    left_out = f"[the last {len(tail):,} of {size:,} bytes]\n" if len(tail) < size else ""
    return PlainTextResponse(left_out + tail.decode("utf-8", "replace"))


def make_app(account: Account, token: str, on_loopback: bool = False) -> Starlette:
    site = Pages(account)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[Mapping[str, object]]:
        watch = asyncio.create_task(site.changes.watch())
        yield {}
        watch.cancel()

    job = "/jobs/{job_id}"
    routes = [
        Route("/", site.overview),
        Route("/events", site.events),
        Route("/metrics", site.metrics),
        Route("/query", site.query),
        Route("/static/{name}", site.static),
        Route(job, site.grid_job),
        Route(f"{job}/events", site.grid_job_events),
        Route(f"{job}/log", site.log),
        Route(f"{job}/output.tar", site.output),
        Route(f"{job}/local/{{index:int}}", site.local_job),
        Route(f"{job}/local/{{index:int}}/events", site.local_job_events),
        Route(f"{job}/local/{{index:int}}/{{what}}", site.local_file),
    ]
    faults = {HTTPException: site.fault, UnknownJob: site.fault, DatabaseError: site.fault}
    guard = Middleware(Guard, token=token, on_loopback=on_loopback)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=faults, lifespan=lifespan)
    app.state.changes = site.changes
    return app
