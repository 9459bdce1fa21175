"""Apps that a setting may name."""

from stowhand import App
from stowhand.django import database_url

on_default = App(database_url())
on_postgres = App(database_url("postgres"), schema="jobs_of_app")
on_a_file = App("sqlite:///another.db")
in_memory = App("memory://")


def wait() -> None: ...


tasks = {"default": on_default.task(wait), "postgres": on_postgres.task(wait)}
