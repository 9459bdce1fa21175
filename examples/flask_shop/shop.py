"""The shop with Flask: orders by HTTP, each with its job in one transaction, and the dashboard for whoever has the
token. A worker beside it does the jobs.

gunicorn --preload --workers 2 shop:web
stowhand worker shop:app
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from flask import Flask, abort, jsonify, redirect, request, session
from flask.typing import ResponseReturnValue
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from stowhand import App
from stowhand.errors import ResultNotKept, UnknownJob
from stowhand.wsgi import dashboard

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
app = App(URL)
engine = create_engine(URL.replace("postgresql:", "postgresql+psycopg:"))
web = Flask(__name__)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@app.task
def confirm(order_id: int) -> str:
    with Session(engine) as session:
        return f"confirmed {session.get_one(Order, order_id).item}"


# With --preload these connections are open when gunicorn forks: no process uses those of another.
app.sync.install()
Base.metadata.create_all(engine)
engine.dispose()


@web.post("/orders")
def place() -> ResponseReturnValue:
    """The order and its job are there together, or neither is."""
    with Session(engine) as session, session.begin():
        order = Order(item=request.form["item"])
        session.add(order)
        session.flush()  # the database gives order.id now
        job = app.sync.enqueue_in(session, confirm, order.id)
        if order.item == "sold out":
            abort(409, "There is none left.")
        answer = {"order": order.id, "job": job.id, "process": os.getpid()}
    return jsonify(answer)


@web.get("/jobs/<int:job_id>")
def show(job_id: int) -> ResponseReturnValue:
    try:
        job = app.sync.job(job_id, confirm)
    except (UnknownJob, ResultNotKept):  # there never was one, or nothing is kept of it any more
        abort(404)
    return jsonify({"state": job.state, "process": os.getpid()})


@web.get("/healthz")
def healthz() -> ResponseReturnValue:
    """The store answers, and knows how many jobs there are."""
    return jsonify(sum(app.sync.counts().values()))


web.secret_key = os.environ.get("SHOP_SECRET") or secrets.token_hex()  # several processes need the same one
LOGIN = '<form method="post"><label>Token <input type="password" name="token"></label> <button>Sign in</button></form>'


@web.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    if request.method == "GET":
        return LOGIN
    token = os.environ.get("SHOP_TOKEN", "")
    if not token or not secrets.compare_digest(request.form.get("token", "").encode(), token.encode()):
        return "wrong token", 403
    session["team"] = "ops"
    return redirect("/jobs-admin/", 303)


def rights(environ: dict[str, Any]) -> list[str]:
    with web.request_context(environ):
        return ["look", "payloads", "act"] if session.get("team") == "ops" else []


web.wsgi_app = DispatcherMiddleware(web.wsgi_app, {"/jobs-admin": dashboard(app, rights=rights)})  # type: ignore[method-assign]
