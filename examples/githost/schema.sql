-- What the host itself keeps, in a schema of its own. The queue is beside it, in the schema `stowhand`.

DROP SCHEMA IF EXISTS githost CASCADE;
CREATE SCHEMA githost;

CREATE TABLE githost.repositories (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name     text NOT NULL UNIQUE,
  path     text NOT NULL, -- of the bare repository
  size_kib bigint         -- of its objects; overwritten by repo:size_recalc
);

-- One row for each ref of each push. An id of zeros: as `old` the ref was created, as `new` it was deleted.
CREATE TABLE githost.push_events (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  repository   bigint NOT NULL REFERENCES githost.repositories (id) ON DELETE CASCADE,
  ref          text NOT NULL,
  old          text NOT NULL,
  new          text NOT NULL,
  recorded_at  timestamptz NOT NULL DEFAULT now(),
  processed_at timestamptz -- push:process is idempotent on this
);

CREATE INDEX ON githost.push_events (repository, ref, id);

CREATE TABLE githost.commits (
  repository bigint NOT NULL REFERENCES githost.repositories (id) ON DELETE CASCADE,
  id         text NOT NULL,
  subject    text NOT NULL,
  push_event bigint REFERENCES githost.push_events (id) ON DELETE SET NULL, -- that brought it
  PRIMARY KEY (repository, id)
);

CREATE INDEX ON githost.commits (push_event);
